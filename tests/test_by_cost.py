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
from specjax.by_cost import (
    Costs,
    Counts,
    Prospects,
    by_cost,
    each_alone,
    estimate,
    expectation,
    fastest,
    prospects,
)
from specjax.policies import Outcome
from tests.support import FLAT, STEEP, context_of, costs_of

K = 4


def outcome_of(limits: Any, drafted: Any, accepted: Any, active: Any = None) -> Outcome:
    """Of rows ``[B]`` of one drafter, or ``[B, D]``."""
    numbers = [jnp.asarray(x, jnp.int32) for x in (limits, drafted, accepted)]
    numbers = [x[:, None] if x.ndim == 1 else x for x in numbers]
    rows = jnp.ones(numbers[0].shape[:1], bool) if active is None else jnp.asarray(active)
    return Outcome(rows, *numbers)


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
) -> list[list[int]]:
    """Limits ``[D]`` round by round, of one row.

    ``drafts(drafter, limit)`` gives how much a drafter that is asked drafts, and how much is right.
    """
    count, nodes = costs.draft.shape[0], costs.target.shape[1] - 1
    state, out = policy.init(costs, 1, count, nodes), []
    choose, learn = jax.jit(policy.choose), jax.jit(policy.learn)
    for _ in range(rounds):
        limits = choose(costs, state, context_of(1))[0].tolist()
        numbers = np.zeros([3, 1, count], np.int32)
        for i, limit in enumerate(limits):
            if limit:
                numbers[:, 0, i] = limit, *drafts(i, limit)
            if numbers[1, 0, i]:
                break
        state = learn(costs, state, outcome_of(*numbers))
        out.append(limits)
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


def test_a_frozen_row_counts_nothing() -> None:
    policy = by_cost()
    state = policy.init(FLAT, 2, 1, K)
    outcome = outcome_of([1, 1], [1, 1], [1, 1], active=[True, False])
    after = policy.learn(FLAT, state, outcome)
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
        accepted = np.minimum(accepts(number, limit), limit)
        state = policy.learn(FLAT, state, outcome_of(limit, limit, accepted))
    prior = jnp.full([1, K], 0.5)
    unseen, live = jnp.zeros([1, K]), jnp.ones([rows], bool)
    shares = estimate(state.right, state.could, prior, unseen, live, 1.0)
    tries = np.asarray(state.could[:, 0].sum((0, 1)))
    for position in range(K):
        error = 5 * np.sqrt(alpha * (1 - alpha) / tries[position])
        assert abs(float(shares[:, 0, position].mean()) - alpha) < error + 1e-3


def expected(*arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and seconds ``[N+1]`` by the limit of one drafter."""
    hopes = prospects(*arguments)
    limits = jnp.arange(hopes.wider_s.shape[0] + 1, dtype=jnp.int32)[:, None]
    tokens, seconds = jax.vmap(lambda limit: expectation(hopes, limit))(limits)
    return np.asarray(tokens), np.asarray(seconds)


def expected_speed(*arguments: Any) -> np.ndarray:
    tokens, seconds = expected(*arguments)
    return tokens / seconds


def enumerated(
    passes: np.ndarray, work: np.ndarray, chance: np.ndarray, drafted: np.ndarray, limits: list[int]
) -> float:
    """Tokens a second: every outcome of every row, weighed.

    Args:
      passes: ``[N+1]`` seconds.
      work: ``[D, N+1]`` seconds.
      chance: ``[B, D, N]``, of a token to be right, given those before it.
      drafted: the same, to be drafted.
      limits: what the drafters are asked for in turn.
    """

    def of_row(row: int) -> list[tuple[float, list[int], float]]:
        """How likely, tokens drafted by drafter (-1: not asked), expected tokens."""
        out, before, nobody = [], 1.0, [-1] * len(limits)
        for i, limit in enumerate(limits):
            if not limit:
                continue
            for n in range(1, limit + 1):
                weight = np.prod(drafted[row, i, :n])
                weight *= 1 - drafted[row, i, n] if n < limit else 1
                out.append((before * weight, [*nobody[:i], n, *nobody[i + 1 :]], 0.0))
            before *= 1 - drafted[row, i, 0]
            nobody[i] = 0
        return [*out, (before, nobody, 0.0)]

    rows = range(len(chance))
    seconds = tokens = 0.0
    for outcome in itertools.product(*(of_row(row) for row in rows)):
        weight = np.prod([w for w, _, _ in outcome])
        lengths = np.max([lengths for _, lengths, _ in outcome], 0)  # [D]
        took = passes[max(0, *lengths)] + work[0, 0]
        for i, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
            took += work[i, min(length + 1, limit)] - work[i, 0] if length >= 0 else 0
        seconds += weight * took
    for row in rows:
        before = 1.0
        for i, limit in enumerate(limits):
            if limit:
                tokens += before * np.sum(np.cumprod(chance[row, i, :limit]))
                before *= 1 - drafted[row, i, 0]
    return (len(chance) + tokens) / seconds


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

    shares = (leaning(right, could, 0.4)[:, None], leaning(drafted, asked, 0.7)[:, None])
    table = np.asarray(costs.target)[0], np.asarray(costs.draft)
    want = [enumerated(*table, *shares, [limit]) for limit in range(4)]
    np.testing.assert_allclose(speed, want, rtol=1e-5)


def test_costs_are_those_of_the_filled_slots() -> None:
    """Interpolated between contexts, and held outside them."""
    costs = FLAT._replace(
        contexts=jnp.array([100.0, 200.0]), target=jnp.stack([FLAT.target[0], 3 * FLAT.target[0]])
    )
    counts, live = by_cost().init(FLAT, 1, 1, K), jnp.ones([1], bool)
    for length, factor in ((50, 1), (100, 1), (150, 2), (200, 3), (900, 3)):
        speed = expected_speed(costs, counts, jnp.full([1], length, jnp.int32), live, 1.0)
        np.testing.assert_allclose(speed[0], 1 / factor, rtol=1e-6)


def test_finished_rows_don_t_count() -> None:
    counts = by_cost().init(FLAT, 2, 1, K)
    counts = counts._replace(right=counts.right.at[1].set(90), could=counts.could.at[1].set(90))
    live, length = jnp.array([True, False]), jnp.array([9, 9], jnp.int32)
    alone = expected_speed(STEEP, by_cost().init(FLAT, 1, 1, K), length[:1], live[:1], 3.0)
    np.testing.assert_allclose(expected_speed(STEEP, counts, length, live, 3.0), alone)


def test_it_drafts_all_where_that_is_free_and_nothing_where_it_never_pays() -> None:
    always = geometric(0.7, 1, seed=2)
    assert set(run_policy(by_cost(), FLAT, always, 40)) == {K}
    assert set(run_policy(by_cost(), STEEP, always, 200)) == {0}


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
    """The second is dearer: where the first gets two of four, and not where it gets all."""
    costs = costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.0, drafters=2)
    costs = costs._replace(draft=costs.draft.at[1, 1:].add(0.1))
    policy = by_cost(probe_share=1.0)
    for right in (2, K):
        drafts = lambda _, limit, right=right: (limit, min(limit, right))  # noqa: E731
        limits = np.array(run_in_turn(policy, costs, drafts, 100))
        tries = np.flatnonzero(limits[:, 0] == 0)
        assert tries.tolist() == list(range(4, 100, 5)) if right == 2 else np.all(tries < 10)


def test_each_drafter_has_its_own_limit() -> None:
    """A look-up that speaks in one round of four, and is right; and a head that is often wrong."""
    costs = costs_of((1, 1.1, 1.4, 1.7, 2.0), 0.0, drafters=2)
    costs = costs._replace(draft=costs.draft.at[1].set(0.2 * jnp.arange(K + 1, dtype=jnp.float32)))
    for alpha, most in ((0.7, 1), (0.1, 0)):
        rng = np.random.default_rng(3)

        def drafts(
            drafter: int, limit: int, alpha: float = alpha, rng: Any = rng
        ) -> tuple[int, int]:
            if drafter == 0:
                return (limit, limit) if rng.random() < 0.25 else (0, 0)
            return limit, min(limit, int(rng.geometric(1 - alpha)) - 1)

        limits = np.array(run_in_turn(by_cost(), costs, drafts, 300))[150:]
        assert np.mean((limits[:, 0] == K) & (limits[:, 1] == most)) > 0.9, alpha


def test_one_behind_others_is_tried_where_it_would_be_asked() -> None:
    """With those before it, if they leave it rounds enough; without, if they always speak."""
    costs = costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.0, drafters=2)
    costs = costs._replace(draft=costs.draft.at[1, 1:].add(0.4))
    policy = by_cost(probe_share=1.0, probe_every=4)
    for speaks in (0.5, 1.0):
        rng = np.random.default_rng(4)

        def drafts(
            drafter: int, limit: int, speaks: float = speaks, rng: Any = rng
        ) -> tuple[int, int]:
            if drafter == 0:
                return (limit, min(limit, 2)) if rng.random() < speaks else (0, 0)
            return limit, 0

        limits = np.array(run_in_turn(policy, costs, drafts, 200))[40:]
        tried = limits[limits[:, 1] > 0]
        assert len(tried) > 10
        assert np.all((tried[:, 0] == 0) == (speaks == 1.0))


def random_hopes(rng: np.random.Generator, rows: int, drafters: int, nodes: int) -> Prospects:
    """Look-ups that are cheap and often silent, and heads that aren't."""
    quick = rng.random(drafters) < 0.5
    speaks = np.where(quick, rng.uniform(0.1, 0.8, drafters), rng.choice([0.6, 1.0], drafters))
    chance = rng.uniform(0.2, 0.95, [rows, drafters, 1]) * np.ones(nodes)
    go_on = rng.uniform(0.5, 1.0, [rows, drafters, 1]) * np.ones(nodes)
    go_on[:, :, 0] = speaks
    right = chance * go_on
    work = np.where(quick, 0.001, rng.uniform(0.02, 0.2, drafters))[:, None] * np.ones(nodes)
    work = np.where(np.arange(nodes) < rng.integers(1, nodes + 1, [drafters, 1]), work, np.inf)
    return Prospects(
        *(
            jnp.asarray(x, jnp.float32)
            for x in (
                np.ones(rows), np.cumprod(right, 2), np.cumprod(go_on, 2), 1.0,
                rng.uniform(0, 0.5, nodes), work,
            )
        )
    )  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3])
def test_the_fastest_limits_are_found(rows: int) -> None:
    """Of 200 cases with three drafters, nearly always the best of all 125; never far from it."""
    rng, drafters, nodes = np.random.default_rng(6), 3, 4
    every = jnp.asarray(list(itertools.product(range(nodes + 1), repeat=drafters)), jnp.int32)

    @jax.jit
    def both(hopes: Prospects) -> tuple[jax.Array, jax.Array]:
        tokens, seconds = jax.vmap(lambda limits: expectation(hopes, limits))(every)
        alone, _ = each_alone(drafters, nodes + 1)
        some, took = jax.vmap(jax.vmap(lambda limits: expectation(hopes, limits)))(alone)
        lengths = jnp.argmax((some / took)[:, 1:], 1).astype(jnp.int32) + 1
        return fastest(hopes, lengths)[1], jnp.max(tokens / seconds)

    shares = [np.divide(*both(random_hopes(rng, rows, drafters, nodes))) for _ in range(200)]
    assert min(shares) > 0.97 and np.mean(np.array(shares) > 1 - 1e-5) > 0.95


@pytest.mark.parametrize("rows", [1, 2])
def test_expected_speed_in_turn_is_the_enumerated_one(rows: int) -> None:
    rng, nodes = np.random.default_rng(9), 2
    for _ in range(3):
        hopes = random_hopes(rng, rows, 3, nodes)
        passes = 0.8 + np.cumsum([0, *np.asarray(hopes.wider_s)])  # and 0.2 of the drafters'
        work = 0.2 + np.cumsum(np.pad(np.asarray(hopes.work_s), ((0, 0), (1, 0))), 1)

        def by_step(running: jax.Array) -> np.ndarray:
            before = np.pad(np.asarray(running), ((0, 0), (0, 0), (1, 0)), constant_values=1)
            return before[..., 1:] / before[..., :-1]

        chance, drafted = by_step(hopes.right), by_step(hopes.drafted)
        for limits in itertools.product(range(nodes + 1), repeat=3):
            tokens, seconds = expectation(hopes, jnp.asarray(limits, jnp.int32))
            if any(np.isinf(work[i, limit]) for i, limit in enumerate(limits)):
                assert np.isinf(seconds)
                continue
            want = enumerated(passes, work, chance, drafted, list(limits))
            assert float(tokens / seconds) == pytest.approx(want, rel=1e-5), limits


def counts_after(limits: list[int], accepted: list[int], rows: int = 1) -> Counts:
    """What a policy that hardly forgets has counted after these rounds, of whole drafts."""
    policy = by_cost(memory=10**6)
    state = policy.init(FLAT, rows, 1, K)
    for limit, right in zip(limits, accepted, strict=True):
        numbers = ([x] * rows for x in (limit, limit, right))
        state = policy.learn(FLAT, state, outcome_of(*numbers))
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


def test_a_position_that_was_unlucky_once_is_hoped_for_again() -> None:
    """One miss of a fourth token, where thirds are nearly always right, is no evidence."""
    costs = costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.0)
    shares = jnp.array([[0.95, 0.95, 0.95, 0.45]])
    chosen = {}
    for seen in (1, 50):
        known = costs._replace(accepted=shares, seen=jnp.full([2, 1, K], 50).at[:, 0, 3].set(seen))
        known = known._replace(seen=known.seen.astype(jnp.float32))
        counts, length = by_cost().init(known, 1, 1, K), jnp.array([9], jnp.int32)
        tokens, _ = expected(known, counts, length, jnp.ones([1], bool), 3.0)
        chosen[seen] = float(tokens[K] - tokens[K - 1]) / 0.95**3
    assert chosen[50] == pytest.approx(0.45) and chosen[1] > 0.7
