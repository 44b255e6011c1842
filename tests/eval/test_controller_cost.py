"""The controller's own time: that it is the policy's, and that all of it is done."""

from __future__ import annotations

import itertools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval import controller_cost
from specjax import policies
from specjax.by_cost import by_cost
from specjax.draft import Context
from specjax.policies import Outcome
from specjax.prospects import Costs
from tests.clock import Clock

# Passes over 1, 2 and 3 tokens; two drafters, of which the second drafts one token at most.
COSTS = Costs(
    *(
        jnp.asarray(values, jnp.float32)
        for values in (
            [4, 20], [[10, 11, 12], [12, 13, 14]], [[1, 2, 3], [1, 1.5, np.inf]],
            [[0.6, 0.6]] * 2, [[1, 1]] * 2, np.zeros([2, 2, 2]), [0, 0],
        )
    )
)  # fmt: skip


@pytest.mark.parametrize("batch", [1, 3])
def test_rounds_are_those_of_the_policy(batch: int) -> None:
    """By hand, each call alone: the same counts as from the loop, and not all rounds alike."""
    policy, count = by_cost(), 12
    trip = start = controller_cost.start(policy, COSTS, batch)
    got = controller_cost.decide(policy, COSTS, start, jnp.asarray(count, jnp.int32))
    state, length, kept = trip.policy, np.full([batch], 4, np.int32), []
    for number in range(count):
        where = jnp.asarray(length)
        context = Context(where[:, None], where, jnp.zeros([batch], bool), None, lambda: None)
        limits = np.asarray(policy.choose(COSTS, state, context))
        first = np.argmax(limits > 0, 1)[:, None]  # who drafts: the first that is asked
        limits = np.where(np.arange(2) == first, limits, 0)
        right = np.minimum((number + np.arange(batch)[:, None]) % (limits + 2), limits)
        numbers = (jnp.asarray(x, jnp.int32) for x in (limits, limits, right))
        outcome = Outcome(jnp.ones([batch], bool), *numbers)
        state = policy.learn(COSTS, state, outcome)
        length = length + right.sum(1) + 1
        length = np.where(length > 20, 4, length).astype(np.int32)
        kept.append(int(right[0].sum()))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got.policy, state)
    np.testing.assert_array_equal(got.length, length)
    assert int(got.number) == count and len(set(kept)) > 1


def test_costs_of_several_in_turn() -> None:
    one = COSTS._replace(
        **{n: getattr(COSTS, n)[:1] for n in ("draft", "accepted", "drafted", "silent")},
        seen=COSTS.seen[:, :1],
    )
    three = controller_cost.in_turn(one, 3)
    assert [x.shape for x in three[2:7]] == [(3, 3), (3, 2), (3, 2), (2, 3, 2), (3,)]
    np.testing.assert_array_equal(three.draft, np.tile(one.draft, (3, 1)))
    policy, rounds = by_cost(), jnp.asarray(9, jnp.int32)
    begin = controller_cost.start(policy, three, 2)
    assert controller_cost.decide(policy, three, begin, rounds).policy.right.shape == (2, 2, 3, 2)


@pytest.mark.parametrize("policy", [by_cost(), policies.heuristic()])
def test_seconds(policy: policies.Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of choosing and learning both, of one round, whatever the policy."""
    clock = Clock()
    monkeypatch.setattr(controller_cost, "time", clock)

    def choose(*arguments: Any) -> Any:
        return policy.choose(*arguments) + clock.spend(3)

    def learn(costs: Costs, state: Any, outcome: Outcome) -> Any:
        spent = clock.spend(2)
        return policy.learn(costs, state, outcome._replace(drafted=outcome.drafted + spent))

    costly = policy._replace(choose=choose, learn=learn)
    taken = controller_cost.seconds(costly, COSTS, batch=2, rounds=50)
    assert taken == pytest.approx(5e-3, rel=1e-9)


def test_it_is_timed_without_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is first asked when the program has been run."""
    calls = []
    decide = controller_cost.decide
    monkeypatch.setattr(
        controller_cost, "decide", lambda *args: calls.append("decide") or decide(*args)
    )
    ticks = itertools.count()
    clock = types.SimpleNamespace(perf_counter=lambda: calls.append("clock") or 0.5 * next(ticks))
    monkeypatch.setattr(controller_cost, "time", clock)
    assert controller_cost.seconds(by_cost(), COSTS, batch=1, rounds=2) == 0.25
    assert calls == ["decide"] + ["clock", "decide", "clock"] * 5
