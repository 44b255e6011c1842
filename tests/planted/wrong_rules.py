"""Planted faults of the rules."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

from specjax import keys, warp
from specjax.draft import Draft, Verdict
from specjax.verify import Verifier, block, coupled, greedy, law, match, token
from specjax.verify.base import chain_path, run_length
from specjax.verify.block import rule as block_rule
from specjax.verify.token import rule as token_rule
from tests.planted import identity, laws
from tests.planted.fault import LOOP, Faults

FAULTS = Faults()
Parts = dict[str, Any]

_RIGHT_RESIDUAL = law.residual
_RIGHT_DRAFTED_FROM = law.drafted_from


def instead(rule: law.Rule) -> Parts:
    """The verifier of a wrong rule."""
    return {"verifier": lambda right: right._replace(verify=partial(law.verify, rule))}


def chances(stop: Array) -> Array:
    """Back from block's law to the h_i it was made of: stop_i = h_i prod_{j > i} (1 - h_j)."""
    later = jnp.append(jnp.cumsum(stop[::-1])[::-1][1:], 0)
    return stop / jnp.maximum(1 - later, 1e-9)


# --- the token after a rejection ---


@FAULTS.add(laws.iid, token, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Residual = p."""
    patch.setattr(law, "residual", lambda node, weight, tokens, p, *_: p[node])
    return {}


@FAULTS.add(laws.iid, token, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Residual = |p - q|."""

    def residual(node: Array, weight: Array, tokens: Array, p: Array, q: Array, *_: Array) -> Array:
        return jnp.abs(weight[node] * p[node] - q[node])

    patch.setattr(law, "residual", residual)
    return {}


@FAULTS.add(laws.iid, token, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Residual not renormalised: what lacks to 1 goes to the last id."""

    def residual(*arguments: Any) -> Array:
        rest = _RIGHT_RESIDUAL(*arguments)
        return rest.at[-1].add(jnp.maximum(1 - jnp.sum(rest), 0))

    patch.setattr(law, "residual", residual)
    return {}


@FAULTS.add(laws.iid, token, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Residual softmaxed, not normalised."""

    def residual(*arguments: Any) -> Array:
        rest, p, node = _RIGHT_RESIDUAL(*arguments), arguments[3], arguments[0]
        return jnp.where(p[node] > 0, jnp.exp(rest), 0)

    patch.setattr(law, "residual", residual)
    return {}


@FAULTS.add(laws.mixed, token, "mixed")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A refused given token may be drawn again."""

    def residual(*arguments: Any) -> Array:
        *most, given, length = arguments
        return _RIGHT_RESIDUAL(*most, jnp.zeros_like(given), length)

    patch.setattr(law, "residual", residual)
    return {}


# --- q ---


@FAULTS.add(laws.context, token, "sampled")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The q of the next position."""

    def drafted_from(draft: Draft) -> tuple[Array | None, Array]:
        assert draft.probs is not None
        return _RIGHT_DRAFTED_FROM(draft._replace(probs=jnp.roll(draft.probs, -1, 1)))

    patch.setattr(law, "drafted_from", drafted_from)
    return {}


@FAULTS.add(laws.context, token, "sampled")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The q of another temperature."""

    def drafted_from(draft: Draft) -> tuple[Array | None, Array]:
        flat = jnp.sqrt(jnp.asarray(draft.probs))
        flat = flat / jnp.sum(flat, -1, keepdims=True)
        return _RIGHT_DRAFTED_FROM(draft._replace(probs=flat))

    patch.setattr(law, "drafted_from", drafted_from)
    return {}


@FAULTS.add(laws.context, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The q of the next row."""

    def drafted_from(draft: Draft) -> tuple[Array | None, Array]:
        assert draft.probs is not None
        return _RIGHT_DRAFTED_FROM(draft._replace(probs=jnp.roll(draft.probs, -1, 0)))

    patch.setattr(law, "drafted_from", drafted_from)
    return {}


@FAULTS.add(laws.iid, token, "partial")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The draft ends at k, not at the row's own length: q there is a leftover."""

    def drafted_from(draft: Draft) -> tuple[Array | None, Array]:
        leftover = jnp.nan_to_num(jnp.asarray(draft.probs), nan=1 / 3)
        return leftover, jnp.zeros(draft.tokens.shape, bool)

    patch.setattr(law, "drafted_from", drafted_from)
    return {}


@FAULTS.add(laws.mixed, block, "mixed")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A given token is taken for a drawn one."""

    def drafted_from(draft: Draft) -> tuple[Array | None, Array]:
        probs = jnp.nan_to_num(jnp.asarray(draft.probs), nan=1 / 3)
        return _RIGHT_DRAFTED_FROM(draft._replace(probs=probs, given=None))

    patch.setattr(law, "drafted_from", drafted_from)
    return {}


# --- accepting ---


@FAULTS.add(identity.zero_uniform)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """U q <= p, so that u = 0 accepts a token of probability 0."""

    def verify(draft: Draft, logits: Array, sampling: warp.Sampling, noise: keys.Noise) -> Verdict:
        p, q = warp.apply(sampling, logits), jnp.asarray(draft.probs)
        p_x, q_x = (jax.vmap(law.drafted)(x, draft.tokens) for x in (p, q))
        u = keys.uniforms(noise, 0, keys.ACCEPT, draft.tokens.shape[1])
        accepted = run_length(u * q_x <= p_x, draft.length)
        q = _RIGHT_DRAFTED_FROM(draft)[0]
        rest = jnp.maximum(p - jnp.asarray(q), 0)
        rest = jnp.take_along_axis(rest, accepted[:, None, None], 1)[:, 0]
        drawn = keys.draw(rest, keys.uniforms(noise, 0, keys.RESIDUAL, 2))
        return Verdict(accepted, chain_path(logits), drawn)

    return {"verifier": lambda _: Verifier(verify, "u q <= p", uses_q=True)}


@FAULTS.add(identity.zero_uniform)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """An inverse CDF with >=, so that u = 0 draws an id of weight 0."""

    def first_above(weights: Array, uniform: Array) -> Array:
        cumulative = jnp.cumsum(weights, -1)
        return keys.argmax(cumulative >= uniform[:, None] * cumulative[:, -1:])

    patch.setattr(keys, "first_above", first_above)
    return {}


@FAULTS.add(laws.iid, match, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Match keeps the q of a drawn token: accepted by p / q, else p without it."""

    def residual(node: Array, weight: Array, tokens: Array, p: Array, *rest: Array) -> Array:
        ids = jnp.arange(p.shape[1], dtype=jnp.int32)
        refused = ids == jnp.pad(tokens, (0, 1))[node]
        return jnp.where(refused & (node < rest[-1]), 0, p[node])

    patch.setattr(law, "residual", residual)
    return {"verifier": lambda _: token}


@FAULTS.add(laws.iid, token, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Each token is accepted with twice its chance."""

    def rule(*arguments: Any) -> law.Law:
        stop, weight = token_rule(*arguments)
        twice = jnp.minimum(2 * (1 - jnp.cumsum(stop))[:-1], 1)
        reached = jnp.cumprod(jnp.append(jnp.ones_like(stop[:1]), twice))
        return law.Law(reached - jnp.append(reached[1:], 0), weight)

    return instead(rule)


# --- block ---


@FAULTS.add(laws.iid, block, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Block stopped at the first failure."""

    def rule(tokens: Array, length: Array, p: Array, q: Array | None, given: Array) -> law.Law:
        right = block_rule(tokens, length, p, q, given)
        h = chances(right.stop)
        reached = jnp.cumprod(h)
        return law.Law(reached * (1 - jnp.append(h[1:], 0)), right.weight)

    return instead(rule)


@FAULTS.add(laws.iid, block, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Block with the residual of token verification."""

    def rule(*arguments: Any) -> law.Law:
        return law.Law(block_rule(*arguments).stop, token_rule(*arguments).weight)

    return instead(rule)


@FAULTS.add(laws.iid, block, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Block's last position by the formula of the others."""

    def rule(tokens: Array, length: Array, p: Array, q: Array | None, given: Array) -> law.Law:
        assert q is not None
        # The others see the q that would have been drawn from next.
        beyond = jnp.arange(p.shape[0], dtype=jnp.int32) >= length
        q = jnp.where(beyond[:, None], jnp.asarray(laws.Q, p.dtype), q)
        return block_rule(tokens, length, p, q, given)

    return instead(rule)


@FAULTS.add(laws.iid, block, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Greedy block verification without carrying its target on."""

    def rule(tokens: Array, length: Array, p: Array, q: Array | None, given: Array) -> law.Law:
        assert q is not None
        node = jnp.arange(p.shape[0], dtype=jnp.int32)
        ratio = law.ratio(tokens, length, p, q, given)
        r = jnp.concatenate([jnp.ones([1], p.dtype), jnp.cumprod(ratio)])  # never clipped
        left = jnp.sum(jnp.maximum(r[:, None] * p - q, 0), 1)
        h = jnp.where(r >= 1, 1, left / jnp.maximum(left + 1 - r, 1e-9))
        h = jnp.where(node == length, jnp.minimum(r, 1), h)
        h = jnp.where(node == 0, 1, jnp.where(node <= length, h, 0))
        none_later = jnp.append(jnp.cumprod((1 - h)[::-1])[::-1][1:], jnp.ones([1], p.dtype))
        return law.Law(h * none_later, r)

    return instead(rule)


@FAULTS.add(laws.iid, block, "iid")
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Block's weights without the minimum with 1."""

    def unclipped(weight: Array, ratio: Array) -> tuple[Array, Array]:
        return weight * ratio, weight * ratio

    scan = lax.scan
    patch.setattr(lax, "scan", lambda body, start, xs: scan(unclipped, start, xs))
    return {}


# --- target-first rules ---


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The token after the run is taken one node too early."""

    def turn(right: Verifier) -> Verifier:
        def verify(draft: Draft, logits: Array, *more: Any) -> Verdict:
            verdict = right.verify(draft, logits, *more)
            drawn = keys.argmax(logits)
            before = jnp.maximum(verdict.accepted - 1, 0)
            return verdict._replace(token=jnp.take_along_axis(drawn, before[:, None], 1)[:, 0])

        return right._replace(verify=verify)

    patch.setattr(LOOP, "greedy", turn(greedy))
    return {}


@FAULTS.add(laws.iid, coupled)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Shared noise with the test of p / q: the correction reuses the draft's Gumbel noise."""

    def verify(draft: Draft, logits: Array, sampling: warp.Sampling, noise: keys.Noise) -> Verdict:
        p = warp.apply(sampling, logits)
        q = jnp.broadcast_to(jnp.asarray(laws.Q, p.dtype), p.shape)  # what coupled drafts came from
        draft = draft._replace(probs=q)
        q, given = _RIGHT_DRAFTED_FROM(draft)
        law_ = jax.vmap(token_rule)(draft.tokens, draft.length, p, q, given)
        node = keys.first_above(law_.stop, keys.uniforms(noise, 0, keys.ACCEPT, 1)[:, 0])
        rest = jax.vmap(_RIGHT_RESIDUAL)(node, law_.weight, draft.tokens, p, q, given, draft.length)
        depths = jnp.arange(p.shape[1], dtype=jnp.int32)
        gumbel = keys.target_gumbel(noise, depths, p.shape[2])
        own = jnp.take_along_axis(gumbel, node[:, None, None], 1)[:, 0]
        return Verdict(node, chain_path(logits), keys.argmax(jnp.log(rest) + own))

    return {"verifier": lambda right: right._replace(verify=verify)}
