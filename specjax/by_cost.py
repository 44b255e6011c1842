"""The policy that ``adaptive`` follows by default: most tokens a second, by costs and counts."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.draft import Context
from specjax.factory import factory
from specjax.policies import Outcome, Policy


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
      wait: ``[D]``, how many of them there may be; 0: the policy's first wait.
      batch: the rows that these are the costs of.
    """

    contexts: Array
    target: Array
    draft: Array
    accepted: Array
    drafted: Array
    seen: Array
    silent: Array
    wait: Array
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
      wait: int32 ``[B, D]``, how many of them there may be.
    """

    right: Array
    could: Array
    drafted: Array
    asked: Array
    silent: Array
    wait: Array


@factory
def by_cost(
    *,
    memory: int = 48,
    weight: float = 3.0,
    probe_first: int = 16,
    probe_last: int = 128,
    probe_share: float = 0.005,
) -> Policy:
    """The drafter and the draft length that make most tokens a second, by costs and acceptance.

    For each draft position a censored estimate: of the rounds in which the token was asked for and
    all before it were right, the share in which it was right too. Counts fade by ``1 - 1 / memory``
    a round. A row's estimate leans on the other rows', those on what was seen before (by counts
    that fade a sixteenth as fast, and only while the drafter is asked), and that on what was
    expected at first, with ``weight`` rounds each, or up to four times as many where what is
    expected was seen in so many. What a run has seen is what the next one may expect
    (``Drafter.learned``), of the last sixteen times ``memory`` rounds. Expected tokens of a row are
    one and the chance of each draft token; expected seconds of a round go by the longest draft of
    the batch.

    A drafter that isn't asked because drafting doesn't pay gets a try after ``probe_first`` rounds,
    twice as many after each further one, up to ``probe_last``; later where a try is dear, so that
    tries take ``probe_share`` of the time at most; never where not even a draft that is all right
    would pay.

    Args:
      memory: rounds after which a count has faded to a third, at least 2.
      weight: rounds that an expectation counts for, above 0.
      probe_first: rounds until the first try, at least 1.
      probe_last: the rounds until a try that they grow to, at least ``probe_first``.
      probe_share: the share of the time that tries may take, above 0 and at most 1.

    Raises:
      ValueError: for values out of range.
    """
    if memory < 2:
        raise ValueError(f"by_cost: memory={memory}; it must be at least 2 rounds")
    if not 0 < weight < float("inf"):
        raise ValueError(f"by_cost: weight={weight}; it must be above 0, and finite")
    if not 1 <= probe_first <= probe_last:
        raise ValueError(
            f"by_cost: probe_first={probe_first}, probe_last={probe_last}; they must be "
            "1 <= probe_first <= probe_last"
        )
    if not 0 < probe_share <= 1:
        raise ValueError(
            f"by_cost: probe_share={probe_share}; it must be above 0 and at most 1, a share of the "
            "time"
        )
    kept, kept_long = 1 - 1 / memory, 1 - 1 / (16 * memory)
    learned = partial(_learned, weight=weight, most=16 * memory)

    def init(costs: Costs, batch: int, drafters: int, nodes: int) -> Counts:
        zeros = jnp.zeros([batch, 2, drafters, nodes], jnp.float32)
        wait = jnp.where(costs.wait > 0, costs.wait, probe_first)
        silent, wait = (
            jnp.broadcast_to(x.astype(jnp.int32), (batch, drafters)) for x in (costs.silent, wait)
        )
        return Counts(zeros, zeros, zeros, zeros, silent, wait)

    def choose(costs: Costs, state: Counts, context: Context) -> tuple[Array, Array]:
        live = ~context.done
        tokens, seconds = expectation(costs, state, context.length, live, weight)
        speed = tokens / seconds
        lengths = jnp.argmax(speed[:, 1:], 1).astype(jnp.int32) + 1  # the best, if it drafts

        def at_best(values: Array) -> Array:
            return jnp.take_along_axis(values, lengths[:, None], 1)[:, 0]

        best = jnp.argmax(at_best(speed)).astype(jnp.int32)
        plain = jnp.max(speed[:, 0])
        pays = at_best(speed)[best] > plain
        now = jnp.maximum(at_best(speed)[best], plain)
        # Rows that took their place in the batch late wait for those that were there before.
        silent, wait = (
            jnp.max(jnp.where(live[:, None], x, 0), 0) for x in (state.silent, state.wait)
        )
        extra = at_best(seconds) / seconds[:, 0] - 1
        due = (silent >= wait) & (silent.astype(jnp.float32) >= extra / probe_share)
        most = jnp.arange(1, speed.shape[1] + 1, dtype=jnp.float32)
        all_right = jnp.sum(live, dtype=jnp.float32) * most
        due = due & (jnp.max(all_right / seconds, 1) > now)
        chosen = jnp.where(jnp.any(due), jnp.argmax(due).astype(jnp.int32), best)
        limit = jnp.where(pays | jnp.any(due), lengths[chosen], 0)
        return chosen, jnp.broadcast_to(limit, context.length.shape)

    def learn(costs: Costs, state: Counts, outcome: Outcome) -> Counts:
        del costs
        drafters = jnp.arange(state.silent.shape[1], dtype=jnp.int32)
        mine = (drafters == outcome.drafter[:, None]) & (outcome.limit > 0)[:, None]
        position = jnp.arange(state.right.shape[3], dtype=jnp.int32)

        def reached(count: Array, position: Array) -> Array:
            return position < count[:, None]

        allowed = reached(outcome.limit, position)
        before = position - 1
        events = (
            reached(outcome.accepted, position),
            allowed & reached(outcome.accepted, before),
            reached(outcome.drafted, position),
            allowed & reached(outcome.drafted, before),
        )
        active = outcome.active[:, None]

        def fade(counts: Array, event: Array) -> Array:
            one = (mine[:, :, None] & event[:, None]).astype(jnp.float32)
            soon = counts[:, 0] * jnp.float32(kept) + one
            late = jnp.where(
                mine[:, :, None], counts[:, 1] * jnp.float32(kept_long) + one, counts[:, 1]
            )
            return jnp.where(active[:, :, None, None], jnp.stack([soon, late], 1), counts)

        right, could, drafted, asked = map(fade, state[:4], events)
        # A try that was due doubles the wait; being asked because it pays ends it.
        tried = state.silent >= state.wait
        longer = jnp.minimum(2 * state.wait, probe_last)
        wait = jnp.where(mine, jnp.where(tried, longer, probe_first), state.wait)
        silent = jnp.where(mine, 0, state.silent + 1)
        silent = jnp.where(active, silent, state.silent)
        return Counts(right, could, drafted, asked, silent, jnp.where(active, wait, state.wait))

    return Policy(init, choose, learn, "by cost", needs_costs=True, learned=learned)


@jax.jit
def _learned(costs: Costs, state: Counts, rows: Array, weight: float, most: int) -> Costs:
    """What the next run may expect; see ``Policy.learned``."""
    own = rows[:, None]
    right, could, drafted, asked = (
        jnp.sum(jnp.where(own[:, None], counts[:, 1], 0), 0) for counts in state[:4]
    )

    def share(before: Array, seen: Array, hits: Array, tries: Array) -> Array:
        base = jnp.clip(seen, weight, most)
        return (base * before + hits) / (base + tries)

    silent, wait = (jnp.max(jnp.where(own, x, 0), 0) for x in (state.silent, state.wait))
    return costs._replace(
        accepted=share(costs.accepted, costs.seen[0], right, could),
        drafted=share(costs.drafted, costs.seen[1], drafted, asked),
        seen=jnp.minimum(costs.seen + jnp.stack([could, asked]), most),
        silent=silent.astype(jnp.float32),
        wait=wait.astype(jnp.float32),
    )


def expectation(
    costs: Costs, counts: Counts, length: Array, live: Array, weight: float
) -> tuple[Array, Array]:
    """Tokens and seconds of the batch's next round, by drafter and draft length.

    Args:
      costs: of the device.
      counts: what past rounds brought.
      length: int32 ``[B]``, the rows' lengths.
      live: bool ``[B]``, rows that aren't finished.
      weight: rounds that an expectation counts for.

    Returns:
      Two float32 ``[D, N+1]``; inf seconds where the drafter can't draft so much.
    """
    chance = estimate(counts.right, counts.could, costs.accepted, costs.seen[0], live, weight)
    tokens = 1 + _running(jnp.cumprod(chance, 2))  # [B, D, N+1]
    drafted = estimate(counts.drafted, counts.asked, costs.drafted, costs.seen[1], live, weight)
    reach = jnp.where(live[:, None, None], jnp.cumprod(drafted, 2), 0)
    longest = 1 - jnp.prod(1 - reach, 0)  # [D, N]: the chance that some row's draft goes so far
    seconds = _seconds(costs, longest, jnp.max(jnp.where(live, length, 0)))
    return jnp.sum(jnp.where(live[:, None, None], tokens, 0), 0), seconds


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


def _seconds(costs: Costs, longest: Array, filled: Array) -> Array:
    """Expected seconds ``[D, N+1]`` of a round by what the drafter is asked for.

    A draft that ends before it took the work for one token more, which was too unsure to draft.
    """
    filled = filled.astype(jnp.float32)
    at_filled = jax.vmap(lambda column: jnp.interp(filled, costs.contexts, column), 1)
    target = at_filled(costs.target)  # [N+1]
    count = target.shape[0]
    asked, drafted = jnp.arange(count)[:, None], jnp.arange(count)[None]  # [N+1, 1], [1, N+1]
    at_least = jnp.pad(longest, ((0, 0), (1, 0)), constant_values=1)[:, None]  # [D, 1, N+1]
    more = jnp.pad(longest, ((0, 0), (0, 1)))[:, None]
    chance = jnp.where(drafted < asked, at_least - more, jnp.where(drafted == asked, at_least, 0))
    work = costs.draft[:, jnp.minimum(drafted + 1, asked)]  # [D, N+1, N+1]
    return jnp.sum(jnp.where(chance > 0, chance * (target + work), 0), 2)


def _running(terms: Array) -> Array:
    """Sums of the first 0 to N terms of the last axis."""
    return jnp.pad(jnp.cumsum(terms, -1), ((0, 0),) * (terms.ndim - 1) + ((1, 0),))
