"""Rows of ``eval.batch_sweep``: what the cells of a measurement say, one flat dict a row.

Columns are those of all evaluations; of their own these rows have:

* ``context``: tokens of each prompt; ``alpha``: the synthetic acceptance rate, or null.
* ``tokens_per_second`` is the whole batch's, without prefill, until every row is finished;
  ``row_tokens_per_second`` a row's share of it.
* ``speedup`` and ``ratio_to_best``: the median over repeats of the ratio to plain decoding, and to
  the fixed draft length that is the fastest in this cell (by the median of its speeds), of
  decodings that stood next to each other; ``..._low`` and ``..._high``: a 95% bootstrap interval
  over repeats. ``best_k`` is that length. (It was picked by the same numbers, so that its speed is
  rather too high, and the ratio too low.)
* ``full_speedup``: the same as ``speedup`` up to the first finished row: what a batch that is
  refilled at once would gain (``generate_many``). A static batch waits for its slowest row.
* ``drafted_per_round``: draft tokens that a row submitted in a round.
* ``round_ms``: a round of the batch; ``predicted_round_ms``: what the cost table says of a round of
  whole drafts (it must agree, or adaptive drafting decides by wrong costs).
* ``new_tokens``, ``rounds``, ``drafted``, ``judged``, ``accepted``: the counts behind the rates, of
  all rows and repeats.
* ``margin``: at a first difference, the gap between plain decoding's two best logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from eval import checks
from eval.chat import Chat
from eval.modes import PLAIN, Mode
from eval.rows import interval
from eval.sweep_bench import ADAPTIVE, Cell, Trial
from specjax.costs import CostTable

Row = dict[str, Any]


class Crossover(NamedTuple):
    """From where on a mode is slower than plain decoding.

    Attributes:
      context: tokens of each prompt.
      alpha: the synthetic acceptance rate.
      mode: the mode.
      batch: the batch size, between two that were measured; None: it never is.
    """

    context: int
    alpha: float | None
    mode: str
    batch: float | None


def build(
    cells: Sequence[Cell], table: CostTable, compile_s: Mapping[Mode, float], seed: int
) -> list[Row]:
    """A row for each mode of each cell.

    Args:
      cells: the measurement.
      table: what rounds should cost.
      compile_s: seconds of compilation by mode.
      seed: of the bootstrap.
    """
    rows = []
    for cell in cells:
        plain, *drafting = cell.trials
        fixed = [mode for mode in drafting if mode.name != ADAPTIVE]
        best = max(fixed, key=lambda mode: _speed(cell.trials[mode]))
        for mode in cell.trials:
            row = _row(cell, table, mode, plain, best, seed)
            rows.append(row | {"compile_s": round(compile_s[mode], 2)})
    return rows


def crossover(batches: Sequence[int], speedups: Sequence[float]) -> float | None:
    """The batch size from which on a mode stays slower than plain decoding.

    Args:
      batches: ascending.
      speedups: one for each.

    Returns:
      Between two batch sizes, interpolated on their logarithms; the first one where the mode never
      was faster; None where it is as fast at the last.
    """
    below = len(batches)
    while below and speedups[below - 1] < 1:
        below -= 1
    if below == len(batches):
        return None
    if not below:
        return float(batches[0])
    (x0, x1), (y0, y1) = np.log2(batches[below - 1 : below + 1]), speedups[below - 1 : below + 1]
    return float(2 ** (x0 + (y0 - 1) / (y0 - y1) * (x1 - x0)))


def crossovers(rows: Sequence[Row]) -> list[Crossover]:
    """The crossover of every fixed draft length, context and acceptance rate.

    Adaptive drafting keeps about as fast as plain decoding: where it crosses says nothing.
    """
    out = []
    where = dict.fromkeys((r["context"], r["alpha"], r["mode"]) for r in rows)
    for context, alpha, mode in where:
        if mode not in (PLAIN, ADAPTIVE):
            own = [
                r for r in rows if (r["context"], r["alpha"], r["mode"]) == (context, alpha, mode)
            ]
            own.sort(key=lambda row: row["batch"])
            at = crossover([r["batch"] for r in own], [r["speedup"] for r in own])
            out.append(Crossover(context, alpha, mode, at and _number(at)))
    return out


def worst(rows: Sequence[Row], column: str) -> Row:
    """The row of the adaptive mode whose ratio is the lowest, by the lower end of its interval."""
    own = [row for row in rows if row["mode"] == ADAPTIVE]

    def lower(row: Row) -> float:
        low = row[f"{column}_low"]
        return row[column] if low is None else low

    return min(own, key=lower)


def in_all(rows: Sequence[Row]) -> dict[str, float]:
    """How many times as fast as plain each mode is over all cells: plain's seconds by its own.

    A cell with more repeats weighs more.
    """
    seconds: dict[str, float] = {}
    for row in rows:
        took = row["new_tokens"] / row["tokens_per_second"]
        seconds[row["mode"]] = seconds.get(row["mode"], 0.0) + took
    return {mode: _number(seconds[PLAIN] / took) for mode, took in seconds.items()}


def differences(cells: Sequence[Cell], rows: Sequence[Row], chat: Chat) -> list[str]:
    """Checks greedy outputs of lossless modes against plain ones; notes places in the rows.

    Two passes of different widths round differently, so at a near tie of the two best logits either
    token may come (see ``eval.checks``).

    Returns:
      A sentence for each failure.
    """
    failures, limit = [], checks.near_tie(chat)
    for cell in cells:
        plain, *drafting = cell.trials
        for mode in drafting:
            if not (mode.greedy and mode.verifier.lossless):
                continue
            row = next(row for row in rows if _is_of(row, cell, mode))
            for repeat, index, at, gap in _differences(cell, chat, mode, plain):
                first = row["first_difference"]
                row["first_difference"] = at if first is None else min(first, at)
                row["margin"] = max(gap, row["margin"] or 0.0)
                if not gap < limit:
                    failures.append(
                        f"{mode.name} differs from plain greedy decoding at batch {cell.batch}, "
                        f"context {cell.context}, in row {index} of repeat {repeat} at token {at}, "
                        f"where plain's two best logits are {gap:.2g} apart; only below {limit:g} "
                        "may rounding decide: this is a bug"
                    )
                    break
    return failures


def _differences(cell: Cell, chat: Chat, mode: Mode, plain: Mode) -> Any:
    """Repeat, row, place and margin of every row's first difference."""
    for repeat, (ours, theirs) in enumerate(
        zip(cell.trials[mode], cell.trials[plain], strict=True)
    ):
        for row in np.flatnonzero(np.any(ours.tokens != theirs.tokens, 1)):
            at = int(np.argmax(ours.tokens[row] != theirs.tokens[row]))
            ids = [*cell.prompts[repeat][row], *theirs.tokens[row, :at].tolist()]
            yield repeat, int(row), at, checks.margin(chat, ids)


def _is_of(row: Row, cell: Cell, mode: Mode) -> bool:
    where = cell.batch, cell.context, cell.alpha, mode.name
    return (row["batch"], row["context"], row["alpha"], row["mode"]) == where


def _row(cell: Cell, table: CostTable, mode: Mode, plain: Mode, best: Mode, seed: int) -> Row:
    trials, predicted = cell.trials[mode], None
    if mode is plain:
        predicted = table.target_seconds(cell.batch, cell.context, 1)
    elif mode.name != ADAPTIVE:
        predicted = table.round_seconds(cell.batch, cell.context, mode.k)
    counts = _counts(trials)
    full = [
        ours.full_tokens_per_second / theirs.full_tokens_per_second
        for ours, theirs in zip(trials, cell.trials[plain], strict=True)
    ]
    speed = _speed(trials)
    passes = [t.seconds / int(t.stats.widths.sum()) for t in trials]
    return {
        "mode": mode.name,
        "drafter": mode.drafter.name if mode.drafter else None,
        "verifier": mode.verifier.name,
        "temperature": mode.temperature,
        "k": mode.k,
        "batch": cell.batch,
        "context": cell.context,
        "alpha": cell.alpha,
        "tokens_per_second": _number(speed),
        "row_tokens_per_second": _number(speed / cell.batch),
        "tokens_per_pass": _number(counts["new_tokens"] / counts["rounds"]),
        "acceptance_rate": _share(counts["accepted"], counts["judged"]),
        "drafted_per_round": _number(counts["drafted"] / counts["rounds"]),
        "round_ms": _number(1e3 * np.median(passes)),
        "predicted_round_ms": None if predicted is None else _number(1e3 * predicted),
        **_ratio("speedup", trials, cell.trials[plain], seed),
        "full_speedup": _number(np.median(full)),
        **_ratio("ratio_to_best", trials, cell.trials[best], seed),
        "best_k": best.k,
        "first_difference": None,
        "margin": None,
        "lossless": mode.verifier.lossless,
        "repeats": len(trials),
        **counts,
    }


def _ratio(
    name: str, trials: Sequence[Trial], others: Sequence[Trial], seed: int
) -> dict[str, float | None]:
    """The median ratio of the speeds of pairs, and the ends of its interval (not of itself)."""
    if trials is others:
        return {name: 1.0, f"{name}_low": None, f"{name}_high": None}
    pairs = zip(trials, others, strict=True)
    ratios = [ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in pairs]
    low, high = interval(ratios, seed)
    return {name: _number(np.median(ratios)), f"{name}_low": low, f"{name}_high": high}


def _speed(trials: Sequence[Trial]) -> float:
    return float(np.median([trial.tokens_per_second for trial in trials]))


def _counts(trials: Sequence[Trial]) -> dict[str, int]:
    all_stats = [trial.stats for trial in trials]
    return {
        "new_tokens": sum(trial.tokens.size for trial in trials),
        "rounds": sum(int(s.rounds.sum()) for s in all_stats),
        "drafted": sum(int(s.drafted.sum()) for s in all_stats),
        "judged": sum(int(s.judged.sum()) for s in all_stats),
        "accepted": sum(int(s.accepted.sum()) for s in all_stats),
    }


def _share(part: int, whole: int) -> float | None:
    return _number(part / whole) if whole else None


def _number(value: Any) -> float:
    """A plain float of four decimals."""
    assert math.isfinite(value)
    return round(float(value), 4)
