"""Several drafters in turn: in each row, the first that has something to say speaks.

A drafter says nothing by drafting no tokens, so its own threshold is its measure of confidence: the
shortest match that prompt lookup trusts, say. A lookup costs nothing next to a pass, so it goes
first, and heads or a model answer where it is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record


@cache
def first_of(*drafters: Drafter) -> Drafter:
    """Asks the drafters in their order; a row takes the first draft that isn't empty.

    Rows of a batch may take different drafters', and one row another's in every round. A row that
    has its draft asks nothing of the drafters that follow, and where all rows have theirs those do
    no work. The choice is exact as long as no drafter's *silence* depends on a token it drew: a
    threshold on what is known before drawing is fine.

    State: the drafters' own. Every drafter is told of every round, so each must restore its
    invariant from the record, whosever draft is in it (those of this library do).

    Args:
      *drafters: at least one; ``drafter_params`` is a tuple with one entry for each (None where it
        takes none).

    Returns:
      The drafter; it drafts as much as the longest of them.

    Raises:
      ValueError: without drafters.
    """
    if not drafters:
        raise ValueError("first_of: no drafters; give at least one, such as ngram(10, n_min=3)")
    most = max(drafter.num_nodes for drafter in drafters)
    layers = tuple(layer for drafter in drafters for layer in drafter.layers)

    def own(params: Params, number: int) -> Params:
        return params._replace(drafter=params.drafter[number])

    def init(params: Params, prefill: Prefill) -> tuple:
        given = params.drafter
        plain = type(given) in (tuple, list)  # a drafter's own parameters may be a named tuple
        if not plain or len(given) != len(drafters):
            what = f"holds {len(given)} entries" if plain else "is no tuple"
            raise ValueError(
                f"first_of: drafter_params {what}; give a tuple with one entry for each of the "
                f"{len(drafters)} drafters (None for one that takes none)"
            )
        parts = _own_features(drafters, prefill.features)
        return tuple(
            drafter.init(own(params, i), prefill._replace(features=part))
            for i, (drafter, part) in enumerate(zip(drafters, parts, strict=True))
        )

    def propose(params: Params, state: tuple, context: Context, limit: Array) -> tuple:
        draft = Draft(jnp.zeros([limit.shape[0], most], jnp.int32), jnp.zeros_like(limit))
        after = []
        for i, drafter in enumerate(drafters):
            silent = draft.length == 0
            most_of_it = jnp.where(silent, jnp.minimum(limit, drafter.num_nodes), 0)
            theirs, new, cache = drafter.propose(own(params, i), state[i], context, most_of_it)
            draft = _either(silent, _padded(theirs, most), draft)
            after.append(new)
            context = context._replace(cache=cache)
        return draft, tuple(after), context.cache

    def update(params: Params, state: tuple, context: Context, record: Record) -> tuple:
        parts = _own_features(drafters, record.features)
        return tuple(
            drafter.update(own(params, i), state[i], context, record._replace(features=part))
            for i, (drafter, part) in enumerate(zip(drafters, parts, strict=True))
        )

    name = " / ".join(drafter.name for drafter in drafters)
    varies = any(drafter.varies for drafter in drafters)
    return Drafter(init, propose, update, most, layers, name, varies)


def learn_each(*learn: Callable[[Any, Sequence[int]], Any] | None) -> Callable[..., tuple]:
    """What ``generate_many`` takes as ``learn`` for drafters in turn.

    Args:
      *learn: each drafter's own, such as ``remember``; None for one that learns nothing.

    Returns:
      ``(drafter_params, tokens) -> drafter_params``, of tuples.
    """

    def learned(params: tuple, tokens: Sequence[int]) -> tuple:
        pairs = zip(learn, params, strict=True)
        return tuple(own(part, tokens) if own else part for own, part in pairs)

    return learned


def _own_features(drafters: tuple[Drafter, ...], features: Array | None) -> list[Array | None]:
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


def _padded(draft: Draft, nodes: int) -> Draft:
    """The draft with room for ``nodes`` tokens."""
    more = nodes - draft.tokens.shape[1]

    def pad(x: Array | None) -> Array | None:
        return None if x is None else jnp.pad(x, ((0, 0), (0, more)) + ((0, 0),) * (x.ndim - 2))

    tokens = jnp.pad(draft.tokens, ((0, 0), (0, more)))
    return Draft(tokens, draft.length, pad(draft.probs), pad(draft.given))


def _either(first: Array, ours: Draft, theirs: Draft) -> Draft:
    """Row by row, ``ours`` where ``first [B]``, else ``theirs``; both of equally many nodes."""
    rows = first[:, None]
    tokens = jnp.where(rows, ours.tokens, theirs.tokens)
    length = jnp.where(first, ours.length, theirs.length)
    if ours.probs is None and theirs.probs is None:
        return Draft(tokens, length)
    probs = theirs.probs if ours.probs is None else ours.probs  # given tokens have no q
    if ours.probs is not None and theirs.probs is not None:
        probs = jnp.where(rows[:, :, None], ours.probs, theirs.probs)
    return Draft(tokens, length, probs, jnp.where(rows, _given(ours), _given(theirs)))


def _given(draft: Draft) -> Array:
    if draft.given is not None:
        return draft.given
    return jnp.full(draft.tokens.shape, draft.probs is None)
