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
from specjax.by_cost import Costs, Counts, by_cost, estimate, expectation
from specjax.policies import Outcome
from tests.support import FLAT, STEEP, context_of, costs_of

K = 4


def run_policy(
    policy: policies.Policy,
    costs: Costs,
    accepts: Callable[[int, np.ndarray], Any],
    rounds: int,
    *,
    batch: int = 1,
    drafters: int = 1,
) -> list[tuple[int, int]]:
    """Drafter and limit round by round; ``accepts(round, limits [B])`` gives the accepted counts."""
    nodes = costs.target.shape[1] - 1
    state, out = policy.init(costs, batch, drafters, nodes), []
    choose, learn = jax.jit(policy.choose), jax.jit(policy.learn)
    for number in range(rounds):
        chosen, limit = choose(costs, state, context_of(batch))
        limit = jnp.minimum(limit, nodes)
        outcome = Outcome(
            active=jnp.ones([batch], bool),
            drafter=jnp.broadcast_to(chosen, [batch]),
            limit=limit,
            drafted=limit,
            accepted=jnp.minimum(jnp.asarray(accepts(number, np.asarray(limit)), jnp.int32), limit),
        )
        state = learn(costs, state, outcome)
        out.append((int(chosen), int(limit[0])))
    return out


def geometric(alpha: float, batch: int, seed: int) -> Callable[[int, np.ndarray], Any]:
    """Independent acceptance of each token with the same chance."""
    rng = np.random.default_rng(seed)
    return lambda number, limits: rng.geometric(1 - alpha, batch) - 1


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
                numbers = (jnp.full([1], x, jnp.int32) for x in (0, limit, drafted, accepted))
                state = policy.init(FLAT, 1, 1, K)
                state = state._replace(right=state.right + 10, could=state.could + 20)
                after = policy.learn(FLAT, state, Outcome(jnp.ones([1], bool), *numbers))
                want = counted_by_hand(limit, drafted, accepted)
                for new, old, events in zip(after[:4], state[:4], want, strict=True):
                    faded = np.asarray(old[0, :, 0]) * fading + np.float32(events)
                    if limit == 0:  # who isn't asked keeps what was seen in all
                        faded[1] = old[0, 1, 0]
                    np.testing.assert_allclose(new[0, :, 0], faded, rtol=1e-6)


def test_a_frozen_row_counts_nothing() -> None:
    policy = by_cost()
    state = policy.init(FLAT, 2, 1, K)
    ones = jnp.ones([2], jnp.int32)
    after = policy.learn(FLAT, state, Outcome(jnp.array([True, False]), 0 * ones, ones, ones, ones))
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(after, state, strict=True))
    assert not np.array_equal(after.right[0], state.right[0])


@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_the_estimate_is_the_acceptance_rate(alpha: float) -> None:
    """Although drafts end at the first refused token (F: accepted / drafted is far too low)."""
    rows = 4000
    state, policy = by_cost(memory=1000).init(FLAT, rows, 1, K), by_cost(memory=1000)
    accepts = geometric(alpha, rows, seed=1)
    for number in range(3):
        limit = np.full(rows, 2 + number % 3)
        accepted = jnp.asarray(np.minimum(accepts(number, limit), limit), jnp.int32)
        limits = jnp.asarray(limit, jnp.int32)
        zeros = jnp.zeros([rows], jnp.int32)
        outcome = Outcome(jnp.ones([rows], bool), zeros, limits, limits, accepted)
        state = policy.learn(FLAT, state, outcome)
    prior = jnp.full([1, K], 0.5)
    unseen, live = jnp.zeros([1, K]), jnp.ones([rows], bool)
    shares = estimate(state.right, state.could, prior, unseen, live, 1.0)
    tries = np.asarray(state.could[:, 0].sum((0, 1)))
    for position in range(K):
        error = 5 * np.sqrt(alpha * (1 - alpha) / tries[position])
        assert abs(float(shares[:, 0, position].mean()) - alpha) < error + 1e-3


def expected_speed(*arguments: Any) -> jax.Array:
    tokens, seconds = expectation(*arguments)
    return tokens / seconds


def expected_by_enumeration(costs: Costs, chance: np.ndarray, drafted: np.ndarray) -> np.ndarray:
    """Tokens a second ``[N+1]``, rows ``[B, N]``: every outcome of every row, weighed."""
    out, nodes = [], chance.shape[1]
    passes, work = np.asarray(costs.target)[0], np.asarray(costs.draft)[0]
    for asked in range(nodes + 1):
        seconds = 0.0
        for lengths in itertools.product(range(asked + 1), repeat=len(chance)):
            weight = 1.0
            for row, length in enumerate(lengths):
                weight *= np.prod(drafted[row, :length])
                weight *= 1 - drafted[row, length] if length < asked else 1
            longest = max(lengths)
            seconds += weight * (passes[longest] + work[min(longest + 1, asked)])
        tokens = sum(1 + sum(np.prod(row[:n]) for n in range(1, asked + 1)) for row in chance)
        out.append(tokens / seconds)
    return np.array(out)


@pytest.mark.parametrize("batch", [1, 3])
def test_expected_speed_is_the_enumerated_one(batch: int) -> None:
    rng = np.random.default_rng(5)
    costs = costs_of((1, 1.1, 1.3, 1.9), 0.07, accepted=0.4, drafted=0.7)
    could, asked = rng.uniform(1, 9, (2, batch, 2, 1, 3)).astype(np.float32)
    could[:, 1], asked[:, 1] = could[:, 0] + could[:, 1], asked[:, 0] + asked[:, 1]
    right, drafted = could * rng.random(could.shape), asked * rng.random(could.shape)
    right[:, 1], drafted[:, 1] = (
        np.maximum(right[:, 0], right[:, 1]),
        np.maximum(*drafted.swapaxes(0, 1)),
    )
    counts = by_cost().init(costs, batch, 1, 3)._replace(
        right=jnp.asarray(right, jnp.float32), could=jnp.asarray(could),
        drafted=jnp.asarray(drafted, jnp.float32), asked=jnp.asarray(asked),
    )  # fmt: skip
    live, length = jnp.ones([batch], bool), jnp.full([batch], 9, jnp.int32)
    speed = expected_speed(costs, counts, length, live, 2.0)

    def leaning(hits: np.ndarray, tries: np.ndarray, prior: float) -> np.ndarray:
        """Rows on the others, those on what was before, that on the prior or on hope."""
        out, best = np.zeros([batch, 3]), prior
        (right, seen_right), (of, seen_of) = (
            hits[:, :, 0].swapaxes(0, 1),
            tries[:, :, 0].swapaxes(0, 1),
        )
        for n in range(3):
            old_right, old_of = ((x - y).sum(0)[n] for x, y in ((seen_right, right), (seen_of, of)))
            before = (old_right + 2 * max(prior, best)) / (old_of + 2)
            known = (right.sum(0)[n] + 2 * before) / (of.sum(0)[n] + 2)
            best = known + (1 - known) * min(seen_of.sum(0)[n] / 2, 1)
            for row in range(batch):
                rest_right, rest_of = (np.delete(x[:, n], row).sum() for x in (right, of))
                others = (rest_right + 2 * before) / (rest_of + 2)
                out[row, n] = (right[row, n] + 2 * others) / (of[row, n] + 2)
        return out

    want = expected_by_enumeration(costs, leaning(right, could, 0.4), leaning(drafted, asked, 0.7))
    np.testing.assert_allclose(speed[0], want, rtol=1e-5)


def test_costs_are_those_of_the_filled_slots() -> None:
    """Interpolated between contexts, and held outside them."""
    costs = FLAT._replace(
        contexts=jnp.array([100.0, 200.0]), target=jnp.stack([FLAT.target[0], 3 * FLAT.target[0]])
    )
    counts, live = by_cost().init(FLAT, 1, 1, K), jnp.ones([1], bool)
    for length, factor in ((50, 1), (100, 1), (150, 2), (200, 3), (900, 3)):
        speed = expected_speed(costs, counts, jnp.full([1], length, jnp.int32), live, 1.0)
        np.testing.assert_allclose(speed[0, 0], 1 / factor, rtol=1e-6)


def test_finished_rows_don_t_count() -> None:
    counts = by_cost().init(FLAT, 2, 1, K)
    counts = counts._replace(right=counts.right.at[1].set(90), could=counts.could.at[1].set(90))
    live, length = jnp.array([True, False]), jnp.array([9, 9], jnp.int32)
    alone = expected_speed(STEEP, by_cost().init(FLAT, 1, 1, K), length[:1], live[:1], 3.0)
    np.testing.assert_allclose(expected_speed(STEEP, counts, length, live, 3.0), alone)


def test_it_drafts_all_where_that_is_free_and_nothing_where_it_never_pays() -> None:
    always = geometric(0.7, 1, seed=2)
    assert {limit for _, limit in run_policy(by_cost(), FLAT, always, 40)} == {K}
    assert {limit for _, limit in run_policy(by_cost(), STEEP, always, 200)} == {0}


NEVER = lambda *_: 0  # noqa: E731


@pytest.mark.parametrize(
    ("step", "tries"), [(0.05, [16, 49, 114, 243, 372]), (0.5, [100, 201, 302])]
)
def test_tries_are_as_rare_as_they_are_dear(step: float, tries: list[int]) -> None:
    """After 16 rounds, 32, 64, 128; and where a try takes half a round more, after a hundred."""
    costs = costs_of((1, 1, 1.6), step, accepted=0.01)
    limits = [limit for _, limit in run_policy(by_cost(), costs, NEVER, 400)]
    assert set(limits) == {0, 1} and np.flatnonzero(limits).tolist() == tries


@pytest.mark.parametrize("step", [0.1, 0.35])
def test_hope_that_was_disappointed_does_not_come_back_by_itself(step: float) -> None:
    """It begins with hope, gives up, and then takes half a percent of the time, or little more."""
    costs = costs_of((1, 1, 1.6), step, accepted=0.6)
    limits = np.array([limit for _, limit in run_policy(by_cost(), costs, NEVER, 1000)])
    gave_up = int(np.argmin(limits))
    assert 0 < gave_up < 25
    assert 0 < step * np.sum(limits[gave_up:]) / 1000 < 0.006


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9])
def test_it_decodes_as_fast_as_with_the_best_length(alpha: float) -> None:
    """From knowing nothing on; a length once thought too long is tried again."""
    costs = costs_of((1, 1.05, 1.1, 1.3, 1.5, 1.7, 1.9), 0.1)
    tokens = np.cumsum([alpha**n for n in range(7)])
    seconds = np.asarray(costs.target)[0] + 0.1 * np.arange(7)
    rounds = run_policy(by_cost(), costs, geometric(alpha, 8, 3), 300, batch=8)
    chosen = np.array([limit for _, limit in rounds])
    speed = tokens[chosen].sum() / seconds[chosen].sum()
    assert speed > 0.97 * (tokens / seconds).max(), np.bincount(chosen)


def test_it_comes_back_when_drafts_get_better() -> None:
    costs = costs_of((1, 1.2, 1.3, 1.4, 1.5), 0.05)
    bad_then_good = lambda number, limits: 0 if number < 150 else K  # noqa: E731
    limits = [n for _, n in run_policy(by_cost(), costs, bad_then_good, 400)]
    assert np.mean(np.array(limits[60:150]) == 0) > 0.9
    assert limits[-60:] == [K] * 60


def test_long_drafts_are_tried_where_short_ones_do_well() -> None:
    """A look-up that drafts ten tokens in one round of four, all right, and else four.

    Asked for ten it is faster, but by four tokens that are right in 85% nobody would guess so.
    """
    costs = costs_of((1, 1.07, 1.25, 1.25, 1.25, 2.2, 2.2, 2.2, 2.2, 2.2, 2.2))
    rng, policy, limits = np.random.default_rng(8), by_cost(), []
    state = policy.init(costs, 1, 1, 10)
    for number in range(120):
        chosen, limit = policy.choose(costs, state, context_of(1))
        long = number % 4 == 0
        drafted = jnp.minimum(limit, 10 if long else 4)
        accepted = drafted if long else jnp.minimum(drafted, int(rng.geometric(0.15)) - 1)
        outcome = Outcome(jnp.ones([1], bool), chosen[None], limit, drafted, accepted)
        state = policy.learn(costs, state, outcome)
        limits.append(int(limit[0]))
    assert np.mean(np.array(limits[-60:]) == 10) > 0.8


def test_the_better_drafter_is_asked() -> None:
    costs = costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.05, drafters=2)
    rng, asked = np.random.default_rng(7), []
    policy = by_cost()
    state = policy.init(costs, 1, 2, K)
    for _ in range(200):
        chosen, limit = policy.choose(costs, state, context_of(1))
        alpha = (0.3, 0.8)[int(chosen)]
        accepted = jnp.minimum(limit, int(rng.geometric(1 - alpha)) - 1)
        outcome = Outcome(jnp.ones([1], bool), chosen[None], limit, limit, accepted)
        state = policy.learn(costs, state, outcome)
        asked.append(int(chosen))
    assert np.mean(asked[50:]) > 0.9


def test_one_that_could_be_better_is_tried_now_and_then() -> None:
    """The second is dearer: where the first gets two of four, and not where it gets all."""
    costs = costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.0, drafters=2)
    costs = costs._replace(draft=costs.draft.at[1].add(0.1))
    policy = by_cost(probe_share=1.0)
    for right, tries in ((2, [16, 49]), (K, [])):
        accepts = lambda *_, right=right: right  # noqa: E731
        asked = [who for who, _ in run_policy(policy, costs, accepts, 60, drafters=2)]
        assert np.flatnonzero(asked).tolist() == tries


def counts_after(limits: list[int], accepted: list[int], rows: int = 1) -> Counts:
    """What a policy that hardly forgets has counted after these rounds, of whole drafts."""
    policy = by_cost(memory=10**6)
    state = policy.init(FLAT, rows, 1, K)
    for limit, right in zip(limits, accepted, strict=True):
        numbers = (jnp.full([rows], x, jnp.int32) for x in (0, limit, limit, right))
        state = policy.learn(FLAT, state, Outcome(jnp.ones([rows], bool), *numbers))
    return state


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


def test_what_was_seen_weighs_more_than_hope() -> None:
    """Five refused drafts after an expectation of 0.6: 1.8 of 8 rounds, or 7.2 of 17."""
    counts = counts_after([1] * 5, [0] * 5)
    for seen, share in ((0, 1.8 / 8), (5, 3 / 10), (500, 7.2 / 17)):
        rounds = jnp.full([1, K], seen, jnp.float32)
        prior, live = jnp.full([1, K], 0.6), jnp.ones([1], bool)
        got = estimate(counts.right, counts.could, prior, rounds, live, 3.0)
        assert float(got[0, 0, 0]) == pytest.approx(share, rel=1e-4)


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
    first = [run_policy(by_cost(), x, NEVER, 1)[0][1] for x in (costs, seen)]
    assert first[0] > 1 and first[1] == 1


def test_over_short_runs_it_comes_back_too() -> None:
    """Runs of six rounds: drafts are bad in the first ten, and good from then on."""
    costs, policy = costs_of((1, 1.2, 1.3, 1.4, 1.5), 0.05), by_cost()
    choose, learn, asked = jax.jit(policy.choose), jax.jit(policy.learn), []
    for run in range(60):
        state, limits = policy.init(costs, 1, 1, K), []
        for _ in range(6):
            _, limit = choose(costs, state, context_of(1))
            accepted = limit if run >= 10 else 0 * limit
            outcome = Outcome(jnp.ones([1], bool), 0 * limit, limit, limit, accepted)
            state = learn(costs, state, outcome)
            limits.append(int(limit[0]))
        costs = policy.learned(costs, state, jnp.array([True]))
        asked.append(limits)
    assert np.mean(np.array(asked[5:10]) == 0) > 0.8
    assert asked[-20:] == [[K] * 6] * 20


def test_a_position_that_was_unlucky_once_is_hoped_for_again() -> None:
    """One miss of a fourth token, where thirds are nearly always right, is no evidence."""
    costs = costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.0)
    shares = jnp.array([[0.95, 0.95, 0.95, 0.45]])
    chosen = {}
    for seen in (1, 50):
        known = costs._replace(accepted=shares, seen=jnp.full([2, 1, K], 50).at[:, 0, 3].set(seen))
        known = known._replace(seen=known.seen.astype(jnp.float32))
        tokens, _ = expectation(
            known,
            by_cost().init(known, 1, 1, K),
            jnp.array([9], jnp.int32),
            jnp.ones([1], bool),
            3.0,
        )
        chosen[seen] = float(tokens[0, K] - tokens[0, K - 1]) / 0.95**3
    assert chosen[50] == pytest.approx(0.45) and chosen[1] > 0.7
