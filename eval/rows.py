"""Rows of the results: what the cells of a measurement say, one flat dict a row.

Columns are those of all evaluations; of their own these rows have:

* ``speedup_low``, ``speedup_high``: a 95% bootstrap interval over prompts.
* ``new_tokens``, ``rounds``, ``drafted``, ``judged``, ``accepted``: the counts behind the rates; a
  round is one target pass.
* ``acceptance_rate_1`` and so on: accepted / judged at each position of the draft.
* ``label``: the mode as tables and charts call it.
* ``part_1``, ``asked_1``, ``part_acceptance_rate_1`` and so on: of drafters in turn the name of
  each, the share of rounds in which the draft was its own (or it was the last that was asked, and
  had none), and how many of its judged tokens were kept.
* ``prompts``, ``repeats``: how many are in the row.
* ``margin``: at a first difference, the gap between plain decoding's two best logits.

In words:

* ``tokens_per_second`` leaves prefill out; ``ttft_ms`` is prefill and the first round.
* ``itl_p50_ms`` and ``itl_p95_ms`` are pauses between *bursts* of a streamed answer: a round's
  tokens arrive together, so speculation makes fewer, slightly longer pauses.
* ``draft_cost`` is c: what the drafter does in a round, propose and update, for each of its k
  tokens, in units of a one-token target pass.
* ``engine_overhead`` is the share of a round that is neither the target's pass nor the drafter's
  work, all measured alone.
* ``peak_mb`` is the process's peak up to then.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eval.measure import Cell, Trial
from eval.modes import Mode
from specjax import stats, theory

Row = dict[str, Any]
ALL = "all"


def build(
    cells: Sequence[Cell], compile_s: dict[Mode, float], peak_mb: float, seed: int
) -> list[Row]:
    """Rows of every prompt, then of every category, then of everything; each by mode.

    Args:
      cells: the measurement.
      compile_s: seconds of compilation by mode.
      peak_mb: the peak of memory.
      seed: of the bootstrap.
    """
    plain = {(c.prompt.name, c.mode.temperature): c for c in cells if c.mode.name == "plain"}
    one = [_row([cell], plain, cell.prompt.category, cell.prompt.name, seed) for cell in cells]
    groups: dict[tuple[str, Mode], list[Cell]] = collections.defaultdict(list)
    for cell in cells:
        groups[cell.prompt.category, cell.mode].append(cell)
    for cell in cells:
        groups[ALL, cell.mode].append(cell)
    many = [_row(group, plain, category, ALL, seed) for (category, _), group in groups.items()]
    modes = [cell.mode for cell in cells] + [mode for _, mode in groups]
    for row, mode in zip(one + many, modes, strict=True):
        row |= {"compile_s": round(compile_s[mode], 2), "peak_mb": round(peak_mb)}
    return one + many


def first_difference(tokens: Sequence[int], plain: Sequence[int]) -> int | None:
    """Index of the first token that differs (or that one of them lacks); None: identical."""
    for index, (ours, theirs) in enumerate(zip(tokens, plain, strict=False)):
        if ours != theirs:
            return index
    return None if len(tokens) == len(plain) else min(len(tokens), len(plain))


def speedups(cell: Cell, plain: Cell) -> list[float]:
    """Ratios of speeds, mode to plain, of the repeats that stood next to each other."""
    theirs = {trial.repeat: trial.decoding.tokens_per_second for trial in plain.trials}
    return [t.decoding.tokens_per_second / theirs[t.repeat] for t in cell.trials]


def _row(cells: Sequence[Cell], plain: dict, category: str, prompt: str, seed: int) -> Row:
    mode = cells[0].mode
    pairs = [(cell, plain[cell.prompt.name, mode.temperature]) for cell in cells]
    # A prompt counts once, however often it was repeated: medians of medians.
    ratios = [float(np.median(speedups(cell, other))) for cell, other in pairs]
    low, high = interval(ratios, seed)
    trials = [trial for cell in cells for trial in cell.trials]
    counts = _counts(trials)
    pauses = [pause for cell in cells if cell.bursts for pause in cell.bursts[1]]
    differences = [
        first_difference(t.decoding.tokens, other.tokens)
        for cell, other in pairs
        if mode.greedy and mode.verifier.lossless
        for t in cell.trials
    ]
    row = {
        "mode": mode.name,
        "label": mode.label,
        "drafter": mode.drafter.name if mode.drafter else None,
        "is_copy": mode.is_copy,
        "verifier": mode.verifier.name,
        "category": category,
        "prompt": prompt,
        "temperature": mode.temperature,
        "k": mode.k,
        "batch": 1,
        "tokens_per_second": _median(cells, lambda trial: trial.decoding.tokens_per_second),
        "tokens_per_pass": _number(counts["new_tokens"] / counts["rounds"]),
        "acceptance_rate": _ratio(counts["accepted"], counts["judged"]),
        "speedup": _number(np.median(ratios)),
        "speedup_low": low,
        "speedup_high": high,
        "predicted_speedup": _median(cells, lambda trial: predicted_speedup(mode, trial)),
        "engine_overhead": _median(cells, lambda trial: engine_overhead(mode, trial)),
        "draft_cost": _median(cells, lambda trial: draft_cost(mode, trial)),
        "ttft_ms": _median(cells, lambda trial: 1e3 * trial.decoding.ttft_s),
        "itl_p50_ms": _number(1e3 * np.percentile(pauses, 50)) if pauses else None,
        "itl_p95_ms": _number(1e3 * np.percentile(pauses, 95)) if pauses else None,
        "first_difference": min((d for d in differences if d is not None), default=None),
        "margin": None,
        "lossless": mode.verifier.lossless,
        "prompts": len(cells),
        "repeats": max(len(cell.trials) for cell in cells),
        **counts,
    }
    judged = sum(trial.decoding.stats.judged.sum(0) for trial in trials)
    accepted = sum(trial.decoding.stats.accepted.sum(0) for trial in trials)
    for number, part in enumerate(mode.parts):
        asked, kept, judged_by = (
            sum(int(getattr(trial.decoding.stats, name)[0, number]) for trial in trials)
            for name in ("asked", "accepted_by", "judged_by")
        )
        row[f"part_{number + 1}"] = part.drafter.name if part.drafter else None
        row[f"asked_{number + 1}"] = _ratio(asked, counts["rounds"])
        row[f"part_acceptance_rate_{number + 1}"] = _ratio(kept, judged_by)
    for position in range(mode.k):
        rate = _ratio(int(accepted[position]), int(judged[position]))
        row[f"acceptance_rate_{position + 1}"] = rate
    return row


def _counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Totals over trials: reported apart, for a rate alone can't be checked."""
    all_stats = [trial.decoding.stats for trial in trials]
    return {
        "new_tokens": sum(len(trial.decoding.tokens) for trial in trials),
        "rounds": sum(int(s.rounds.sum()) for s in all_stats),
        "drafted": sum(int(s.drafted.sum()) for s in all_stats),
        "judged": sum(int(s.judged.sum()) for s in all_stats),
        "accepted": sum(int(s.accepted.sum()) for s in all_stats),
    }


def pass_seconds(trial: Trial) -> float:
    """Seconds of an average round's target pass, by the widths that were used."""
    decoding = trial.decoding
    used = zip(decoding.widths, decoding.stats.widths.tolist(), strict=True)
    return sum(count * trial.passes[width] for width, count in used) / decoding.rounds


def draft_cost(mode: Mode, trial: Trial) -> float | None:
    """What a drafter does for one draft token, in units of a one-token target pass.

    None for plain decoding, and for drafters in turn, whose tokens cost what their parts' do.
    """
    if len(mode.alone) != 1:
        return None
    return trial.drafts[0].whole / mode.k / trial.passes[1]


def draft_seconds(mode: Mode, trial: Trial) -> float:
    """Seconds of the drafters' own work in an average round.

    Each part works in the rounds in which it was asked. A draft that may end early has taken one
    guess more than it has tokens: the one that was too improbable. Guesses after the first are
    taken to cost the same each, and parts that were asked before the one whose draft it is
    (look-ups, in any sensible order) nothing.
    """
    seen, seconds = trial.decoding.stats, 0.0
    for number, (one, time) in enumerate(zip(mode.alone, trial.drafts, strict=True)):
        asked = int(seen.asked[0, number])
        guesses = int(seen.drafted_by[0, number]) / asked if asked else 0
        assert one.drafter is not None
        if one.drafter.varies:
            guesses = min(guesses + 1, one.k)
        elif one.drafter is mode.drafter:
            guesses = one.k
        seconds += asked * time.of(guesses, one.k)
    return seconds / trial.decoding.rounds


def engine_overhead(mode: Mode, trial: Trial) -> float:
    """The share of a round that is neither the target's pass nor the drafter's own work."""
    round_s = trial.decoding.decode_s / trial.decoding.rounds
    return 1 - (pass_seconds(trial) + draft_seconds(mode, trial)) / round_s


def predicted_speedup(mode: Mode, trial: Trial) -> float | None:
    """What the formula makes of the measured acceptance rate, draft cost and pass costs.

    Of a drafter that drafts k tokens a round: ``theory.speedup``. Where drafts vary, tokens a round
    are 1 + alpha * judged / rounds, and a pass costs what the widths that were used cost.
    """
    if mode.drafter is None:
        return None
    counts, passes = trial.decoding.stats, trial.passes
    alpha = stats.acceptance_rate(counts)
    if math.isnan(alpha):
        alpha = 0.0
    if mode.always_k:
        cost = trial.drafts[0].whole / mode.k / passes[1]
        return theory.speedup(alpha, mode.k, cost, lambda width: passes[width] / passes[1])
    tokens = 1 + alpha * int(counts.judged.sum()) / trial.decoding.rounds
    return tokens * passes[1] / (pass_seconds(trial) + draft_seconds(mode, trial))


def interval(ratios: Sequence[float], seed: int) -> tuple[float | None, float | None]:
    """A 95% percentile bootstrap of the median over prompts.

    Args:
      ratios: one a prompt.
      seed: of the draws.

    Returns:
      Its ends; None for a single prompt, which says nothing about others.
    """
    if len(ratios) < 2:
        return None, None
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(ratios), size=(2000, len(ratios)))
    low, high = np.percentile(np.median(np.asarray(ratios)[draws], axis=1), [2.5, 97.5])
    return _number(low), _number(high)


def _ratio(part: int, whole: int) -> float | None:
    return _number(part / whole) if whole else None


def _median(cells: Sequence[Cell], value: Callable[[Trial], float | None]) -> float | None:
    """The median over prompts of the median over repeats; None where there is no value."""
    values = [[value(trial) for trial in cell.trials] for cell in cells]
    if values[0][0] is None:
        return None
    return _number(np.median([np.median(one) for one in values]))


def _number(value: Any) -> float:
    """A plain float of four decimals: results are read by people too."""
    return round(float(value), 4)
