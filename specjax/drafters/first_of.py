"""Several drafters in turn: in each row, the first that has something to say speaks.

A drafter says nothing by drafting no tokens, so its own threshold is its measure of confidence: the
shortest match that prompt lookup trusts, say. A lookup costs nothing next to a pass, so it goes
first, and heads or a model answer where it is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.draft import Context, Drafter, Params, Prefill, Record
from specjax.drafters import several
from specjax.factory import factory


@factory
def first_of(*drafters: Drafter) -> Drafter:
    """Asks the drafters in their order; a row takes the first draft that isn't empty.

    Rows of a batch may take different drafters', and one row another's in every round. A row that
    has its draft asks nothing of the drafters that follow, and where all rows have theirs those do
    no work. The choice is exact as long as no drafter's *silence* depends on a token it drew: a
    threshold on what is known before drawing is fine.

    State: the drafters' own (see ``several``).

    Args:
      *drafters: at least one; ``drafter_params`` is a tuple with one entry for each (None where it
        takes none).

    Returns:
      The drafter; it drafts as much as the longest of them.

    Raises:
      ValueError: without drafters, or for what is none.
    """
    several.check("first_of", drafters)
    most = max(drafter.num_nodes for drafter in drafters)

    def init(params: Params, prefill: Prefill) -> tuple:
        return several.init("first_of", drafters, params, prefill)

    def propose(params: Params, state: tuple, context: Context, limit: Array) -> tuple:
        limits = jnp.broadcast_to(limit[:, None], (limit.shape[0], len(drafters)))
        turns = several.in_turn(drafters, params, state, context, limits)
        return turns.draft, turns.states, turns.cache

    def update(params: Params, state: tuple, context: Context, record: Record) -> tuple:
        return several.update(drafters, params, state, context, record)

    def learned(params: Params, state: tuple, rows: Array) -> Any:
        return several.learned(drafters, params, state, rows)

    name = " / ".join(drafter.name for drafter in drafters)
    varies = any(drafter.varies for drafter in drafters)
    whole = None
    if any(drafter.whole for drafter in drafters):
        whole = first_of(*(drafter.whole or drafter for drafter in drafters))
    layers = several.layers(drafters)
    reads = any(drafter.reads_logits for drafter in drafters)
    learns = any(drafter.learned for drafter in drafters)
    return Drafter(
        init, propose, update, most, layers, name, varies, whole, reads,
        learned if learns else None, several.parts(drafters), several.settings(drafters),
    )  # fmt: skip


def learn_each(*learn: Callable[[Any, Sequence[int]], Any] | None) -> Callable[..., tuple]:
    """What ``generate_many`` takes as ``learn`` for drafters in turn.

    Args:
      *learn: each drafter's own, such as ``remember``; None for one that learns nothing. Inside of
        ``adaptive`` the tuple is a field: give ``lambda params, tokens:
        params._replace(drafters=each(params.drafters, tokens))`` with ``each = learn_each(...)``.

    Returns:
      ``(drafter_params, tokens) -> drafter_params``, of tuples.

    Raises:
      ValueError: for what can't be called; later, for parameters that are no such tuple.
    """
    for own in learn:
        if not (own is None or callable(own)):
            raise ValueError(f"learn_each: {own!r} can't be called; give remember, say, or None")

    def learned(params: tuple, tokens: Sequence[int]) -> tuple:
        if type(params) is not tuple or len(params) != len(learn):
            given = f" of {len(params)}" if isinstance(params, tuple | list) else ""
            raise ValueError(
                f"learn_each: drafter_params is a {type(params).__name__}{given}; give a tuple of "
                f"{len(learn)} entries, one for each that learn_each was given"
            )
        pairs = zip(learn, params, strict=True)
        return tuple(own(part, tokens) if own else part for own, part in pairs)

    return learned
