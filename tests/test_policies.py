"""Simple policies: what they say, round by round."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import pytest

import specjax
from specjax import policies, testing
from specjax.adaptive import AdaptiveParams, adaptive
from specjax.drafters import draft_model
from specjax.policies import Outcome
from tests import support
from tests.support import context_of

VOCAB, K = 7, 4
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(10, VOCAB)
MODEL = draft_model(TARGET, K)


def drafted_by_round(policy: policies.Policy, params: object, batch: int = 1) -> list[int]:
    run = specjax.start(
        TARGET, TABLE, [[1, 2]] * batch, max_new_tokens=30,
        drafter=adaptive(MODEL, policy=policy), drafter_params=AdaptiveParams((params,)),
    )  # fmt: skip
    totals = [int(state.stats.drafted[0]) for _, state in support.rounds_of(run)]
    return [after - before for before, after in itertools.pairwise(totals)]


@pytest.mark.parametrize("k", [0, 1, 3, 9])
def test_fixed(k: int) -> None:
    counts = drafted_by_round(policies.fixed(k), -TABLE)  # always wrong: no end of the budget
    assert set(counts[:20]) == {min(k, K)}


@pytest.mark.parametrize(("batch", "k"), [(1, 0), (2, 3), (3, 3), (4, 1)])
def test_by_batch(batch: int, k: int) -> None:
    assert drafted_by_round(policies.by_batch(((2, 3), (4, 1))), -TABLE, batch)[0] == k


def test_heuristic() -> None:
    """Two more after a whole draft, one fewer after another, never none."""
    policy = policies.heuristic(3)
    state = policy.init(None, 3, 1, 5)
    kept = ([3, 1, 0], [5, 2, 0], [5, 1, 0], [5, 0, 0])
    want = ([5, 2, 2], [7, 4, 1], [7, 3, 1], [7, 2, 1])
    for accepted, after in zip(kept, want, strict=True):
        limit = jnp.minimum(policy.choose(None, state, context_of(3)), 5)
        outcome = Outcome(jnp.ones([3], bool), limit, limit, jnp.array(accepted)[:, None])
        state = policy.learn(None, state, outcome)
        assert state.tolist() == after


def test_heuristic_through_the_loop() -> None:
    assert drafted_by_round(policies.heuristic(1), TABLE)[:3] == [1, 3, 4]
    assert drafted_by_round(policies.heuristic(3), -TABLE)[:4] == [3, 2, 1, 1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: policies.fixed(-1), "k=-1"),
        (lambda: policies.by_batch(()), r"batches \[\]; they must ascend from at least 1"),
        (lambda: policies.by_batch(((4, 1), (2, 1))), r"batches \[4, 2\]"),
        (lambda: policies.by_batch(((0, 1),)), r"batches \[0\]"),
        (lambda: policies.by_batch(((1, -2),)), "k=-2 from batch 1 on"),
        (lambda: policies.heuristic(0), "first=0"),
        (lambda: policies.heuristic(2, down=-1), "down=-1"),
    ],
)
def test_bad_input_is_named(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]
