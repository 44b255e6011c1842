"""Suffix decoding in plain Python, by its docstring's words; knows nothing of arrays."""

from __future__ import annotations

import collections
from collections.abc import Sequence

NOTHING, PARTS = -1, 32


def held(outputs: Sequence[Sequence[int]], capacity: int) -> list[int]:
    """What past outputs hold after these, the oldest first."""
    flat = [NOTHING] * capacity
    for output in outputs:
        flat += [*output, NOTHING]
    return flat[-capacity:]


def draft(
    past: list[int],
    row: list[int],
    *,
    k: int,
    n_max: int = 16,
    n_min: int = 1,
    growth: int | None = 1,
    min_prob: float = 0.1,
    limit: int | None = None,
) -> list[int]:
    """The draft that should follow ``row``."""
    for n in range(min(n_max, len(row)), n_min - 1, -1):
        for text in (row, past):
            sources = [
                slot
                for slot in range(n, len(text))
                if text[slot - n : slot] == row[-n:] and text[slot] != NOTHING
            ]
            if sources:
                latest = {slot % PARTS: slot for slot in sources}.values()
                most = min(k, k if growth is None else growth * n, k if limit is None else limit)
                follows = {
                    slot: periodic(row, slot, k) if text is row else ending(past, slot)
                    for slot in latest
                }
                return voted(follows, most, min_prob)
    return []


def periodic(row: list[int], slot: int, count: int) -> list[int]:
    text = list(row)
    for i in range(count):
        text.append(text[slot + i])
    return text[len(row) :]


def ending(past: list[int], slot: int) -> list[int]:
    return past[slot : past.index(NOTHING, slot)]


def voted(follows: dict[int, list[int]], most: int, min_prob: float) -> list[int]:
    """Token by token the most frequent of those that agree so far; of equals the latest."""
    total, out = len(follows), []
    for i in range(most):
        agree = {slot: text[i] for slot, text in follows.items() if text[:i] == out and text[i:]}
        count = collections.Counter(agree.values())
        if not count:
            break
        _, _, token = max((count[token], slot, token) for slot, token in agree.items())
        if count[token] / total < min_prob:
            break
        out.append(token)
    return out
