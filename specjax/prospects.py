"""What the next round may bring and take, by who is asked for how much: ``by_cost`` goes by it."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

_SELDOM = 0.25  # of the rounds


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Batch:
    """The rows that costs are of; None: any. Static: others are refused while a run is traced."""

    rows: int | None = None


class Costs(NamedTuple):
    """What a policy decides by; arrays of float32. D drafters, C contexts, N the longest draft.

    Attributes:
      contexts: ``[C]``, ascending numbers of filled slots.
      target: ``[C, N+1]``, seconds of the target's side of a round whose longest draft has so many
        tokens.
      draft: ``[D, N+1]``, seconds of all drafters' side if this one drafts so many tokens and the
        others only keep their states fresh; inf past its own longest draft.
      accepted: ``[D, N]``, the share of rounds in which a draft token is right, given that all
        before it were: what to expect at first. A token that isn't drafted isn't right.
      drafted: ``[D, N]``, the share in which it is drafted at all, given that all before it were
        (where that comes from an earlier run's ``stats``: given that they were right).
      seen: ``[2, D, N]``, the rounds that these two shares come from; 0: from nothing but hope.
      silent: ``[D]``, rounds since the drafter was asked for anything, in earlier runs.
      batch: the rows that these are the costs of.
    """

    contexts: Array
    target: Array
    draft: Array
    accepted: Array
    drafted: Array
    seen: Array
    silent: Array
    batch: Batch = Batch()


class Counts(NamedTuple):
    """What ``by_cost`` knows. D drafters, N the longest draft.

    The first four are float32 ``[2, ...]`` on the axis after the batch: counts that fade soon, and
    counts that hardly do.

    Attributes:
      right: ``[B, 2, D, N]``, rounds in which the token was right.
      could: ``[B, 2, D, N]``, rounds in which it was asked for and all before it were right.
      drafted: ``[B, 2, D, N]``, rounds in which it was drafted.
      asked: ``[B, 2, D, N]``, rounds in which it was asked for and all before it were drafted.
      silent: int32 ``[B, D]``, rounds since the drafter was asked for anything.
    """

    right: Array
    could: Array
    drafted: Array
    asked: Array
    silent: Array


class Prospects(NamedTuple):
    """What the next round may bring. B rows, D drafters, N the longest draft; float32.

    Attributes:
      live: ``[B]``, 1 of rows that aren't finished, else 0.
      right: ``[B, D, N]``, the chance that so much of a drafter's draft is right, if asked for as
        much.
      drafted: ``[B, D, N]``, the chance that it drafts so much.
      silent_s: ``[]``, seconds of a round that nobody drafts in.
      wider_s: ``[N]``, seconds by which a draft of one token more makes the pass longer.
      work_s: ``[D, N]``, seconds that a guess more takes; inf past a drafter's longest draft.
    """

    live: Array
    right: Array
    drafted: Array
    silent_s: Array
    wider_s: Array
    work_s: Array


def prospects(costs: Costs, counts: Counts, length: Array, live: Array, weight: float) -> Prospects:
    """What a round may bring, by drafter and position.

    Args:
      costs: of the device.
      counts: what past rounds brought.
      length: int32 ``[B]``, the rows' lengths.
      live: bool ``[B]``, rows that aren't finished.
      weight: rounds that an expectation counts for.
    """
    right = estimate(counts.right, counts.could, costs.accepted, costs.seen[0], live, weight)
    drafted = estimate(counts.drafted, counts.asked, costs.drafted, costs.seen[1], live, weight)
    filled = jnp.max(jnp.where(live, length, 0)).astype(jnp.float32)
    target = jax.vmap(lambda column: jnp.interp(filled, costs.contexts, column), 1)(costs.target)
    return Prospects(
        live.astype(jnp.float32),
        jnp.cumprod(right, 2),
        jnp.cumprod(drafted, 2),
        target[0] + costs.draft[0, 0],
        jnp.diff(target),
        jnp.where(jnp.isfinite(costs.draft[:, 1:]), jnp.diff(costs.draft), jnp.inf),
    )


def expectation(hopes: Prospects, limits: Array) -> tuple[Array, Array]:
    """Tokens and seconds of the batch's next round, if drafters are asked for ``limits`` in turn.

    A row's draft is the first that isn't empty. The pass is as wide as the longest draft of the
    batch, and a drafter works for the longest of its own; a draft that ends before its limit took
    the work for one token more, which was too unsure to draft.

    Args:
      hopes: of the round.
      limits: int32 ``[D]``; 0: not asked.

    Returns:
      Two float32 scalars; inf seconds where a drafter can't draft so much.
    """
    position = jnp.arange(1, hopes.wider_s.shape[0] + 1, dtype=jnp.int32)
    wanted = position <= limits[:, None]  # [D, N]
    asked = chance_asked(hopes, limits)  # [B, D]
    right = jnp.sum(jnp.where(wanted, hopes.right, 0), 2)
    tokens = jnp.sum(hopes.live) + jnp.sum(asked * right)
    reach = asked[:, :, None] * jnp.where(wanted, hopes.drafted, 0)  # [B, D, N]
    longest = 1 - jnp.prod(1 - jnp.sum(reach, 1), 0)  # [N]: some row's draft goes so far
    own = 1 - jnp.prod(1 - reach, 0)  # [D, N]: some row's draft by this drafter does
    somebody = 1 - jnp.prod(1 - asked, 0)
    guesses = jnp.concatenate([somebody[:, None], own[:, :-1]], 1)
    work = jnp.sum(jnp.where(wanted & (guesses > 0), guesses * hopes.work_s, 0))
    too_long = jnp.any(wanted & jnp.isinf(hopes.work_s))
    seconds = hopes.silent_s + jnp.sum(longest * hopes.wider_s) + work
    return tokens, jnp.where(too_long, jnp.inf, seconds)


def chance_asked(hopes: Prospects, limits: Array) -> Array:
    """The chance ``[B, D]`` that a drafter is asked: that those before it say nothing."""
    on = limits > 0
    silent = jnp.where(on, 1 - hopes.drafted[:, :, 0], 1)
    before = jnp.cumprod(jnp.pad(silent, ((0, 0), (1, 0)), constant_values=1), 1)[:, :-1]
    return jnp.where(on, before, 0) * hopes.live[:, None]


def by_itself(hopes: Prospects) -> tuple[Array, Array]:
    """Expected tokens and seconds ``[D, N+1]`` of a round in which one drafter is asked."""
    drafters, nodes = hopes.work_s.shape
    count = jnp.arange(nodes + 1, dtype=jnp.int32)
    limits = jnp.eye(drafters, dtype=jnp.int32)[:, None] * count[:, None]  # [D, N+1, D]
    return jax.vmap(jax.vmap(partial(expectation, hopes)))(limits)


def fastest(hopes: Prospects, lengths: Array) -> tuple[Array, Array]:
    """Limits ``[D]`` that make most tokens a second, and how many.

    From each drafter alone, asked for ``lengths [D]``, the limits are made the best given the
    others' one by one, from the last drafter to the first: so whoever follows is known by the time
    a drafter is weighed against going on to it. (A test compares with all limits there are.)
    """
    drafters, nodes = hopes.work_s.shape

    def speed(limits: Array) -> Array:
        tokens, seconds = expectation(hopes, limits)
        return tokens / seconds

    starts = jnp.diag(lengths)
    if drafters == 1:
        return starts[0], speed(starts[0])
    number, choices = jnp.arange(drafters, dtype=jnp.int32), jnp.arange(nodes + 1, dtype=jnp.int32)

    def better(step: Array, limits: Array) -> Array:
        each = jnp.where(number == drafters - 1 - step, choices[:, None], limits)
        return each[jnp.argmax(jax.vmap(speed)(each))]

    ends = jax.vmap(lambda start: jax.lax.fori_loop(0, drafters, better, start))(starts)
    speeds = jax.vmap(speed)(ends)
    best = jnp.argmax(speeds)
    return ends[best], speeds[best]


def with_try(hopes: Prospects, limits: Array, alone: Array) -> Array:
    """The limits ``[D]`` with a try of one drafter, which ``alone [D]`` has all by itself.

    Those before it stay, so that it is tried where it would be asked, but for the ones that would
    leave it less than a quarter of the rounds: behind them it might never be.
    """
    tried = alone > 0
    limits = jnp.where(tried, alone, limits)
    rows = jnp.sum(hopes.live[:, None] * hopes.drafted[:, :, 0], 0) / jnp.sum(hopes.live)
    left = jnp.cumprod(1 - jnp.where(limits > 0, rows, 0))
    before = jnp.arange(tried.shape[0]) < jnp.argmax(tried)
    return jnp.where(before & (left < _SELDOM), 0, limits)


def estimate(
    hits: Array, tries: Array, prior: Array, seen: Array, live: Array, weight: float
) -> Array:
    """Shares ``[B, D, N]`` from counts ``[B, 2, D, N]``; see ``by_cost``.

    Nothing is counted twice: a row leans on the *other* rows, and all on what has faded from the
    counts that fade soon. Of a position that was hardly seen (less than ``weight`` rounds) the best
    is hoped for, as far as the one before it was seen, and else as much as of that one: hope makes
    a length that was never tried worth a try where even its tokens, all right, would pay.
    """
    rows = live[:, None, None, None]
    hits, tries = jnp.where(rows, hits, 0), jnp.where(rows, tries, 0)

    def split(counts: Array) -> tuple[Array, Array, Array]:
        soon = counts[:, 0]
        return soon, jnp.sum(soon, 0), jnp.maximum(jnp.sum(counts[:, 1] - soon, 0), 0)

    right, all_right, old_right = split(hits)
    of, all_of, old_of = split(tries)
    shares: list[Array] = []
    evidence = jnp.minimum((seen + jnp.sum(tries[:, 1], 0)) / weight, 1)
    best = prior[:, 0]
    for n in range(prior.shape[1]):
        unseen = jnp.maximum(1 - seen[:, n] / weight, 0)
        hope = prior[:, n] + unseen * jnp.maximum(best - prior[:, n], 0)
        base = jnp.clip(seen[:, n], weight, 4 * weight)
        in_all = (old_right[:, n] + base * hope) / (old_of[:, n] + base)
        known = (all_right[:, n] + base * in_all) / (all_of[:, n] + base)
        best = known + (1 - known) * evidence[:, n]
        others = all_right[:, n] - right[:, :, n] + base * in_all
        others = others / (all_of[:, n] - of[:, :, n] + base)
        shares.append((right[:, :, n] + base * others) / (of[:, :, n] + base))
    return jnp.stack(shares, 2)
