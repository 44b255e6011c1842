"""What speculation should buy: the formulas of Leviathan et al. (2023), with measured costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

DraftCost = float | Callable[[int], float]
PassCost = Callable[[int], float]


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens a round emits, (1 - alpha^(k+1)) / (1 - alpha): equation 1, for iid acceptance."""
    return float(k + 1) if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def speedup(
    alpha: float, k: int, draft_cost: DraftCost, pass_cost: PassCost | None = None
) -> float:
    """Speed-up over plain decoding: expected tokens / (k c + v), theorem 3.8.

    Args:
      alpha: acceptance rate.
      k: draft tokens a round.
      draft_cost: c, one draft step in units of a one-token target pass; or a function of k, the
        cost of a whole draft in that unit.
      pass_cost: v(T), the cost of a target pass over T tokens in the same unit; the paper's own
        assumption, v = 1, by default.

    Returns:
      The ratio of speeds.
    """
    draft = draft_cost(k) if callable(draft_cost) else k * draft_cost
    verify = pass_cost(k + 1) if pass_cost else 1.0
    return expected_tokens(alpha, k) / (draft + verify)


def best_k(
    alpha: float,
    draft_cost: DraftCost,
    pass_cost: PassCost | None = None,
    candidates: Iterable[int] = range(1, 21),
) -> int:
    """The draft length of the largest speed-up (the smallest one where several tie)."""
    return max(candidates, key=lambda k: (speedup(alpha, k, draft_cost, pass_cost), -k))


def break_even(
    draft_cost: DraftCost,
    pass_cost: PassCost | None = None,
    candidates: Iterable[int] = range(1, 21),
) -> float | None:
    """The acceptance rate above which some draft length is faster than plain decoding.

    Every speed-up grows with the acceptance rate, so there is one, and it is found by halving. At
    one draft token it is c + v(2) - 1.

    Args:
      draft_cost: as in ``speedup``.
      pass_cost: as in ``speedup``.
      candidates: draft lengths to choose from, at least 1.

    Returns:
      The rate, to 1e-9; None where even a draft that is always right is no faster.
    """
    lengths = tuple(candidates)

    def pays(alpha: float) -> bool:
        return any(speedup(alpha, k, draft_cost, pass_cost) > 1 for k in lengths)

    if not pays(1.0):
        return None
    low, high = 0.0, 1.0
    if pays(low):
        return low
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
