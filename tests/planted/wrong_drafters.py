"""Planted faults of drafters that work together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array

from specjax.draft import Draft
from specjax.verify import token
from tests.planted import identity, laws
from tests.planted.fault import FIRST_OF, Faults

FAULTS = Faults()
Parts = dict[str, Any]

_RIGHT_EITHER = FIRST_OF._either  # type: ignore[attr-defined]


def _drawn(draft: Draft) -> Draft:
    """The draft, claiming that its tokens were drawn."""
    if draft.probs is None:
        return draft
    return draft._replace(given=jnp.zeros(draft.tokens.shape, bool))


@FAULTS.add(laws.in_turn, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A given draft is tested against the q of the drafter that was not asked."""

    def either(first: Array, ours: Draft, theirs: Draft) -> Draft:
        out = _RIGHT_EITHER(first, ours, theirs)
        return out if ours.probs is None else _drawn(out)._replace(probs=ours.probs)

    patch.setattr(FIRST_OF, "_either", either)
    return {}


@FAULTS.add(laws.in_turn, token)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A drafter falls silent by the token it drew."""

    def either(first: Array, ours: Draft, theirs: Draft) -> Draft:
        if ours.probs is not None:
            ours = ours._replace(length=jnp.where(ours.tokens[:, 0] == 1, 0, ours.length))
        return _RIGHT_EITHER(first, ours, theirs)

    patch.setattr(FIRST_OF, "_either", either)
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
