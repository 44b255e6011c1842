"""Drafts from a table of what the target has said before, context by context.

Costs next to nothing: a few reads of an array, no model. (He et al. 2023, "REST", arXiv:2311.08252,
draft from a datastore of text; here it is counted beforehand.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.drafters import corpus_table
from specjax.drafters.chain import Guess, check_prob, draw_chain
from specjax.drafters.corpus_table import CorpusTable
from specjax.drafters.matching import last_tokens
from specjax.factory import factory

_STEPS = 6  # halvings that find a key within a bucket, so that one holds at most 2**6 - 1


class CorpusParams(NamedTuple):
    """What the drafter is given as ``drafter_params``: a ``CorpusTable``, ready to be searched.

    Attributes:
      buckets: int32 ``[2**b + 1]``, where the keys with each value of their upper b bits begin.
      keys: uint32 ``[C]``.
      checks: uint32 ``[C]``.
      totals: float32 ``[C]``.
      first: int32 ``[C+1]``, where each context's continuations begin.
      tokens: int32 ``[R]``.
      counts: float32 ``[R]``.
      doubt: float32 ``[N]``.
    """

    buckets: Array
    keys: Array
    checks: Array
    totals: Array
    first: Array
    tokens: Array
    counts: Array
    doubt: Array


def corpus_params(table: CorpusTable) -> CorpusParams:
    """A table as the drafter wants it.

    Args:
      table: at least one context (``corpus_table.load`` has checked it).
    """
    bits = 1
    while True:
        edges = np.arange(2**bits + 1, dtype=np.uint64) << np.uint64(32 - bits)
        buckets = np.searchsorted(table.keys, edges)
        if np.max(np.diff(buckets)) < 2**_STEPS:
            break
        bits += 1
    first = np.concatenate([[0], np.cumsum(table.sizes, dtype=np.int64)])
    return CorpusParams(
        buckets=jnp.asarray(buckets, jnp.int32),
        keys=jnp.asarray(table.keys),
        checks=jnp.asarray(table.checks, jnp.uint32),
        totals=jnp.asarray(table.totals, jnp.float32),
        first=jnp.asarray(first, jnp.int32),
        tokens=jnp.asarray(table.tokens.astype(np.int32)),
        counts=jnp.asarray(table.counts, jnp.float32),
        doubt=jnp.asarray(table.doubt),
    )


class Known(NamedTuple):
    """What a table knows of one context a row.

    Attributes:
      tokens: int32 ``[B, R]``, its continuations, the most frequent first; anything where there
        are fewer.
      counts: float32 ``[B, R]``, 0 where there are fewer.
      total: float32 ``[B]``, how often it occurred, its doubt included; 1 where it is not known.
      order: int32 ``[B]``, its length; 0 where it is not known.
    """

    tokens: Array
    counts: Array
    total: Array
    order: Array


@factory
def corpus(
    k: int = 4,
    *,
    min_prob: float = 0.15,
    min_first: float = 0.0,
    min_count: int = 1,
    sampled: bool = False,
    ranks: int = 4,
) -> Drafter:
    """Drafts what most often followed the last tokens, and again after that, up to k tokens.

    The longest context that the table knows decides. A draft ends where the table knows none, or
    where it is no longer probable: where the product over its tokens of the probability that the
    target says what is drafted, by the table's counts, falls below ``min_prob``. What follows won't
    pay for a wider pass. All of it is decided before a token is drawn.

    ``sampled``: the tokens are drawn from the counts of the best few continuations, under the
    active settings, and verified with that q; else each is the most frequent one, chosen without
    drawing. Greedy the tokens are the same, but drafts go on longer, for the probability is then
    that of all these continuations.

    State: empty.

    Args:
      k: most tokens a draft holds.
      min_prob: 0 to 1; a draft goes on as long as it is at least this probable.
      min_first: the same for its first token; with less the drafter says nothing, and leaves the
        row to another (``first_of``, ``adaptive``).
      min_count: contexts whose best continuation was seen less often are as good as unknown.
      sampled: draw from the counts.
      ranks: continuations that are drawn from; without ``sampled`` the first one is enough.

    Returns:
      The drafter; its ``drafter_params`` are ``corpus_params``.

    Raises:
      ValueError: for values out of range.
    """
    for name, value in (("k", k), ("min_count", min_count), ("ranks", ranks)):
        if value < 1:
            raise ValueError(f"corpus: {name}={value}; it must be at least 1")
    check_prob("corpus", min_prob=min_prob, min_first=min_first)

    def init(params: Params, prefill: Prefill) -> tuple[()]:
        del prefill
        if not isinstance(params.drafter, CorpusParams):
            what = type(params.drafter).__name__
            raise ValueError(f"corpus: drafter_params is a {what}; give what corpus_params makes")
        return ()

    def propose(
        params: Params, state: tuple[()], context: Context, limit: Array
    ) -> tuple[Draft, tuple[()], Any]:
        table: CorpusParams = params.drafter

        def guess(recent: Array) -> Guess:
            known = look_up(table, recent, min_count, ranks if sampled else 1)
            prob = jnp.sum(known.counts, 1) / known.total
            # Of a context that nobody knows nothing is drafted, but its q must be numbers.
            nothing = jnp.where(prob > 0, -jnp.inf, 0)[:, None]
            logits = jnp.where(known.counts > 0, jnp.log(known.counts), nothing)
            return Guess(logits, known.tokens, prob)

        def step(recent: Array, last: Array) -> tuple[Guess, Array]:
            recent = jnp.concatenate([last, recent[:, :-1]], 1)
            return guess(recent), recent

        recent = last_tokens(context.tokens, context.length, table.doubt.shape[0])
        first = guess(recent)
        if min_first and first.prob is not None:
            limit = jnp.where(first.prob >= min_first, limit, 0)
        draw = context.draw if sampled else _best
        draft, _ = draw_chain(draw, limit, k, first, recent, step, min_prob=min_prob)
        return draft, state, context.cache

    def update(params: Params, state: tuple[()], context: Context, record: Record) -> tuple[()]:
        del params, context, record
        return state

    # Drawing among a few continuations takes next to nothing, and tables are dear to measure.
    settings = f"min_prob={min_prob}, min_first={min_first}, min_count={min_count}"
    return Drafter(
        init, propose, update, num_nodes=k, name="corpus", varies=True, settings=settings
    )


def look_up(table: CorpusParams, recent: Array, min_count: int, ranks: int) -> Known:
    """What the table knows of the longest known context.

    Args:
      table: the table.
      recent: int32 ``[B, N]``, the last tokens, the last one first; below 0 where there are fewer.
      min_count: see ``corpus``.
      ranks: R, continuations to give at most.
    """
    keys, checks = corpus_table.hashes(recent, jnp)
    slot = _find(table, keys)
    same = (table.keys[slot] == keys) & (table.checks[slot] == checks >> np.uint32(16))
    seen = table.counts[table.first[slot]] >= min_count
    length = jnp.arange(1, recent.shape[1] + 1, dtype=jnp.int32)
    usable = same & seen & (recent >= 0)
    longest = jnp.max(jnp.where(usable, length, 0), 1)
    which = jnp.maximum(longest - 1, 0)
    slot = jnp.take_along_axis(slot, which[:, None], 1)[:, 0]
    at = table.first[slot][:, None] + jnp.arange(ranks, dtype=jnp.int32)
    there = (at < table.first[slot + 1][:, None]) & (longest > 0)[:, None]
    at = jnp.minimum(at, table.tokens.shape[0] - 1)
    total = jnp.where(longest > 0, table.totals[slot] + table.doubt[which], 1)
    return Known(table.tokens[at], jnp.where(there, table.counts[at], 0), total, longest)


def _find(table: CorpusParams, keys: Array) -> Array:
    """The first slot whose key is not below, by halving what is left of the key's bucket.

    Buckets are what the hash is good for: a search of the whole table would take three times as
    many steps, each of which waits for the one before.
    """
    bits = (table.buckets.shape[0] - 1).bit_length() - 1
    bucket = (keys >> np.uint32(32 - bits)).astype(jnp.int32)
    low, high = table.buckets[bucket], table.buckets[bucket + 1]
    last = table.keys.shape[0] - 1
    for _ in range(_STEPS):
        middle = (low + high) // 2
        below = (table.keys[jnp.minimum(middle, last)] < keys) & (low < high)
        low, high = jnp.where(below, middle + 1, low), jnp.where(below, high, middle)
    return jnp.minimum(low, last)


def _best(logits: ArrayLike, node: Any, ids: Array) -> tuple[Array, None]:
    """The first continuation, chosen without drawing."""
    del logits, node
    return ids[:, 0], None
