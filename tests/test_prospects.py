"""What a round is expected to bring and to take: against every outcome, enumerated and weighed."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.by_cost import by_cost
from specjax.prospects import (
    Prospects,
    by_itself,
    estimate,
    expectation,
    fastest,
    prospects,
)
from tests.support import FLAT, STEEP, costs_of, counts_after, geometric, outcome_of

K = 4


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
        some, took = by_itself(hopes)
        lengths = jnp.argmax((some / took)[:, 1:], 1).astype(jnp.int32) + 1
        return fastest(hopes, lengths)[1], jnp.max(tokens / seconds)

    shares = [np.divide(*both(random_hopes(rng, rows, drafters, nodes))) for _ in range(200)]
    assert min(shares) > (0.999 if rows == 1 else 0.99)
    assert np.mean(np.array(shares) > 1 - 1e-5) > 0.95


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


def test_what_was_seen_weighs_more_than_hope() -> None:
    """Five refused drafts after an expectation of 0.6: 1.8 of 8 rounds, or 7.2 of 17."""
    counts = counts_after([1] * 5, [0] * 5)
    for seen, share in ((0, 1.8 / 8), (5, 3 / 10), (500, 7.2 / 17)):
        rounds = jnp.full([1, K], seen, jnp.float32)
        prior, live = jnp.full([1, K], 0.6), jnp.ones([1], bool)
        got = estimate(counts.right, counts.could, prior, rounds, live, 3.0)
        assert float(got[0, 0, 0]) == pytest.approx(share, rel=1e-4)


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
