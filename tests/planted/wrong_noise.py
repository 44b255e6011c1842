"""Planted faults of keys, noise, warping and drafting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from specjax import keys, round, warp
from specjax.draft import Context, Draft, Drafter, Verdict
from specjax.keys import ACCEPT, DRAFT, RESIDUAL, Noise
from specjax.verify import block, law, token
from specjax.verify.base import chain_path
from specjax.verify.block import rule as block_rule
from tests.planted import identity, laws
from tests.planted.fault import Faults
from tests.planted.wrong_rules import chances

FAULTS = Faults()
Parts = dict[str, Any]

_RIGHT_UNIFORMS = keys.uniforms
_RIGHT_CONTEXT = round._context


def uniforms(patch: pytest.MonkeyPatch, wrong: Callable[..., Array | None]) -> Parts:
    """Replaces the uniforms where ``wrong`` has other ones."""

    def replaced(noise: Noise, offset: Any, stream: int, count: int) -> Array:
        other = wrong(noise, offset, stream, count)
        return _RIGHT_UNIFORMS(noise, offset, stream, count) if other is None else other

    patch.setattr(keys, "uniforms", replaced)
    return {}


def drawing(patch: pytest.MonkeyPatch, wrong: Callable[..., Any]) -> Parts:
    """Replaces what drafters draw with; ``wrong`` gets the right ``draw`` and its arguments."""

    def context(*arguments: Any) -> Context:
        right = _RIGHT_CONTEXT(*arguments)

        def draw(logits: Array, node: Any, ids: Any = None) -> Any:
            return wrong(partial(right.draw, ids=ids), logits, node)

        return right._replace(draw=draw)

    patch.setattr(round, "_context", context)
    return {}


# --- noise used twice ---


@FAULTS.add(laws.iid, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Draft and accept share noise."""

    def wrong(noise: Noise, offset: Any, stream: int, count: int) -> Array | None:
        return _RIGHT_UNIFORMS(noise, 1, DRAFT, 2)[:, 1:] if stream == ACCEPT else None

    return uniforms(patch, wrong)


@FAULTS.add(laws.iid, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Accept and residual share noise."""

    def wrong(noise: Noise, offset: Any, stream: int, count: int) -> Array | None:
        return _RIGHT_UNIFORMS(noise, 0, RESIDUAL, 2)[:, 1:] if stream == ACCEPT else None

    return uniforms(patch, wrong)


@FAULTS.add(laws.iid, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The residual reuses the draft's noise."""

    def wrong(noise: Noise, offset: Any, stream: int, count: int) -> Array | None:
        return _RIGHT_UNIFORMS(noise, 1, DRAFT, 2) if stream == RESIDUAL else None

    return uniforms(patch, wrong)


@FAULTS.add(laws.iid, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """All nodes of a draft share noise."""

    def wrong(noise: Noise, offset: Any, stream: int, count: int) -> Array | None:
        return _RIGHT_UNIFORMS(noise, 1, DRAFT, 2) if stream == DRAFT else None

    return uniforms(patch, wrong)


def by_position(noise: Noise, offset: Any, stream: int, count: int) -> Array | None:
    """Draft noise of the absolute position, whatever the round."""
    if stream != DRAFT:
        return None
    moved = noise._replace(length=noise.length + jnp.asarray(offset, jnp.int32))
    return _RIGHT_UNIFORMS(moved, 0, DRAFT, count)


@FAULTS.add(laws.iid, block)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Draft noise keyed by absolute position, under block verification."""
    return uniforms(patch, by_position)


@FAULTS.add(laws.sticky, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Draft noise keyed by absolute position, with a drafter that remembers."""
    return uniforms(patch, by_position)


@FAULTS.add(laws.iid, block)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Accept noise keyed by absolute position, a number for each node."""

    def verify(draft: Draft, logits: Array, sampling: warp.Sampling, noise: Noise) -> Verdict:
        p = warp.apply(sampling, logits)
        q, given = law.drafted_from(draft)
        assert q is not None
        decided = jax.vmap(block_rule)(draft.tokens, draft.length, p, q, given)
        nodes = jnp.arange(1, p.shape[1], dtype=jnp.int32)
        at = [noise._replace(length=noise.length + node) for node in nodes]
        none = jnp.zeros([p.shape[0], 0], p.dtype)
        u = jnp.concatenate([none, *(_RIGHT_UNIFORMS(one, 0, ACCEPT, 1) for one in at)], 1)
        kept = u < jax.vmap(chances)(decided.stop)[:, 1:]
        node = jnp.max(jnp.where(kept, nodes, 0), 1, initial=0)
        rest = jax.vmap(law.residual)(node, decided.weight, draft.tokens, p, q, given, draft.length)
        return Verdict(node, chain_path(p), keys.draw(rest, keys.uniforms(noise, 0, RESIDUAL, 2)))

    return {"verifier": lambda right: right._replace(verify=verify)}


@FAULTS.add(laws.iid, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Accept noise that is the same in every round."""

    def wrong(noise: Noise, offset: Any, stream: int, count: int) -> Array | None:
        fixed = noise._replace(length=jnp.zeros_like(noise.length))
        return _RIGHT_UNIFORMS(fixed, offset, stream, count) if stream == ACCEPT else None

    return uniforms(patch, wrong)


@FAULTS.add(laws.iid, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Residual noise that is the same in every round."""

    def wrong(noise: Noise, offset: Any, stream: int, count: int) -> Array | None:
        fixed = noise._replace(length=jnp.zeros_like(noise.length))
        return _RIGHT_UNIFORMS(fixed, offset, stream, count) if stream == RESIDUAL else None

    return uniforms(patch, wrong)


# --- rows and positions ---


@FAULTS.add(laws.iid, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Row keys not folded: every row has the same noise."""
    patch.setattr(keys, "row_keys", lambda key, batch: jnp.broadcast_to(key, (batch,)))
    return {}


@FAULTS.add(identity.neighbours)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """One key draws for the whole batch."""

    def wrong(noise: Noise, offset: Any, stream: int, count: int) -> Array:
        first = jax.random.fold_in(noise.keys[0], jnp.max(noise.length).astype(jnp.uint32))
        first = jax.random.fold_in(jax.random.fold_in(first, jnp.uint32(offset)), stream)
        return jax.random.uniform(first, (len(noise.keys), count), jnp.float32)

    return uniforms(patch, wrong)


@FAULTS.add(identity.coupled)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The target's noise keyed by the round, not by absolute position."""

    def gumbel(noise: Noise, depths: Array, vocab: int) -> Array:
        def one(key: Array, length: Array, depth: Array) -> Array:
            key = jax.random.fold_in(jax.random.fold_in(key, length), depth)
            key = jax.random.fold_in(key, keys.TARGET)
            return jax.random.gumbel(key, [vocab], jnp.float32, mode="high")

        over_nodes = jax.vmap(one, (None, None, 0))
        return jax.vmap(over_nodes, (0, 0, None))(noise.keys, noise.length, depths)

    patch.setattr(keys, "target_gumbel", gumbel)
    return {}


@FAULTS.add(identity.always_right)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Coupled drafts use the noise of the position after theirs."""
    return drawing(patch, lambda draw, logits, node: draw(logits, jnp.asarray(node) + 1))


@FAULTS.add(identity.far_tail)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Gumbel noise in jax's default mode, which ends at 16.6."""
    right = jax.random.gumbel
    patch.setattr(jax.random, "gumbel", lambda key, shape, dtype, **_: right(key, shape, dtype))
    return {}


# --- warping ---


@FAULTS.add(laws.context, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The q from before warping."""

    def wrong(draw: Any, logits: Array, node: Any) -> tuple:
        drawn, probs = draw(logits, node)
        return drawn, None if probs is None else jax.nn.softmax(logits, -1)

    return drawing(patch, wrong)


@FAULTS.add(laws.context, block)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The p from before warping."""
    plain = SimpleNamespace(apply=lambda sampling, logits: jax.nn.softmax(logits, -1))
    patch.setattr(law, "warp", plain)
    return {}


@FAULTS.add(laws.context, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Temperature after top-p, not before it."""
    right = warp.apply

    def apply(sampling: warp.Sampling, logits: Array) -> Array:
        ones = jnp.ones_like(jnp.asarray(sampling.temperature))
        cut = right(sampling._replace(temperature=ones), logits)
        return right(warp.Sampling(temperature=sampling.temperature), jnp.log(cut))

    patch.setattr(warp, "apply", apply)
    return {}


@FAULTS.add(laws.context, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Top-p without the id that crosses the mass."""

    def keep(probs: Array, mass: Array) -> Array:
        falling = -jnp.sort(-probs, -1)
        inside = jnp.cumsum(falling, -1) <= mass
        inside = inside.at[..., 0].set(True)
        least = jnp.min(jnp.where(inside, falling, 1), -1, keepdims=True)
        return jnp.where(probs >= least, probs, 0)

    patch.setattr(warp, "_keep_top_p", keep)
    return {}


@FAULTS.add(identity.coupled)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The first row's settings for every row."""
    right = warp._column
    patch.setattr(warp, "_column", lambda value, dtype: right(value, dtype)[:1])
    return {}


# --- which tokens are submitted ---


@FAULTS.add(laws.iid, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """An argmax draft that reports its whole softmax as q."""

    def wrong(draw: Any, logits: Array, node: Any) -> tuple:
        return keys.argmax(logits), draw(logits, node)[1]

    return drawing(patch, wrong)


@FAULTS.add(laws.part, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The q of a draft vocabulary is not scattered to the target's ids."""

    def wrong(draw: Any, logits: Array, node: Any) -> tuple:
        drawn, probs = draw(logits, node)
        packed = probs[:, jnp.array(laws.PART)]
        return drawn, jnp.pad(packed, ((0, 0), (0, probs.shape[1] - packed.shape[1])))

    return drawing(patch, wrong)


@FAULTS.add(laws.part, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The token of a draft vocabulary is not mapped to the target's ids."""

    def wrong(draw: Any, logits: Array, node: Any) -> tuple:
        drawn, probs = draw(logits, node)
        return keys.argmax(drawn[:, None] == jnp.array(laws.PART)), probs

    return drawing(patch, wrong)


@FAULTS.add(laws.iid, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A drafted token is dropped when its own q is small."""

    def turn(right: Drafter) -> Drafter:
        def propose(*arguments: Any) -> tuple:
            draft, state, cache = right.propose(*arguments)
            q_x = jax.vmap(law.drafted)(draft.probs, draft.tokens)
            run = jnp.cumprod((q_x >= 0.25).astype(jnp.int32), 1)
            kept = jnp.sum(run, 1, dtype=jnp.int32)
            return Draft(draft.tokens, jnp.minimum(draft.length, kept), draft.probs), state, cache

        return right._replace(propose=propose)

    return {"drafter": turn}
