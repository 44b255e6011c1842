"""Counters of a decoding run, and the rates they give."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Stats(NamedTuple):
    """Counts, all int32. A finished row's counters stop.

    Attributes:
      rounds: ``[B]``, rounds of the row; each is one target pass.
      emitted: ``[B]``, tokens committed.
      drafted: ``[B]``, draft tokens submitted.
      judged: ``[B, N]`` by position: a round judges min(accepted + 1, drafted) of them.
      accepted: ``[B, N]`` by position; by the verifier, before any cut at an EOS.
      asked: ``[B, P]``, rounds in which the draft was each part's, or that was asked last and had
        none (``Draft.part``); all rounds of a drafter that isn't made of others.
      drafted_by: ``[B, P]``, the draft tokens of each part.
      judged_by: ``[B, P]``, those of them that were judged.
      accepted_by: ``[B, P]``, those that were kept.
      widths: ``[W]``, target passes of the batch at each width.
    """

    rounds: Array
    emitted: Array
    drafted: Array
    judged: Array
    accepted: Array
    asked: Array
    drafted_by: Array
    judged_by: Array
    accepted_by: Array
    widths: Array


def init(batch: int, nodes: int, parts: int, widths: int) -> Stats:
    """All counters at zero."""
    row, by_position, by_part, by_width = (
        jnp.zeros(shape, jnp.int32) for shape in ([batch], [batch, nodes], [batch, parts], [widths])
    )
    of_parts = (by_part,) * 4
    return Stats(row, row, row, by_position, by_position, *of_parts, by_width)


def count(
    stats: Stats,
    *,
    active: Array,
    drafted: Array,
    accepted: Array,
    emitted: Array,
    part: Array | None,
    width: Array,
) -> Stats:
    """Adds one round.

    Args:
      stats: the counters before it.
      active: bool ``[B]``, rows that took part.
      drafted: int32 ``[B]``, draft tokens submitted.
      accepted: int32 ``[B]``, draft tokens the verifier kept.
      emitted: int32 ``[B]``, tokens committed.
      part: int32 ``[B]``, whose draft it was; see ``Draft``.
      width: int32 ``[]``, index of the width the pass ran at.

    Returns:
      The counters after it.
    """
    position = jnp.arange(stats.judged.shape[1], dtype=jnp.int32)
    row = active[:, None]
    ones = active.astype(jnp.int32)
    judged = jnp.minimum(accepted + 1, drafted)
    parts = jnp.arange(stats.asked.shape[1], dtype=jnp.int32)
    mine = (parts == (0 if part is None else part[:, None])) & row

    def by_part(counts: Array) -> Array:
        return jnp.where(mine, counts[:, None], 0)

    return Stats(
        rounds=stats.rounds + ones,
        emitted=stats.emitted + ones * emitted,
        drafted=stats.drafted + ones * drafted,
        judged=stats.judged + (row & (position < judged[:, None])).astype(jnp.int32),
        accepted=stats.accepted + (row & (position < accepted[:, None])).astype(jnp.int32),
        asked=stats.asked + mine.astype(jnp.int32),
        drafted_by=stats.drafted_by + by_part(drafted),
        judged_by=stats.judged_by + by_part(judged),
        accepted_by=stats.accepted_by + by_part(accepted),
        widths=stats.widths.at[width].add(1),
    )


def acceptance_rate(stats: Stats) -> float:
    """Accepted / judged over the batch: the censored estimate of alpha (nan without drafts)."""
    judged = int(stats.judged.sum())
    return int(stats.accepted.sum()) / judged if judged else float("nan")


def acceptance_by_position(stats: Stats) -> list[float]:
    """Accepted / judged at each draft position, given that all before it were accepted."""
    pairs = zip(stats.accepted.sum(0).tolist(), stats.judged.sum(0).tolist(), strict=True)
    return [accepted / judged if judged else float("nan") for accepted, judged in pairs]


def tokens_per_pass(stats: Stats) -> float:
    """Emitted tokens / target passes over the rows (nan before the first)."""
    rounds = int(stats.rounds.sum())
    return int(stats.emitted.sum()) / rounds if rounds else float("nan")
