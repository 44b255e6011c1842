"""The tables of ``eval.speedup``, and what they call things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tabulate

from eval.rows import ALL, Row


def tables(rows: Sequence[Row]) -> str:
    """The summary: modes, then categories, then what else there is to say of each mode."""
    parts = []
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        some = [row for row in rows if row["temperature"] == temperature]
        parts.append(f"{heading(temperature)}\n{_speeds(some)}")
    parts.append(f"Latency and cost, all prompts\n{_latency(rows)}")
    return "\n\n".join(parts)


def heading(temperature: float) -> str:
    """What a temperature is called."""
    return f"Sampling at temperature {temperature:g}" if temperature else "Greedy"


def _speeds(rows: Sequence[Row]) -> str:
    groups = [row for row in rows if row["prompt"] == ALL]
    categories = [c for c in dict.fromkeys(row["category"] for row in groups) if c != ALL]
    lines = []
    for category in [*categories, ALL]:
        for row in groups:
            if row["category"] == category and (row["mode"] != "plain" or category == ALL):
                plain = _plain(groups, row)
                lines.append(
                    {
                        "category": category.replace("_", " "),
                        "mode": row["label"],
                        "n": row["prompts"],
                        "plain\ntok/s": _cell(plain["tokens_per_second"], ".1f"),
                        "its\ntok/s": _cell(row["tokens_per_second"], ".1f"),
                        "tokens\na pass": _cell(row["tokens_per_pass"], ".2f"),
                        "accep-\nted": _cell(row["acceptance_rate"], ".1%"),
                        "speed-\nup": _cell(row["speedup"], ".2f"),
                        "95%": _interval(row),
                        "pre-\ndicted": _cell(row["predicted_speedup"], ".2f"),
                        "first\ndifference": _difference(row),
                    }
                )
    return _render(lines)


def _latency(rows: Sequence[Row]) -> str:
    lines = [
        {
            "mode": row["label"],
            "temp.": f"{row['temperature']:g}",
            "first\ntoken ms": _cell(row["ttft_ms"], ".0f"),
            "pause\np50 ms": _cell(row["itl_p50_ms"], ".1f"),
            "pause\np95 ms": _cell(row["itl_p95_ms"], ".1f"),
            "draft\ncost": _cell(row["draft_cost"], ".2f"),
            "over-\nhead": _cell(row["engine_overhead"], ".1%"),
            "com-\npile s": _cell(row["compile_s"], ".1f"),
            "accepted by position": _positions(row),
        }
        for row in rows
        if row["prompt"] == ALL and row["category"] == ALL
    ]
    return _render(lines)


def _plain(groups: Sequence[Row], row: Row) -> Row:
    return next(r for r in groups if r["mode"] == "plain" and r["category"] == row["category"])


def _interval(row: Row) -> str:
    if row["speedup_low"] is None or row["mode"] == "plain":
        return ""
    return f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}"


def _difference(row: Row) -> str:
    if row["temperature"] or not row["lossless"]:
        return ""
    if row["first_difference"] is None:
        return "None"
    return f"{row['first_difference']} (margin {_cell(row['margin'], '.1g')})"


def _positions(row: Row) -> str:
    rates = (row.get(f"acceptance_rate_{i + 1}") for i in range(row["k"]))
    return " ".join("-" if rate is None else f"{100 * rate:.0f}" for rate in rates)


def _cell(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def _render(lines: Sequence[Row]) -> str:
    text = ("category", "mode", "first\ndifference", "accepted by position")
    align = ["left" if name in text else "right" for name in (lines[0] if lines else ())]
    return tabulate.tabulate(lines, headers="keys", disable_numparse=True, colalign=align)
