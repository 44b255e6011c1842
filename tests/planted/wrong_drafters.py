"""Planted faults of drafters that work together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array

from specjax.draft import Draft
from specjax.drafters import several
from specjax.verify import block, token
from tests.planted import identity, laws
from tests.planted.fault import CORPUS, Faults

FAULTS = Faults()
Parts = dict[str, Any]

_RIGHT_EITHER = several.either
_RIGHT_CHAIN = CORPUS.draw_chain


def _drawn(draft: Draft) -> Draft:
    """The draft, claiming that its tokens were drawn."""
    if draft.probs is None:
        return draft
    return draft._replace(given=jnp.zeros(draft.tokens.shape, bool))


def _against(patch: pytest.MonkeyPatch, q: Callable[[Draft, Draft], Array | None]) -> Parts:
    """Given tokens pass as drawn, from ``q(ours, theirs)``."""

    def either(first: Array, ours: Draft, theirs: Draft) -> Draft:
        out, probs = _RIGHT_EITHER(first, ours, theirs), q(ours, theirs)
        return out if probs is None else _drawn(out)._replace(probs=probs)

    patch.setattr(several, "either", either)
    return {}


@FAULTS.add(laws.in_turn, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A given draft is tested against the q of the drafter that was not asked."""
    return _against(patch, lambda ours, theirs: ours.probs)


@FAULTS.add(laws.limited, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """What a look-up gives is tested as if the model, which has a limit too, had drawn it."""
    return _against(patch, lambda ours, theirs: ours.probs)


@FAULTS.add(laws.in_turn, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A drafter falls silent by the token it drew."""

    def either(first: Array, ours: Draft, theirs: Draft) -> Draft:
        if ours.probs is not None:
            ours = ours._replace(length=jnp.where(ours.tokens[:, 0] == 1, 0, ours.length))
        return _RIGHT_EITHER(first, ours, theirs)

    patch.setattr(several, "either", either)
    return {}


@FAULTS.add(identity.right_in_turn)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A draft model takes the round's draft for its own, and keeps what it did not see."""

    def turn(drafter: Any) -> Any:
        def update(params: Any, state: Any, context: Any, record: Any) -> Any:
            own = record.draft.tokens[:, : state.drafted.shape[1]]
            state = state._replace(drafted=own, length=record.draft.length)
            return drafter.update(params, state, context, record)

        return drafter._replace(update=update)

    return {"drafter": turn}


def _updating(change: Callable[[Any, Any], Any]) -> Parts:
    """A drafter whose update sees another record: ``change(context, record)``."""

    def turn(drafter: Any) -> Any:
        def update(params: Any, state: Any, context: Any, record: Any) -> Any:
            return drafter.update(params, state, context, change(context, record))

        return drafter._replace(update=update)

    return {"drafter": turn}


@FAULTS.add(identity.heads_in_place)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Medusa heads draft shifted by one: head n guesses node n + 1."""

    def turn(drafter: Any) -> Any:
        def propose(*arguments: Any) -> Any:
            draft, state, cache = drafter.propose(*arguments)
            return draft._replace(tokens=jnp.roll(draft.tokens, 1, 1)), state, cache

        return drafter._replace(propose=propose)

    return {"drafter": turn}


@FAULTS.add(identity.heads_in_place)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Medusa heads go on from the last node drafted, accepted or not."""

    def change(context: Any, record: Any) -> Any:
        path = jnp.broadcast_to(record.draft.length[:, None], record.verdict.path.shape)
        return record._replace(verdict=record.verdict._replace(path=path))

    return _updating(change)


@FAULTS.add(identity.heads_in_place)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Medusa heads go on from the node before the last accepted one."""

    def change(context: Any, record: Any) -> Any:
        path = jnp.maximum(record.verdict.path - 1, 0)
        return record._replace(verdict=record.verdict._replace(path=path))

    return _updating(change)


@FAULTS.add(laws.heads, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A Medusa head's token is tested against the q of another head."""

    def turn(drafter: Any) -> Any:
        def propose(*arguments: Any) -> Any:
            draft, state, cache = drafter.propose(*arguments)
            # The last row stays zero: of a draft that is accepted whole.
            probs = draft.probs.at[:, :-1].set(jnp.roll(draft.probs[:, :-1], 1, 1))
            return draft._replace(probs=probs), state, cache

        return drafter._replace(propose=propose)

    return {"drafter": turn}


def _proposing(change: Callable[[Draft, Any], Draft]) -> Parts:
    """A drafter whose drafts are changed: ``change(draft, context)``."""

    def turn(drafter: Any) -> Any:
        def propose(params: Any, state: Any, context: Any, limit: Any) -> Any:
            draft, state, cache = drafter.propose(params, state, context, limit)
            return change(draft, context), state, cache

        return drafter._replace(propose=propose)

    return {"drafter": turn}


def _dropping_improbable(least: float) -> Parts:
    """A draft ends before the first token whose own q is not above ``least``."""

    def change(draft: Draft, context: Any) -> Draft:
        drawn = jnp.take_along_axis(draft.probs[:, :-1], draft.tokens[:, :, None], 2)[:, :, 0]
        kept = jnp.sum(jnp.cumprod(drawn > least, 1, dtype=jnp.int32), 1, dtype=jnp.int32)
        return draft._replace(length=jnp.minimum(draft.length, kept))

    return _proposing(change)


def _silent_after_drawing() -> Parts:
    """Nothing is drafted where the first token drawn is 1."""
    return _proposing(
        lambda draft, context: draft._replace(
            length=jnp.where(draft.tokens[:, 0] == 1, 0, draft.length)
        )
    )


@FAULTS.add(laws.counted, block)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A token drawn from a corpus' counts is dropped because it turned out improbable."""
    return _dropping_improbable(0.4)


@FAULTS.add(laws.unsure, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A corpus leaves the row to another drafter because of the token it drew."""
    return _silent_after_drawing()


@FAULTS.add(laws.counted, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A corpus' most frequent continuation is chosen and passes as drawn from the counts."""

    def change(draft: Draft, context: Any) -> Draft:
        best = jnp.argmax(draft.probs[:, 0], -1).astype(jnp.int32)
        return draft._replace(tokens=draft.tokens.at[:, 0].set(best))

    return _proposing(change)


@FAULTS.add(laws.counted, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The counts that tokens were drawn from are not divided by their sum."""
    return _proposing(lambda draft, context: draft._replace(probs=2 * draft.probs))


@FAULTS.add(laws.controlled, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A controller sees the first token that was drawn, and decides that more doesn't pay."""
    return _silent_after_drawing()


@FAULTS.add(laws.controlled, block)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A controller ends a draft after a token that turned out improbable, and drops that."""
    return _dropping_improbable(0.3)


def _reading(change: Callable[[Any], Any]) -> Parts:
    """A drafter that sees another context: ``change(context)``."""

    def turn(drafter: Any) -> Any:
        def propose(params: Any, state: Any, context: Any, limit: Any) -> Any:
            return drafter.propose(params, state, change(context), limit)

        return drafter._replace(propose=propose)

    return {"drafter": turn}


@FAULTS.add(identity.known_text)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A corpus is asked what follows the token before the pending one."""
    return _reading(lambda context: context._replace(length=context.length - 1))


@FAULTS.add(identity.known_text)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A corpus is asked without the pending token."""

    def change(context: Any) -> Any:
        at = jnp.arange(context.tokens.shape[1]) == context.length[:, None] - 1
        return context._replace(tokens=jnp.where(at, 0, context.tokens))

    return _reading(change)


@FAULTS.add(identity.known_text)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A draft goes on from the first token of itself, again and again."""

    def draw_chain(
        draw: Any, limit: Any, k: int, guess: Any, state: Any, step: Any, **more: Any
    ) -> Any:
        def again(state: Any, last: Any) -> Any:
            return step(state, last)[0], state

        return _RIGHT_CHAIN(draw, limit, k, guess, state, again, **more)

    patch.setattr(CORPUS, "draw_chain", draw_chain)
    # A factory gives what it gave before, unless it is asked for something new.
    CORPUS.corpus.__wrapped__.cache_clear()
    return {}
