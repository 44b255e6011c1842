"""What speculation should buy: the formulas of Leviathan et al. (2023), with measured costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens a round emits, (1 - alpha^(k+1)) / (1 - alpha): equation 1, for iid acceptance."""
    return float(k + 1) if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def speedup(
    alpha: float, k: int, draft_cost: float, pass_cost: Callable[[int], float] | None = None
) -> float:
    """Speed-up over plain decoding: expected tokens / (k c + v), theorem 3.8.

    Args:
      alpha: acceptance rate.
      k: draft tokens a round.
      draft_cost: c, one draft step in units of a one-token target pass.
      pass_cost: v(T), the cost of a target pass over T tokens in the same unit; the paper's own
        assumption, v = 1, by default.

    Returns:
      The ratio of speeds.
    """
    verify = pass_cost(k + 1) if pass_cost else 1.0
    return expected_tokens(alpha, k) / (k * draft_cost + verify)


def best_k(
    alpha: float,
    draft_cost: float,
    pass_cost: Callable[[int], float] | None = None,
    candidates: Iterable[int] = range(1, 21),
) -> int:
    """The draft length of the largest speed-up (the smallest one where several tie)."""
    return max(candidates, key=lambda k: (speedup(alpha, k, draft_cost, pass_cost), -k))
