"""Planted faults of suffix decoding: drafts that nobody meant, though the output stays right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from specjax.draft import Draft
from specjax.drafters import PastOutputs
from tests.planted import identity
from tests.planted.fault import GENERATE, SUFFIX, Faults

FAULTS = Faults()
Parts = dict[str, Any]

_RIGHT_PLACES = SUFFIX._places  # type: ignore[attr-defined]
_RIGHT_LONGER = SUFFIX._longer  # type: ignore[attr-defined]
_RIGHT_PAST = SUFFIX._past_continuations  # type: ignore[attr-defined]
_RIGHT_OWN = SUFFIX._own_continuations  # type: ignore[attr-defined]
_RIGHT_VOTE = SUFFIX._most_frequent  # type: ignore[attr-defined]
_RIGHT_REMEMBER = SUFFIX.remember  # type: ignore[attr-defined]


def _remembering(patch: pytest.MonkeyPatch, change: Callable[[list, list], list]) -> Parts:
    """``change(held, output) -> held``, lists of any length; the last ones stay."""

    def remember(past: PastOutputs, tokens: Any) -> PastOutputs:
        held = change(past.tokens.tolist(), list(tokens))[-past.tokens.shape[0] :]
        return PastOutputs(jnp.array(held, jnp.int32))

    patch.setattr(SUFFIX, "remember", remember)
    return {}


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Past outputs follow each other without an end: matches and drafts run across."""
    return _remembering(patch, lambda held, output: [*held[:-1], *output, -1])


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A draft runs across the end of a past output."""

    def continuations(past: Array, source: Array, k: int) -> Array:
        more = _RIGHT_PAST(past, source, k + 1)
        ended = jnp.cumsum((more == SUFFIX.NOTHING).astype(jnp.int32), 2) > 0
        return jnp.where(ended[:, :, :-1], more[:, :, 1:], more[:, :, :-1])

    patch.setattr(SUFFIX, "_past_continuations", continuations)
    return {}


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A full past forgets the newest output instead of the oldest."""
    return _remembering(patch, lambda held, output: held if held[0] >= 0 else [*held, *output, -1])


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """An output is remembered backwards."""

    def remember(past: PastOutputs, tokens: Any) -> PastOutputs:
        return _RIGHT_REMEMBER(past, list(tokens)[::-1])

    patch.setattr(SUFFIX, "remember", remember)
    return {}


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Stale tokens past a row's length are searched too."""
    patch.setattr(SUFFIX, "only_text", lambda tokens, length: tokens)
    return {}


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """At equal length the past outputs win."""

    def longer(own: Any, old: Any) -> Any:
        places, in_old = _RIGHT_LONGER(old, own)
        return places, ~in_old

    patch.setattr(SUFFIX, "_longer", longer)
    return {}


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A row's own text wins against a longer match in the past."""

    def longer(own: Any, old: Any) -> Any:
        weak = jnp.where(own.matched > 0, 0, old.matched)
        return _RIGHT_LONGER(own, old._replace(matched=weak))

    patch.setattr(SUFFIX, "_longer", longer)
    return {}


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The places of shorter matches vote too."""

    def places(*arguments: Array) -> Any:
        out = _RIGHT_PLACES(*arguments)
        return out._replace(stands=out.source > 0)

    patch.setattr(SUFFIX, "_places", places)
    return {}


@FAULTS.add(identity.goes_round)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A match in the row runs past its end instead of going on through the draft."""

    def continuations(tokens: Array, length: Array, source: Array, k: int) -> Array:
        return _RIGHT_OWN(tokens, length + tokens.shape[1], source, k)

    patch.setattr(SUFFIX, "_own_continuations", continuations)
    return {}


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A draft starts one slot late."""

    def continuations(past: Array, source: Array, k: int) -> Array:
        return _RIGHT_PAST(past, source + 1, k)

    patch.setattr(SUFFIX, "_past_continuations", continuations)
    return {}


def _voting(patch: pytest.MonkeyPatch, change: Callable[..., Draft]) -> Parts:
    patch.setattr(SUFFIX, "_most_frequent", change)
    return {}


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """The latest place decides alone."""

    def vote(follows: Array, source: Array, votes: Array, *rest: Any) -> Draft:
        latest = jnp.max(jnp.where(votes, source, 0), 1, keepdims=True)
        return _RIGHT_VOTE(follows, source, votes & (source == latest), *rest)

    return _voting(patch, vote)


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Of equally frequent tokens the earliest is drafted."""

    def vote(follows: Array, source: Array, *rest: Any) -> Draft:
        return _RIGHT_VOTE(follows, jnp.max(source, 1, keepdims=True) - source, *rest)

    return _voting(patch, vote)


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Continuations that disagreed with the draft go on voting."""

    def vote(follows: Array, source: Array, votes: Array, most: Array, min_prob: float) -> Draft:
        one = jnp.minimum(most, 1)
        nodes = [
            _RIGHT_VOTE(follows[:, :, t : t + 1], source, votes, one, min_prob)
            for t in range(follows.shape[2])
        ]
        tokens = jnp.concatenate([node.tokens for node in nodes], 1)
        alive = jnp.cumprod(jnp.stack([node.length for node in nodes], 1), 1)
        return Draft(tokens, jnp.minimum(jnp.sum(alive, 1, dtype=jnp.int32), most))

    return _voting(patch, vote)


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A draft goes on however few agree."""

    def vote(follows: Array, source: Array, votes: Array, most: Array, min_prob: float) -> Draft:
        del min_prob
        return _RIGHT_VOTE(follows, source, votes, most, 0.0)

    return _voting(patch, vote)


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Places whose output ends within the draft have no vote where others go on."""

    def vote(follows: Array, source: Array, votes: Array, *rest: Any) -> Draft:
        lasting = votes & ~jnp.any(follows == SUFFIX.NOTHING, 2)
        some = jnp.any(lasting, 1, keepdims=True)
        return _RIGHT_VOTE(follows, source, jnp.where(some, lasting, votes), *rest)

    return _voting(patch, vote)


@FAULTS.add(identity.votes)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """A draft ignores the limit, and so the budget."""

    def turn(drafter: Any) -> Any:
        def propose(params: Any, state: Any, context: Any, limit: Array) -> Any:
            most = jnp.full_like(limit, drafter.num_nodes)
            return drafter.propose(params, state, context, most)

        return drafter._replace(propose=propose)

    return {"drafter": turn}


@FAULTS.add(identity.learned)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """What an answer teaches comes one answer late."""
    late: list[Any] = []
    right = GENERATE._Rows._learn_from  # type: ignore[attr-defined]

    def learn_from(self: Any, finished: list) -> None:
        late.extend(finished)
        if len(late) > 1:
            right(self, [late.pop(0)])

    patch.setattr(GENERATE._Rows, "_learn_from", learn_from)  # type: ignore[attr-defined]
    return {}


@FAULTS.add(identity.learned)
def _(patch: pytest.MonkeyPatch) -> Parts:
    """Only the last answer is remembered."""
    return _remembering(patch, lambda held, output: [*np.full_like(held, -1), *output, -1])
