"""The policy that ``adaptive`` follows by default: most tokens a second, by costs and counts."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from specjax.draft import Context
from specjax.factory import factory
from specjax.policies import Outcome, Policy
from specjax.prospects import (
    Costs,
    Counts,
    by_itself,
    expectation,
    fastest,
    prospects,
    with_try,
)

_EVER = jnp.iinfo(jnp.int32).max // 2  # rounds; more than any drafter keeps silent


@factory
def by_cost(
    *,
    memory: int = 48,
    weight: float = 3.0,
    probe_every: int = 4,
    probe_share: float = 0.005,
) -> Policy:
    """Who is asked for how much, so that most tokens a second come of it, by costs and acceptance.

    For each draft position a censored estimate: of the rounds in which the token was asked for and
    all before it were right, the share in which it was right too. Counts fade by ``1 - 1 / memory``
    a round. A row's estimate leans on the other rows', those on what was seen before (by counts
    that fade a sixteenth as fast, and only while the drafter is asked), and that on what was
    expected at first, with ``weight`` rounds each, or up to four times as many where what is
    expected was seen in so many. What a run has seen is what the next one may expect
    (``Drafter.learned``), of the last sixteen times ``memory`` rounds. Expected tokens of a row are
    one and the chance of each draft token; expected seconds of a round go by the longest draft of
    the batch.

    A drafter that isn't asked because drafting doesn't pay gets a try now and then: the rarer, the
    more it would lose by what is known, so that each drafter's tries lose ``probe_share`` of the
    time, or little more.

    Args:
      memory: rounds after which a count has faded to a third, at least 2.
      weight: rounds that an expectation counts for, above 0.
      probe_every: rounds from one try to the next, at least 1.
      probe_share: the share of the time that tries may lose, above 0 and at most 1.

    Raises:
      ValueError: for values out of range.
    """
    if memory < 2:
        raise ValueError(f"by_cost: memory={memory}; it must be at least 2 rounds")
    if not 0 < weight < float("inf"):
        raise ValueError(f"by_cost: weight={weight}; it must be above 0, and finite")
    if probe_every < 1:
        raise ValueError(f"by_cost: probe_every={probe_every}; it must be at least 1 round")
    if not 0 < probe_share <= 1:
        raise ValueError(
            f"by_cost: probe_share={probe_share}; it must be above 0 and at most 1, a share of the "
            "time"
        )
    kept, kept_long = 1 - 1 / memory, 1 - 1 / (16 * memory)
    learned = partial(_learned, weight=weight, most=16 * memory)

    def init(costs: Costs, batch: int, drafters: int, nodes: int) -> Counts:
        zeros = jnp.zeros([batch, 2, drafters, nodes], jnp.float32)
        silent = jnp.broadcast_to(costs.silent.astype(jnp.int32), (batch, drafters))
        return Counts(zeros, zeros, zeros, zeros, silent)

    def choose(costs: Costs, state: Counts, context: Context) -> Array:
        live = ~context.done
        hopes = prospects(costs, state, context.length, live, weight)
        tokens, seconds = by_itself(hopes)  # [D, N+1]
        plain = tokens[0, 0] / seconds[0, 0]
        lengths = jnp.argmax((tokens / seconds)[:, 1:], 1).astype(jnp.int32) + 1  # if it drafts
        limits, best = fastest(hopes, lengths)
        limits = jnp.where(best > plain, limits, 0)

        # Of rows in which others spoke first the drafter was asked in none if it is silent in all.
        silent = jnp.min(jnp.where(live[:, None], state.silent, _EVER), 0)
        tries = jax.vmap(partial(with_try, hopes, limits))(jnp.diag(lengths))
        brought, took = jax.vmap(partial(expectation, hopes))(tries)
        lost = (took - brought / jnp.maximum(best, plain)) / seconds[0, 0]  # in plain rounds
        due = (silent >= probe_every) & (silent.astype(jnp.float32) * probe_share >= lost)
        due = due & jnp.any(tries != limits, 1)
        longest = jnp.argmax(jnp.where(due, silent, -1))
        limits = jnp.where(jnp.any(due), tries[longest], limits)
        return jnp.broadcast_to(limits, (live.shape[0], limits.shape[0]))

    def learn(costs: Costs, state: Counts, outcome: Outcome) -> Counts:
        del costs
        mine = outcome.limit > 0
        position = jnp.arange(state.right.shape[3], dtype=jnp.int32)

        def reached(count: Array, position: Array) -> Array:
            return position < count[:, :, None]

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
            one = event.astype(jnp.float32)
            soon = counts[:, 0] * jnp.float32(kept) + one
            late = jnp.where(
                mine[:, :, None], counts[:, 1] * jnp.float32(kept_long) + one, counts[:, 1]
            )
            return jnp.where(active[:, :, None, None], jnp.stack([soon, late], 1), counts)

        right, could, drafted, asked = map(fade, state[:4], events)
        silent = jnp.where(mine, 0, state.silent + 1)
        return Counts(right, could, drafted, asked, jnp.where(active, silent, state.silent))

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

    silent = jnp.min(jnp.where(own, state.silent, _EVER), 0)
    return costs._replace(
        accepted=share(costs.accepted, costs.seen[0], right, could),
        drafted=share(costs.drafted, costs.seen[1], drafted, asked),
        seen=jnp.minimum(costs.seen + jnp.stack([could, asked]), most),
        silent=silent.astype(jnp.float32),
    )
