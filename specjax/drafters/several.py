"""What drafters made of several others share: states and features side by side, and one draft.

Their parameters and states are tuples with one entry for each. Every drafter is told of every
round, so each must restore its invariant from the record, whosever draft is in it (those of this
library do).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record


def check(name: str, drafters: tuple[Drafter, ...]) -> None:
    """Raises ValueError where they are not one drafter or more; says so of ``name``."""
    if not drafters:
        raise ValueError(f"{name}: no drafters; give at least one, such as ngram(10, n_min=3)")
    for drafter in drafters:
        if not isinstance(drafter, Drafter):
            raise ValueError(
                f"{name}: {drafter!r} is no drafter; give drafters one by one, such as "
                f"{name}(ngram(10), eagle(config, 3))"
            )


def own(params: Params, number: int) -> Params:
    """The parameters with those of one drafter, where the drafter's are a tuple."""
    return params._replace(drafter=params.drafter[number])


def layers(drafters: tuple[Drafter, ...]) -> tuple[int, ...]:
    """The features all of them want; ``own_features`` takes them apart again."""
    return tuple(layer for drafter in drafters for layer in drafter.layers)


def init(name: str, drafters: tuple[Drafter, ...], params: Params, prefill: Prefill) -> tuple:
    """The states of all.

    Raises:
      ValueError: the parameters are no tuple with one entry for each; says so of ``name``.
    """
    given = params.drafter
    plain = type(given) in (tuple, list)  # a drafter's own parameters may be a named tuple
    if not plain or len(given) != len(drafters):
        what = f"holds {len(given)} entries" if plain else "is no tuple"
        raise ValueError(
            f"{name}: drafter_params {what}; give a tuple with one entry for each of the "
            f"{len(drafters)} drafters (None for one that takes none)"
        )
    parts = own_features(drafters, prefill.features)
    return tuple(
        drafter.init(own(params, i), prefill._replace(features=part))
        for i, (drafter, part) in enumerate(zip(drafters, parts, strict=True))
    )


class Turns(NamedTuple):
    """One round of drafters that are asked in turn. D drafters.

    Attributes:
      draft: of each row that of the first who had one, or of nobody.
      states: their states.
      cache: the target's, which some share.
      asked: int32 ``[B, D]``, the most that each was asked for.
      drafted: int32 ``[B, D]``, the tokens of each's draft: of all but one in a row 0.
    """

    draft: Draft
    states: tuple
    cache: Any
    asked: Array
    drafted: Array


def in_turn(
    drafters: tuple[Drafter, ...], params: Params, state: tuple, context: Context, limits: Array
) -> Turns:
    """Asks the drafters in their order, each in the rows that have no draft yet.

    Args:
      drafters: one or more.
      params: their parameters.
      state: their states.
      context: as for ``Drafter.propose``.
      limits: int32 ``[B, D]``, the most that each may be asked for; 0: it isn't asked.
    """
    nodes = max(drafter.num_nodes for drafter in drafters)
    none = jnp.zeros(limits.shape[:1], jnp.int32)
    draft = Draft(jnp.zeros([none.size, nodes], jnp.int32), none, part=none - 1)
    states, asked, drafted = [], [], []
    for i, drafter in enumerate(drafters):
        silent = draft.length == 0
        most = jnp.where(silent, jnp.minimum(limits[:, i], drafter.num_nodes), 0)
        theirs, new, cache = drafter.propose(own(params, i), state[i], context, most)
        theirs, somebody = of_part(drafters, i, padded(theirs, nodes))
        mine = silent & (most > 0) & somebody
        draft = either(mine, theirs, draft)
        states.append(new)
        asked.append(most)
        drafted.append(jnp.where(mine, theirs.length, 0))
        context = context._replace(cache=cache)
    return Turns(draft, tuple(states), context.cache, jnp.stack(asked, 1), jnp.stack(drafted, 1))


def update(
    drafters: tuple[Drafter, ...], params: Params, state: tuple, context: Context, record: Record
) -> tuple:
    """The states of all after a round."""
    parts = own_features(drafters, record.features)
    return tuple(
        drafter.update(own(params, i), state[i], context, record._replace(features=part))
        for i, (drafter, part) in enumerate(zip(drafters, parts, strict=True))
    )


def learned(drafters: tuple[Drafter, ...], params: Params, state: tuple, rows: Array) -> Any:
    """Their parameters for the next run (see ``Drafter.learned``)."""
    return type(params.drafter)(
        drafter.learned(own(params, i), state[i], rows) if drafter.learned else params.drafter[i]
        for i, drafter in enumerate(drafters)
    )


def settings(drafters: tuple[Drafter, ...]) -> str:
    """The settings of all."""
    given = [drafter.settings for drafter in drafters]
    return " / ".join(given) if any(given) else ""


def parts(drafters: tuple[Drafter, ...]) -> tuple[Drafter, ...]:
    """All that they are made of."""
    return tuple(part for drafter in drafters for part in drafter.parts or (drafter,))


def of_part(drafters: tuple[Drafter, ...], number: int, draft: Draft) -> tuple[Draft, Array]:
    """One drafter's draft, with its place among all parts; bool ``[B]``, whether it was asked.

    A drafter that is a controller around others may ask nobody.
    """
    before = len(parts(drafters[:number]))
    part = jnp.zeros_like(draft.length) if draft.part is None else draft.part
    return draft._replace(part=jnp.where(part < 0, -1, part + before)), part >= 0


def own_features(drafters: tuple[Drafter, ...], features: Array | None) -> list[Array | None]:
    """Each drafter's part of ``[..., F]``: the streams of its own layers."""
    if features is None:
        return [None] * len(drafters)
    total = sum(len(drafter.layers) for drafter in drafters)
    width, at, parts = features.shape[-1] // total, 0, []
    for drafter in drafters:
        size = width * len(drafter.layers)
        parts.append(features[..., at : at + size] if size else None)
        at += size
    return parts


def padded(draft: Draft, nodes: int) -> Draft:
    """The draft with room for ``nodes`` tokens."""
    more = nodes - draft.tokens.shape[1]

    def pad(x: Array | None) -> Array | None:
        return None if x is None else jnp.pad(x, ((0, 0), (0, more)) + ((0, 0),) * (x.ndim - 2))

    tokens = jnp.pad(draft.tokens, ((0, 0), (0, more)))
    return Draft(tokens, draft.length, pad(draft.probs), pad(draft.given), draft.part)


def either(first: Array, ours: Draft, theirs: Draft) -> Draft:
    """Row by row, ``ours`` where ``first [B]``, else ``theirs``; both of equally many nodes.

    Both say which part's they are (``of_part``).
    """
    assert ours.part is not None and theirs.part is not None
    part = jnp.where(first, ours.part, theirs.part)
    rows = first[:, None]
    tokens = jnp.where(rows, ours.tokens, theirs.tokens)
    length = jnp.where(first, ours.length, theirs.length)
    if ours.probs is None and theirs.probs is None:
        return Draft(tokens, length, part=part)
    probs = theirs.probs if ours.probs is None else ours.probs  # given tokens have no q
    if ours.probs is not None and theirs.probs is not None:
        probs = jnp.where(rows[:, :, None], ours.probs, theirs.probs)
    given = jnp.where(rows, _given(ours), _given(theirs))
    return Draft(tokens, length, probs, given, part)


def _given(draft: Draft) -> Array:
    if draft.given is not None:
        return draft.given
    return jnp.full(draft.tokens.shape, draft.probs is None)
