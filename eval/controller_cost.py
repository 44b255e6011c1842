"""What deciding costs: the controller of adaptive drafting, timed by itself.

In a round it is far below what clocks can tell from the rest, so rounds of nothing else are timed.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.draft import Context
from specjax.policies import Outcome, Policy
from specjax.prospects import Costs

_REPEATS = 5


class Trip(NamedTuple):
    """What one round of decisions hands to the next.

    Attributes:
      policy: the policy's state.
      length: int32 ``[B]``, the rows' lengths.
      number: int32 ``[]``, rounds so far.
    """

    policy: Any
    length: Array
    number: Array


def start(policy: Policy, costs: Costs, batch: int) -> Trip:
    """Before the first round: rows of a prompt as long as the shortest context."""
    drafters, lengths = costs.draft.shape
    length = jnp.full([batch], costs.contexts[0], jnp.int32)
    return Trip(policy.init(costs, batch, drafters, lengths - 1), length, jnp.zeros([], jnp.int32))


def seconds(policy: Policy, costs: Costs, batch: int, rounds: int = 3000) -> float:
    """Seconds a round that a policy's ``choose`` and ``learn`` take, without compilation.

    Args:
      policy: the policy.
      costs: what it decides by.
      batch: rows.
      rounds: that are timed at a time, back to back in one compiled loop.

    Returns:
      The median over repeats.
    """
    count = jnp.asarray(rounds, jnp.int32)
    trip = jax.block_until_ready(decide(policy, costs, start(policy, costs, batch), count))
    taken = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        trip = jax.block_until_ready(decide(policy, costs, trip, count))
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken)) / rounds


def in_turn(costs: Costs, drafters: int) -> Costs:
    """The costs of so many drafters like the one whose costs these are."""
    return costs._replace(
        **{
            name: jnp.repeat(getattr(costs, name), drafters, axis)
            for name, axis in (
                ("draft", 0), ("accepted", 0), ("drafted", 0), ("seen", 1), ("silent", 0)
            )
        }
    )  # fmt: skip


@partial(jax.jit, static_argnums=(0,))
def decide(policy: Policy, costs: Costs, trip: Trip, count: Array) -> Trip:
    """So many rounds of decisions: each is learnt from, so the next can't be had without it."""
    return jax.lax.fori_loop(0, count, lambda _, trip: _round(policy, costs, trip), trip)


def _round(policy: Policy, costs: Costs, trip: Trip) -> Trip:
    length, rows = trip.length, jnp.arange(trip.length.shape[0], dtype=jnp.int32)
    nobody = jnp.zeros(length.shape, bool)
    context = Context(length[:, None], length, nobody, None, _no_draws)
    limits = policy.choose(costs, trip.policy, context)
    limits = jnp.broadcast_to(limits, (rows.shape[0], costs.draft.shape[0]))
    # Whole drafts of the first that is asked, of which now none, now some and now all is kept: what
    # policies see in a run.
    earlier = jnp.cumsum(limits, 1) - limits
    limits = jnp.where(earlier == 0, limits, 0)
    accepted = jnp.minimum((trip.number + rows[:, None]) % (limits + 2), limits)
    state = policy.learn(costs, trip.policy, Outcome(~nobody, limits, limits, accepted))
    length = length + jnp.sum(accepted, 1) + 1
    least, most = costs.contexts[0].astype(jnp.int32), costs.contexts[-1].astype(jnp.int32)
    length = jnp.where(length > most, least, length)
    return Trip(state, length, trip.number + 1)


def _no_draws(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("a policy decides how much is drafted, not what")
