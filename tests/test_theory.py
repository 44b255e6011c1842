"""The formulas of Leviathan et al. against sums, and against their table of the best k."""

import numpy as np
import pytest

from specjax import theory


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 0.99, 1.0])
@pytest.mark.parametrize("k", [0, 1, 5, 10])
def test_expected_tokens_is_the_sum_of_the_chances(alpha: float, k: int) -> None:
    """A round emits token i + 1 when its first i drafts were all accepted."""
    assert theory.expected_tokens(alpha, k) == pytest.approx(sum(alpha**i for i in range(k + 1)))


# By alpha: (best k, its speed-up) for c = 0.01, 0.05, 0.1, 0.2.
BEST = {
    0.5: [(5, 1.88), (3, 1.63), (2, 1.46), (1, 1.25)],
    0.6: [(7, 2.30), (4, 1.92), (3, 1.67), (2, 1.40)],
    0.7: [(9, 2.97), (6, 2.35), (4, 1.98), (3, 1.58)],
    0.8: [(14, 4.23), (8, 3.09), (6, 2.47), (4, 1.87)],
    0.9: [(24, 7.49), (13, 4.67), (10, 3.43), (7, 2.37)],
}


@pytest.mark.parametrize("alpha", BEST)
def test_best_k_and_its_speedup(alpha: float) -> None:
    for cost, (k, gain) in zip((0.01, 0.05, 0.1, 0.2), BEST[alpha], strict=True):
        assert theory.best_k(alpha, cost, candidates=range(1, 40)) == k
        assert theory.speedup(alpha, k, cost) == pytest.approx(gain, abs=0.006)


def test_a_measured_pass_cost_replaces_the_paper_s_assumption() -> None:
    gain = theory.speedup(0.8, 4, 0.1, lambda tokens: 1 + 0.05 * (tokens - 1))
    assert gain == pytest.approx(theory.expected_tokens(0.8, 4) / (4 * 0.1 + 1.2))
    dear = lambda tokens: float(tokens)  # noqa: E731
    assert theory.best_k(0.5, 0.0, dear) == 1, "passes that cost by the token: draft least"


def test_ties_take_the_smallest_k() -> None:
    assert theory.best_k(0.0, 0.0) == 1


def test_expected_tokens_by_simulation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    accepted = np.cumprod(rng.random((100_000, 6)) < 0.7, 1).sum(1)
    assert np.mean(accepted + 1) == pytest.approx(theory.expected_tokens(0.7, 6), abs=0.03)


def test_a_whole_draft_s_cost_replaces_k_steps() -> None:
    whole = lambda k: 0.3 + 0.1 * k  # noqa: E731
    assert theory.speedup(0.8, 4, whole) == pytest.approx(theory.expected_tokens(0.8, 4) / 1.7)
    assert theory.best_k(0.8, whole) > theory.best_k(0.8, 0.3)
    assert theory.best_k(0.8, lambda k: 0.1 * k) == theory.best_k(0.8, 0.1)


@pytest.mark.parametrize(
    ("c", "passes", "rate"),
    [
        (0.2, (1, 1, 1), 0.2),  # one draft token: c + v(2) - 1
        (0.1, (1, 1.3, 1.6), 0.4),
        (0.0, (1, 1.5, 1.5), (3**0.5 - 1) / 2),  # two: alpha + alpha^2 = v(3) - 1
        (0.0, (1, 1, 1), 0.0),
        (0.0, (1, 0.9, 0.9), 0.0),  # a measured pass may even be cheaper
        (0.5, (1, 1.5, 2.5), None),  # only as fast, if all are right
        (0.0, (1, 3, 3), None),
    ],
)
def test_break_even_by_hand(c: float, passes: tuple[float, ...], rate: float | None) -> None:
    cost = lambda tokens: passes[tokens - 1]  # noqa: E731
    found = theory.break_even(c, cost, (1, 2))
    assert found == (rate if rate is None else pytest.approx(rate, abs=1e-8))


def test_break_even_is_where_the_best_speedup_crosses_one() -> None:
    cost = lambda tokens: 1 + 0.04 * (tokens - 1)  # noqa: E731
    rate = theory.break_even(0.15, cost)
    assert rate is not None
    for alpha, pays in ((rate - 1e-6, False), (rate + 1e-6, True)):
        k = theory.best_k(alpha, 0.15, cost)
        assert (theory.speedup(alpha, k, 0.15, cost) > 1) == pays
