"""How long drafts may be: what ``adaptive`` asks before every round, and simple answers to it.

A policy sees what past rounds accepted and nothing of the round it decides on, so whatever it says,
outputs keep the target's law (the law of a submitted token may depend on the past in any way).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.draft import Context
from specjax.factory import factory


class Outcome(NamedTuple):
    """What became of a round; D drafters, of which at most one has a row's draft.

    Attributes:
      active: bool ``[B]``, rows that took part.
      limit: int32 ``[B, D]``, the most that each was asked for; 0: it wasn't asked.
      drafted: int32 ``[B, D]``, the tokens that each drafted.
      accepted: int32 ``[B, D]``, those that were kept.
    """

    active: Array
    limit: Array
    drafted: Array
    accepted: Array


class Policy(NamedTuple):
    """Who may draft in a round, and how much. Make it in a factory that keeps what it made.

    Attributes:
      init: ``(costs, batch, drafters, nodes) -> state``; every array's first axis is the batch.
        ``costs``: see ``prospects.Costs``; None if there are none.
      choose: ``(costs, state, context) -> limits [B, D]``, int32: how much each drafter may be
        asked for (0: it isn't asked), or ``[B, 1]``, the same for all; a limit above what a drafter
        drafts means all of it.
      learn: ``(costs, state, outcome) -> state``.
      name: for tables.
      needs_costs: whether it asks for ``prospects.Costs``.
      learned: ``(costs, state, rows) -> costs``, what the next run may expect after these rows
        (bool ``[B]``) of this one; None: as much as before.
    """

    init: Callable[[Any, int, int, int], Any]
    choose: Callable[[Any, Any, Context], Array]
    learn: Callable[[Any, Any, Outcome], Any]
    name: str
    needs_costs: bool = False
    learned: Callable[[Any, Any, Array], Any] | None = None


@factory
def fixed(k: int) -> Policy:
    """Always up to k tokens; 0: never any.

    Raises:
      ValueError: for a negative k.
    """
    if k < 0:
        raise ValueError(f"fixed: k={k}; it must be 0 (no drafts) or more")
    return by_batch(((1, k),))


def by_batch(table: Sequence[tuple[int, int]]) -> Policy:
    """A draft length by batch size, as engines let users write down.

    Args:
      table: pairs ``(batch, k)``, ascending: from that batch size on, k tokens; below the first, 0.

    Raises:
      ValueError: for batches that don't ascend from at least 1, or a negative k.
    """
    try:
        pairs = [(operator.index(batch), operator.index(k)) for batch, k in table]
    except (TypeError, ValueError):
        raise ValueError(
            f"by_batch: {table!r} is no table; give pairs of ints (batch, k), such as ((1, 5), "
            "(8, 2))"
        ) from None
    batches = [batch for batch, _ in pairs]
    if not table or batches != sorted(set(batches)) or batches[0] < 1:
        raise ValueError(f"by_batch: batches {batches}; they must ascend from at least 1")
    for batch, k in pairs:
        if k < 0:
            raise ValueError(f"by_batch: k={k} from batch {batch} on; it must be 0 or more")
    return _by_batch(tuple(pairs))


@factory
def _by_batch(table: tuple[tuple[int, int], ...]) -> Policy:
    def init(costs: Any, batch: int, drafters: int, nodes: int) -> tuple[()]:
        del costs, batch, drafters, nodes
        return ()

    def choose(costs: Any, state: tuple[()], context: Context) -> Array:
        del costs, state
        rows = context.length.shape[0]
        k = next((k for batch, k in reversed(table) if batch <= rows), 0)
        return jnp.full([rows, 1], k, jnp.int32)

    def learn(costs: Any, state: tuple[()], outcome: Outcome) -> tuple[()]:
        del costs, outcome
        return state

    return Policy(init, choose, learn, "by batch" if len(table) > 1 else f"fixed {table[0][1]}")


@factory
def heuristic(first: int = 5, *, up: int = 2, down: int = 1) -> Policy:
    """Two more after a draft that was kept whole, else one fewer, at least one; row by row.

    The schedule that Hugging Face's assisted generation calls "heuristic". It knows no cost, so it
    can't stop drafting where that doesn't pay.

    Args:
      first: tokens of the first draft.
      up: added after a whole draft.
      down: taken off after any other.

    Raises:
      ValueError: for a ``first`` below 1, or a negative step.
    """
    if first < 1 or up < 0 or down < 0:
        raise ValueError(
            f"heuristic: first={first}, up={up}, down={down}; first must be at least 1, and the "
            "steps 0 or more"
        )

    def init(costs: Any, batch: int, drafters: int, nodes: int) -> Array:
        del costs, drafters
        return jnp.full([batch], min(first, nodes), jnp.int32)

    def choose(costs: Any, state: Array, context: Context) -> Array:
        del costs, context
        return state[:, None]

    def learn(costs: Any, state: Array, outcome: Outcome) -> Array:
        del costs
        spoke = outcome.drafted > 0  # [B, D], one a row at most
        whole = jnp.any(spoke & (outcome.accepted >= outcome.drafted), 1)
        # From what it could draft, or it would grow without end.
        longer = jnp.max(jnp.where(spoke, outcome.limit, 0), 1) + up
        after = jnp.where(whole, longer, jnp.maximum(state - down, 1))
        return jnp.where(outcome.active & jnp.any(spoke, 1), after, state)

    return Policy(init, choose, learn, "heuristic")
