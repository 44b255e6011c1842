"""How far samples lie from an exact law."""

from __future__ import annotations

import math

import numpy as np


def total_variation(counts: np.ndarray, law: np.ndarray) -> float:
    """Total variation distance between frequencies and a law over the same outcomes."""
    return float(np.abs(counts / counts.sum() - law).sum() / 2)


def expected_total_variation(law: np.ndarray, n: int) -> float:
    """What n perfect samples show on average: it shrinks as 1 / sqrt(n) and never is 0.

    By the normal approximation, so slightly too large where an outcome is hardly ever seen.
    """
    return float(np.sqrt(law * (1 - law)).sum() / math.sqrt(2 * math.pi * n))


def chi_square_p(counts: np.ndarray, law: np.ndarray) -> float:
    """p-value of a chi-square test; cells that expect fewer than 5 are pooled.

    By the transformation of Wilson and Hilferty (1931), within a few percent at these sizes.
    """
    if np.any(counts[law == 0]):
        return 0.0
    expected = law * counts.sum()
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    if freedom < 1:
        return 1.0
    statistic = float(np.sum((counts - expected) ** 2 / expected))
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2
