"""Planted faults of the cache and the loop."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array

from specjax import cache as kv
from specjax import keys, round, scoring, stats
from specjax.draft import Draft, Verdict
from specjax.target import Target
from tests.planted import identity
from tests.planted.fault import DRAFT_MODEL, LOOP, Faults

FAULTS = Faults()
Parts = dict[str, Any]

_RIGHT_COMMITTED = round._committed


def rolled(shift: int) -> Parts:
    """A target that rolls back to the wrong length."""
    return {
        "target": lambda right: right._replace(
            rollback=lambda cache, length: kv.rollback(cache, jnp.maximum(length + shift, 0))
        )
    }


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Rolled back one too short."""
    return rolled(-1)


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Rolled back one too long."""
    return rolled(1)


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Never rolled back."""
    return {"target": lambda right: right._replace(rollback=lambda cache, length: cache)}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A mask that shows stale slots: what a longer draft left behind the new tokens."""

    def turn(right: Target) -> Target:
        def apply(params: Any, tokens: Array, cache: Any, **more: Any) -> tuple:
            count, batch = tokens.shape[1], tokens.shape[0]
            behind = cache.length[:, None] + count + jnp.arange(2, dtype=jnp.int32)
            behind = jnp.minimum(behind, cache.tokens.shape[1] - 1)
            old, at = (jnp.take_along_axis(x, behind, 1) for x in (cache.tokens, cache.positions))
            mask = jnp.tril(jnp.ones((batch, count + 2, count + 2), bool))
            mask = mask.at[:, :, count:].set((at > 0)[:, None, :])  # only slots that were written
            slots = cache.length[:, None] + jnp.arange(count + 2, dtype=jnp.int32)
            both = jnp.concatenate([tokens, old], 1)
            logits, features, after = right.apply(
                params, both, cache, positions=slots, mask=mask, **more
            )
            kept = slice(None), slice(None, count)
            after = after._replace(length=cache.length + count)
            return logits[kept], None if features is None else features[kept], after

        return right._replace(apply=apply)

    return {"target": turn}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """New tokens see the ones after them."""

    def turn(right: Target) -> Target:
        def apply(params: Any, tokens: Array, cache: Any, **more: Any) -> tuple:
            mask = jnp.ones((1, tokens.shape[1], tokens.shape[1]), bool)
            return right.apply(params, tokens, cache, **{"mask": mask} | more)

        return right._replace(apply=apply)

    return {"target": turn}


@FAULTS.add(identity.always_right)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A hole in the draft model's cache after a full run: its last token is never fed."""

    def catch_up(
        model: Target, params: Any, cache: Any, context: Any, asked: Any
    ) -> tuple[Array, Any]:
        del asked
        last = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, 1)
        logits, _, cache = model.apply(params, last, cache)
        return logits[:, 0], cache

    patch.setattr(DRAFT_MODEL, "_catch_up", catch_up)
    return {}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The prompt's last token is prefilled too, and then passed again."""
    right = LOOP.prefill  # type: ignore[attr-defined]

    def prefill(
        target: Any, params: Any, tokens: Array, length: Array, *rest: Any, **more: Any
    ) -> Any:
        return right(target, params, tokens, length + 1, *rest, **more)

    patch.setattr(LOOP, "prefill", prefill)
    return {}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """An EOS inside a run is ignored."""

    def committed(request: Any, length: Array, draft: Draft, verdict: Verdict) -> tuple:
        none = jnp.zeros([0], jnp.int32)
        tokens, count, _ = _RIGHT_COMMITTED(request._replace(eos_ids=none), length, draft, verdict)
        last = jnp.take_along_axis(tokens, count[:, None] - 1, 1)
        return tokens, count, jnp.any(last == request.eos_ids, 1)

    patch.setattr(round, "_committed", committed)
    return {}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The EOS itself is not emitted."""

    def committed(request: Any, length: Array, draft: Draft, verdict: Verdict) -> tuple:
        tokens, count, ended = _RIGHT_COMMITTED(request, length, draft, verdict)
        return tokens, jnp.where(ended, count - 1, count), ended

    patch.setattr(round, "_committed", committed)
    return {}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A budget off by one."""

    def committed(request: Any, *rest: Any) -> tuple:
        return _RIGHT_COMMITTED(request._replace(end=request.end + 1), *rest)

    right = round.propose

    def propose(engine: Any, params: Any, request: Any, *rest: Any) -> tuple:
        return right(engine, params, request._replace(end=request.end + 1), *rest)

    patch.setattr(round, "_committed", committed)
    patch.setattr(round, "propose", propose)
    return {}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The correction replaces the last accepted token."""

    def committed(request: Any, length: Array, draft: Draft, verdict: Verdict) -> tuple:
        fewer = verdict._replace(accepted=jnp.maximum(verdict.accepted - 1, 0))
        return _RIGHT_COMMITTED(request, length, draft, fewer)

    patch.setattr(round, "_committed", committed)
    return {}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A pass one token too narrow: nobody looks after the last draft token."""
    right = scoring.score

    def score(
        engine: Any, params: Any, request: Any, state: Any, draft: Draft, noise: Any
    ) -> tuple:
        short = draft._replace(length=jnp.maximum(draft.length - 1, 0))
        scored, cache, width = right(engine, params, request, state, short, noise)
        verdict = scored.verdict
        unseen = (verdict.accepted == short.length) & (draft.length > 0)
        verdict = verdict._replace(accepted=verdict.accepted + unseen.astype(jnp.int32))
        return scored._replace(verdict=verdict), cache, width

    patch.setattr(scoring, "score", score)
    return {}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Padded ids of a wider head are emitted."""

    def turn(right: Target) -> Target:
        def apply(*arguments: Any, **more: Any) -> tuple:
            logits, features, cache = right.apply(*arguments, **more)
            padding = jnp.full((*logits.shape[:2], 1), jnp.max(logits) + 1)
            return jnp.concatenate([logits, padding], -1), features, cache

        return right._replace(apply=apply, vocab_size=right.vocab_size + 1)

    return {"target": turn}


@FAULTS.add(identity.rounds)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A finished row's counters go on."""
    right = stats.count

    def count(before: stats.Stats, *, active: Array, **more: Any) -> stats.Stats:
        return right(before, active=jnp.ones_like(active), **more)

    patch.setattr(stats, "count", count)
    return {}


@FAULTS.add(identity.greedy)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Ties go to the last id, in drafts and in the target (the reference takes the first)."""

    def last(values: Array) -> Array:
        index = jnp.arange(values.shape[-1], dtype=jnp.int32)
        rounded = jnp.round(values)  # so that there are ties
        return jnp.max(jnp.where(rounded == jnp.max(rounded, -1, keepdims=True), index, 0), -1)

    patch.setattr(keys, "argmax", last)
    return {}
