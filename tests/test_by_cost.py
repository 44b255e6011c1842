"""What the policy counts, what it makes of it, and what it hands on; without a target."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import policies
from specjax.by_cost import by_cost
from specjax.prospects import Costs
from tests.support import (
    FLAT,
    STEEP,
    context_of,
    costs_of,
    counts_after,
    geometric,
    outcome_of,
)

K = 4


def run_policy(
    policy: policies.Policy,
    costs: Costs,
    accepts: Callable[[int, np.ndarray], Any],
    rounds: int,
    *,
    batch: int = 1,
) -> list[int]:
    """Limits round by round, of one drafter that always drafts as much as it is asked for.

    ``accepts(round, limits [B])`` gives the accepted counts.
    """
    nodes = costs.target.shape[1] - 1
    state, out = policy.init(costs, batch, 1, nodes), []
    choose, learn = jax.jit(policy.choose), jax.jit(policy.learn)
    for number in range(rounds):
        limit = np.minimum(choose(costs, state, context_of(batch))[:, 0], nodes)
        accepted = np.minimum(accepts(number, limit), limit)
        state = learn(costs, state, outcome_of(limit, limit, accepted))
        out.append(int(limit[0]))
    return out


def run_in_turn(
    policy: policies.Policy,
    costs: Costs,
    drafts: Callable[[int, int], tuple[int, int]],
    rounds: int,
    *,
    batch: int = 1,
) -> np.ndarray:
    """Limits ``[rounds, D]``, the same in all rows.

    ``drafts(drafter, limit)`` gives how much a drafter that is asked drafts, and how much is right.
    """
    count, nodes = costs.draft.shape[0], costs.target.shape[1] - 1
    state, out = policy.init(costs, batch, count, nodes), []
    choose, learn = jax.jit(policy.choose), jax.jit(policy.learn)
    for _ in range(rounds):
        limits = choose(costs, state, context_of(batch))
        numbers = np.zeros([3, batch, count], np.int32)
        for row, of_row in enumerate(limits.tolist()):
            for i, limit in enumerate(of_row):
                if limit:
                    numbers[:, row, i] = limit, *drafts(i, limit)
                if numbers[1, row, i]:
                    break
        state = learn(costs, state, outcome_of(*numbers))
        out.append(np.asarray(limits[0]))
    return np.stack(out)


def counted_by_hand(limit: int, drafted: int, accepted: int) -> list[list[int]]:
    """right, could, drafted, asked by position, of one round."""
    out: list[list[int]] = [[], [], [], []]
    for position in range(1, K + 1):
        asked = limit >= position
        out[0].append(accepted >= position)
        out[1].append(asked and accepted >= position - 1)
        out[2].append(drafted >= position)
        out[3].append(asked and drafted >= position - 1)
    return out


def test_counts_are_censored() -> None:
    """A token after a refused one, or past the limit, says nothing; one not drafted is not right."""
    policy = by_cost(memory=10)
    fading = np.array([[0.9], [1 - 1 / 160]], np.float32)
    for limit in range(K + 1):
        for drafted in range(limit + 1):
            for accepted in range(drafted + 1):
                state = policy.init(FLAT, 1, 1, K)
                state = state._replace(right=state.right + 10, could=state.could + 20)
                outcome = outcome_of([limit], [drafted], [accepted])
                after = policy.learn(FLAT, state, outcome)
                want = counted_by_hand(limit, drafted, accepted)
                for new, old, events in zip(after[:4], state[:4], want, strict=True):
                    faded = np.asarray(old[0, :, 0]) * fading + np.float32(events)
                    if limit == 0:  # who isn't asked keeps what was seen in all
                        faded[1] = old[0, 1, 0]
                    np.testing.assert_allclose(new[0, :, 0], faded, rtol=1e-6)


def test_who_comes_after_one_that_spoke_counts_nothing() -> None:
    """In the first row the look-up drafts two of three, one right; in the second it is silent."""
    policy = by_cost(memory=10)
    state = policy.init(TWO, 2, 2, K)
    state = state._replace(right=state.right + 10, could=state.could + 20)
    outcome = outcome_of([[3, 0], [3, 2]], [[2, 0], [0, 2]], [[1, 0], [0, 1]])
    after = policy.learn(TWO, state, outcome)
    for row, drafter, numbers in ((0, 0, (3, 2, 1)), (1, 0, (3, 0, 0)), (1, 1, (2, 2, 1))):
        for new, old, events in zip(after[:4], state[:4], counted_by_hand(*numbers), strict=True):
            faded = np.asarray(old[row, :, drafter]) * [[0.9], [1 - 1 / 160]] + np.float32(events)
            np.testing.assert_allclose(new[row, :, drafter], faded, rtol=1e-6)
    for new, old in zip(after[:4], state[:4], strict=True):
        np.testing.assert_allclose(new[0, 0, 1], 0.9 * old[0, 0, 1], rtol=1e-6)
        np.testing.assert_array_equal(new[0, 1, 1], old[0, 1, 1])
    assert after.silent.tolist() == [[0, 1], [0, 0]]


def test_a_frozen_row_counts_nothing() -> None:
    policy = by_cost()
    state = policy.init(FLAT, 2, 1, K)
    outcome = outcome_of([1, 1], [1, 1], [1, 1], active=[True, False])
    after = policy.learn(FLAT, state, outcome)
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(after, state, strict=True))
    assert not np.array_equal(after.right[0], state.right[0])


def test_it_drafts_all_where_that_is_free_and_nothing_where_it_never_pays() -> None:
    always = geometric(0.7, 1, seed=2)
    assert set(run_policy(by_cost(), FLAT, always, 40)) == {K}
    assert set(run_policy(by_cost(), STEEP, always, 200)) == {0}


TWO = costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.0, drafters=2)  # the second may be made dearer
NEVER = lambda *_: 0  # noqa: E731


@pytest.mark.parametrize("step", [0.05, 0.5])
def test_tries_are_as_rare_as_they_are_dear(step: float) -> None:
    """Each loses the step, and as nothing is hoped for, one comes when that is half a percent."""
    costs = costs_of((1, 1, 1.6), step, accepted=0.001)
    limits = run_policy(by_cost(), costs, NEVER, 600)
    assert set(limits) == {0, 1}
    gaps = np.diff(np.flatnonzero(limits))
    assert len(gaps) > 3 and np.all(np.abs(gaps - step / 0.005) <= 1), gaps


@pytest.mark.parametrize("step", [0.1, 0.35])
def test_hope_that_was_disappointed_does_not_come_back_by_itself(step: float) -> None:
    """It begins with hope, gives up, and then loses half a percent of the time, or little more.

    (By what is still hoped for a try seems to lose less than it does.)
    """
    costs = costs_of((1, 1, 1.6), step, accepted=0.6)
    limits = np.array(run_policy(by_cost(), costs, NEVER, 1000))
    gave_up = int(np.argmin(limits))
    assert 0 < gave_up < 25
    assert 0 < step * np.sum(limits[gave_up:]) / 1000 < 0.0075
    assert step * np.sum(limits[500:]) / 500 < 0.0065


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9])
def test_it_decodes_as_fast_as_with_the_best_length(alpha: float) -> None:
    """From knowing nothing on; a length once thought too long is tried again."""
    costs = costs_of((1, 1.05, 1.1, 1.3, 1.5, 1.7, 1.9), 0.1)
    tokens = np.cumsum([alpha**n for n in range(7)])
    seconds = np.asarray(costs.target)[0] + 0.1 * np.arange(7)
    chosen = np.array(run_policy(by_cost(), costs, geometric(alpha, 8, 3), 300, batch=8))
    speed = tokens[chosen].sum() / seconds[chosen].sum()
    assert speed > 0.97 * (tokens / seconds).max(), np.bincount(chosen)


def test_it_comes_back_when_drafts_get_better() -> None:
    costs = costs_of((1, 1.2, 1.3, 1.4, 1.5), 0.05)
    bad_then_good = lambda number, limits: 0 if number < 150 else K  # noqa: E731
    limits = run_policy(by_cost(), costs, bad_then_good, 400)
    assert np.mean(np.array(limits[60:150]) == 0) > 0.9
    assert limits[-60:] == [K] * 60


def test_long_drafts_are_tried_where_short_ones_do_well() -> None:
    """A look-up that drafts ten tokens in one round of four, all right, and else four.

    Asked for ten it is faster, but by four tokens that are right in 85% nobody would guess so.
    """
    costs = costs_of((1, 1.07, 1.25, 1.25, 1.25, 2.2, 2.2, 2.2, 2.2, 2.2, 2.2))
    rng, number = np.random.default_rng(8), itertools.count()

    def drafts(_: int, limit: int) -> tuple[int, int]:
        long = next(number) % 4 == 0
        drafted = min(limit, 10 if long else 4)
        return drafted, drafted if long else min(drafted, int(rng.geometric(0.15)) - 1)

    limits = run_in_turn(by_cost(), costs, drafts, 120)
    assert np.mean(np.array(limits[-60:]) == 10) > 0.8


def test_the_better_drafter_is_asked() -> None:
    """Both always have a draft, so the first must keep still."""
    costs = costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.05, drafters=2)
    rng = np.random.default_rng(7)

    def drafts(drafter: int, limit: int) -> tuple[int, int]:
        return limit, min(limit, int(rng.geometric(1 - (0.3, 0.8)[drafter])) - 1)

    limits = np.array(run_in_turn(by_cost(), costs, drafts, 200))[50:]
    assert np.mean((limits[:, 0] == 0) & (limits[:, 1] > 0)) > 0.9


def test_one_that_could_be_better_is_tried_now_and_then() -> None:
    """Both always draft, two tokens are right, and the second is dearer: the first is silenced."""
    costs, policy = TWO._replace(draft=TWO.draft.at[1, 1:].add(0.1)), by_cost(probe_share=1.0)
    limits = run_in_turn(policy, costs, lambda _, limit: (limit, min(limit, 2)), 100)
    assert np.flatnonzero(limits[:, 0] == 0).tolist() == list(range(4, 100, 5))


def test_each_drafter_has_its_own_limit() -> None:
    """A look-up that speaks in one round of four, and is right; and a head that is often wrong."""
    costs = costs_of((1, 1.1, 1.4, 1.7, 2.0), 0.0, drafters=2)
    costs = costs._replace(draft=costs.draft.at[1].set(0.2 * jnp.arange(K + 1, dtype=jnp.float32)))
    for alpha, most in ((0.7, 1), (0.1, 0)):
        drafts = look_up_and_head(np.random.default_rng(3), 0.25, alpha)
        limits = run_in_turn(by_cost(), costs, drafts, 300)[150:]
        assert np.mean((limits[:, 0] == K) & (limits[:, 1] == most)) > 0.9, alpha


def look_up_and_head(
    rng: np.random.Generator, speaks: float, alpha: float
) -> Callable[[int, int], tuple[int, int]]:
    """A look-up that speaks in some rounds, and is right; and a head that always does."""

    def drafts(drafter: int, limit: int) -> tuple[int, int]:
        if drafter == 0:
            return (limit, limit) if rng.random() < speaks else (0, 0)
        return limit, min(limit, int(rng.geometric(1 - alpha)) - 1)

    return drafts


def test_one_behind_others_is_tried_where_it_would_be_asked() -> None:
    """With those before it, if they leave it rounds enough; without, if they always speak."""
    costs = TWO._replace(draft=TWO.draft.at[1, 1:].add(0.4))
    policy = by_cost(probe_share=1.0, probe_every=4)
    for speaks in (0.5, 1.0):
        drafts = look_up_and_head(np.random.default_rng(4), speaks, 1e-9)
        limits = run_in_turn(policy, costs, drafts, 200)[40:]
        tried = limits[limits[:, 1] > 0]
        assert len(tried) > 10
        assert np.all((tried[:, 0] == 0) == (speaks == 1.0))


def test_one_that_got_better_behind_a_good_one_comes_back() -> None:
    """Alone it would be slower than the look-up is; behind it, it is worth its while."""
    costs = costs_of((1, 1, 1, 1, 1), 0.0, drafters=2)
    costs = costs._replace(draft=costs.draft.at[1].set(0.3 * jnp.arange(K + 1, dtype=jnp.float32)))
    rng, rounds = np.random.default_rng(5), [0]

    def drafts(drafter: int, limit: int) -> tuple[int, int]:
        if drafter == 0:
            rounds[0] += 1
            return (limit, limit) if rng.random() < 0.4 else (0, 0)
        return limit, limit if rounds[0] > 120 else 0

    limits = run_in_turn(by_cost(probe_share=0.05), costs, drafts, 500)
    assert np.mean(limits[60:120, 1] == 0) > 0.7 and np.mean(limits[-100:, 1] > 0) > 0.9


def test_rows_in_which_another_speaks_make_no_tries() -> None:
    """A head that pays stays as it is, and one that doesn't is tried, whoever speaks where."""
    costs = costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.0, drafters=3)
    step = jnp.arange(K + 1, dtype=jnp.float32)
    costs = costs._replace(draft=costs.draft.at[1].set(0.02 * step).at[2].set(0.05 * step))
    rng = np.random.default_rng(2)

    def drafts(drafter: int, limit: int) -> tuple[int, int]:
        if drafter == 0:
            return (limit, limit) if rng.random() < 0.6 else (0, 0)
        if drafter == 1:
            return limit, min(limit, int(rng.geometric(0.2)) - 1)
        return limit, 0

    limits = run_in_turn(by_cost(), costs, drafts, 200, batch=8)[50:]
    tries = (limits[:, 1] == 0) & (limits[:, 2] > 0)
    assert np.all(limits[:, 0] == K) and np.mean(limits[:, 1] == K) > 0.85
    assert 1 <= np.sum(tries) < 15


def test_the_next_run_expects_what_this_one_saw() -> None:
    """Shares of all rounds seen, hope counting for three; positions never asked keep theirs."""
    policy = by_cost(memory=10**6, weight=3.0)
    counts = counts_after([2, 2, 2, 1], [2, 1, 0, 1], rows=2)
    learned = policy.learned(FLAT, counts, jnp.array([True, False]))
    np.testing.assert_allclose(learned.accepted[0, :3], [4.8 / 7, 2.8 / 5, 0.6], rtol=1e-4)
    np.testing.assert_allclose(learned.drafted, 1, rtol=1e-4)
    np.testing.assert_allclose(learned.seen[:, 0, :3], [[4, 2, 0], [4, 3, 0]], rtol=1e-4)
    again = policy.learned(learned, counts, jnp.array([True, True]))  # four rounds count for four
    np.testing.assert_allclose(again.accepted[0, 0], (4.8 / 7 * 4 + 6) / 12, rtol=1e-4)
    for name in ("contexts", "target", "draft"):
        assert np.array_equal(getattr(again, name), getattr(FLAT, name))


def test_what_was_seen_is_forgotten_in_the_end() -> None:
    policy, counts = by_cost(memory=2), counts_after([K] * 50, [K] * 50)
    learned = FLAT
    for _ in range(9):
        learned = policy.learned(learned, counts, jnp.array([True]))
    assert np.max(learned.seen) == 32 and np.min(learned.accepted) > 0.99
    learned = policy.learned(learned, counts_after([K] * 50, [0] * 50), jnp.array([True]))
    assert np.max(learned.accepted[0, 0]) < 0.5


def test_a_position_that_was_seen_is_not_hoped_for() -> None:
    """The first token is nearly always right, and the second, which the last run saw, hardly."""
    costs = costs_of((1, 1.1, 1.3, 1.6, 2.0), 0.05)
    seen = costs._replace(
        accepted=jnp.array([[0.9, 0.1, 0.6, 0.6]]), seen=jnp.zeros([2, 1, K]).at[:, :, :2].set(50)
    )
    first = [run_policy(by_cost(), x, NEVER, 1)[0] for x in (costs, seen)]
    assert first[0] > 1 and first[1] == 1


def test_over_short_runs_it_comes_back_too() -> None:
    """Runs of six rounds: drafts are bad in the first ten, and good from then on."""
    costs, policy = costs_of((1, 1.2, 1.3, 1.4, 1.5), 0.05), by_cost()
    choose, learn, asked = jax.jit(policy.choose), jax.jit(policy.learn), []
    for run in range(60):
        state, limits = policy.init(costs, 1, 1, K), []
        for _ in range(6):
            limit = choose(costs, state, context_of(1))
            accepted = limit if run >= 10 else 0 * limit
            state = learn(costs, state, outcome_of(limit, limit, accepted))
            limits.append(int(limit[0, 0]))
        costs = policy.learned(costs, state, jnp.array([True]))
        asked.append(limits)
    assert np.mean(np.array(asked[5:10]) == 0) > 0.8
    assert asked[-20:] == [[K] * 6] * 20
