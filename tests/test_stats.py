"""Counters and the rates they give."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import stats, testing
from tests import support


def test_counting_two_rounds_by_hand() -> None:
    """Three rows: one accepts 2 of 3, one all of 2, one is finished and must not count."""
    counters = stats.init(3, 3, 2, 2)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(counters))
    one = dict(
        active=jnp.array([True, True, False]),
        drafted=jnp.array([3, 2, 0], jnp.int32),
        accepted=jnp.array([2, 2, 0], jnp.int32),
        emitted=jnp.array([3, 3, 0], jnp.int32),
        part=jnp.array([1, 0, 0], jnp.int32),
        width=jnp.int32(1),
    )
    counters = stats.count(counters, **one)
    two = dict(
        one, drafted=jnp.array([0, 3, 0], jnp.int32), accepted=jnp.array([0, 0, 0], jnp.int32)
    )
    two |= dict(part=jnp.array([-1, 0, 0], jnp.int32))
    counters = stats.count(counters, **two | dict(emitted=jnp.array([1, 1, 0]), width=jnp.int32(0)))
    assert counters.rounds.tolist() == [2, 2, 0]
    assert counters.emitted.tolist() == [4, 4, 0]
    assert counters.drafted.tolist() == [3, 5, 0]
    assert counters.judged.tolist() == [[1, 1, 1], [2, 1, 0], [0, 0, 0]]
    assert counters.accepted.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert counters.asked.tolist() == [[0, 1], [2, 0], [0, 0]]
    assert counters.drafted_by.tolist() == [[0, 3], [5, 0], [0, 0]]
    assert counters.judged_by.tolist() == [[0, 3], [3, 0], [0, 0]]
    assert counters.accepted_by.tolist() == [[0, 2], [2, 0], [0, 0]]
    assert counters.widths.tolist() == [1, 1]
    assert all(leaf.dtype == jnp.int32 for leaf in counters)
    assert stats.acceptance_rate(counters) == 4 / 6
    assert stats.acceptance_by_position(counters)[:2] == [2 / 3, 2 / 2]
    assert stats.tokens_per_pass(counters) == 8 / 4


def test_rates_of_nothing_are_nan() -> None:
    counters = stats.init(2, 2, 1, 1)
    assert math.isnan(stats.acceptance_rate(counters))
    assert math.isnan(stats.tokens_per_pass(counters))
    assert all(math.isnan(rate) for rate in stats.acceptance_by_position(counters))
    assert stats.acceptance_by_position(stats.init(2, 0, 1, 1)) == []


def test_the_rate_estimates_alpha_though_rounds_stop_at_the_first_refusal(seed: int) -> None:
    """accepted / judged is the censored estimate; accepted / drafted would give 0.59 for 0.8."""
    rng = np.random.default_rng(seed)
    accepted = np.cumprod(rng.random((20_000, 4)) < 0.8, 1).sum(1).astype(np.int32)
    counters = stats.count(
        stats.init(20_000, 4, 1, 1),
        active=jnp.ones(20_000, bool),
        drafted=jnp.full(20_000, 4, jnp.int32),
        accepted=jnp.asarray(accepted),
        emitted=jnp.asarray(accepted + 1),
        part=None,
        width=jnp.int32(0),
    )
    assert stats.acceptance_rate(counters) == pytest.approx(0.8, abs=0.01)
    assert stats.acceptance_by_position(counters) == pytest.approx([0.8] * 4, abs=0.02)


def test_a_run_counts_what_it_did() -> None:
    """F73: passes, drafted, judged, accepted and emitted apart, each as the script dictates."""
    table = testing.scripted_table(0, 16)
    prompts = [[1, 2], [3, 4, 5]]
    script = np.full((2, 128), -1, np.int32)
    for row, prompt in enumerate(prompts):
        truth = support.plain_greedy(table, prompt, 9)
        script[row, len(prompt) : len(prompt) + 9] = truth
    script[1, 3 + 2] = (script[1, 3 + 2] + 1) % 16  # row 1: the third token is wrong once
    out = specjax.sample(
        testing.scripted_target(16),
        table,
        prompts,
        drafter=testing.oracle(4),
        drafter_params=jnp.asarray(script),
        max_new_tokens=9,
    )
    # Row 0: 4 + 1, then 3 + 1 (the budget leaves room for 3). Row 1: 2 + 1, 4 + 1, then 0 + 1.
    assert out.stats.rounds.tolist() == [2, 3]
    assert out.stats.emitted.tolist() == [9, 9] == out.lengths.tolist()
    assert out.stats.drafted.tolist() == [7, 8]
    assert out.stats.judged.tolist() == [[2, 2, 2, 1], [2, 2, 2, 1]]
    assert out.stats.accepted.tolist() == [[2, 2, 2, 1], [2, 2, 1, 1]]
    assert out.stats.widths.sum() == 3
    assert stats.tokens_per_pass(out.stats) == 18 / 5
