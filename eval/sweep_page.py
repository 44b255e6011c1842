"""A sweep over batch sizes on a page: its table, its sentences and its plot."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from eval import results, speedup_axes
from eval.modes import PLAIN
from eval.sweep_bench import ADAPTIVE
from eval.sweep_rows import Crossover, Row, crossovers, in_all, worst

_ADAPTIVE = "#d55e00"
# From dark to light, told apart from each other and from the adaptive mode by the colour-blind too.
_FIXED = ("#08306b", "#2879b9", "#73b2d8", "#009e73", "#8dd3a8")
_FEW = 6  # repeats below which the smallest and the largest one enclose the median too seldom


def table(rows: Sequence[Row]) -> str:
    """All rows, by context and acceptance rate, then by batch."""
    synthetic = any(row["alpha"] is not None for row in rows)
    lines = []
    for row in sorted(rows, key=lambda row: (row["context"], row["alpha"] or 0, row["batch"])):
        lines.append(
            {
                "\ncontext": str(row["context"]),
                **({"\nalpha": f"{row['alpha']:g}"} if synthetic else {}),
                "\nbatch": str(row["batch"]),
                "\nmode": row["mode"],
                "tok/s\nin all": f"{row['tokens_per_second']:.1f}",
                "tok/s\na row": f"{row['row_tokens_per_second']:.1f}",
                "tokens\nper pass": f"{row['tokens_per_pass']:.2f}",
                "drafted\na round": f"{row['drafted_per_round']:.2f}",
                "accep-\nted": _percent(row["acceptance_rate"]),
                "round\nms": f"{row['round_ms']:.1f}",
                "by\ncosts": _milliseconds(row["predicted_round_ms"]),
                "times as fast\nas plain (95%)": _with_ends(row, "speedup"),
                "same, while\nfull": f"{row['full_speedup']:.2f}",
                "as fast as\nthe best k (95%)": _with_ends(row, "ratio_to_best"),
            }
        )
    return results.table(lines)


def remarks(rows: Sequence[Row], about: str = "") -> list[str]:
    """What a reader of the table must know, in words.

    Args:
      rows: of a sweep.
      about: a sentence on the models.
    """
    out = [
        "tok/s: without prefill, until every row is finished. While full: until the first row is, "
        "as in a batch that is refilled at once. By costs: a round of whole drafts, by the cost "
        "table. 95%: bootstrap over repeats.",
    ]
    if min(row["repeats"] for row in rows) < _FEW:
        out.append(
            f"Intervals over fewer than {_FEW} repeats span all of them, and are still narrower "
            "than 95%: raise config.repeats."
        )
    for column, of in (("speedup", "plain decoding"), ("ratio_to_best", "the best fixed k")):
        row = worst(rows, column)
        where = f"batch {row['batch']}, context {row['context']}{_at(row['alpha'])}"
        out.append(f"Adaptive at its worst: {_with_ends(row, column)} of {of} ({where}).")
    totals = [f"{mode} {ratio:.2f}" for mode, ratio in in_all(rows).items() if mode != PLAIN]
    out.append(f"All cells together, times as fast as plain: {', '.join(totals)}.")
    out += [_sentence(one) for one in crossovers(rows)]
    if any(not row["lossless"] for row in rows):
        out.append(
            "Drafts were accepted at fixed rates (alpha), whatever they were: the timings are "
            "real, the outputs are not the target's (lossless=False)."
        )
    return [*out, about] if about else out


def write(path: pathlib.Path, rows: Sequence[Row], title: str) -> None:
    """Draws the plot: speed-up by batch, a panel a context (across) and acceptance rate (down).

    Args:
      path: the PNG, written whole or not at all.
      rows: of a sweep.
      title: what was measured, and on what.
    """
    contexts = sorted({row["context"] for row in rows})
    alphas = list(dict.fromkeys(row["alpha"] for row in rows))
    modes = [mode for mode in dict.fromkeys(row["mode"] for row in rows) if mode != PLAIN]
    places, ends = crossovers(rows), ("speedup", "speedup_high")
    top = 1.12 * max(1, *(row[name] or 0 for row in rows for name in ends))
    figure = results.figure((1.9 + 4.6 * len(contexts), 1.1 + 3.5 * len(alphas)))
    panels = figure.subplots(len(alphas), len(contexts), squeeze=False, sharex=True, sharey=True)
    for line, alpha in zip(panels, alphas, strict=True):
        for axes, context in zip(line, contexts, strict=True):
            own = [r for r in rows if (r["context"], r["alpha"]) == (context, alpha)]
            mine = [one for one in places if (one.context, one.alpha) == (context, alpha)]
            speedup_axes.dress(axes, f"{context} tokens of context{_at(alpha)}", PLAIN)
            _panel(axes, own, mine, modes)
        line[0].set_ylabel(speedup_axes.YLABEL)
    panels[0][0].set_ylim(0, top)
    for axes in panels[-1]:
        axes.set_xlabel("batch")
    panels[0][-1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    if any(not row["lossless"] for row in rows):
        title = f"SYNTHETIC ACCEPTANCE, lossless=False: timing only\n{title}"
    marks = "bars: 95% interval over repeats; rings: slower than plain from this batch on"
    speedup_axes.heading(figure, title, marks)
    results.save_figure(figure, path)


def _panel(
    axes: Any, rows: Sequence[Row], places: Sequence[Crossover], modes: Sequence[str]
) -> None:
    batches = sorted({row["batch"] for row in rows})
    crossed: list[float] = []
    for number, mode in enumerate(modes):
        own = sorted((row for row in rows if row["mode"] == mode), key=lambda row: row["batch"])
        adaptive = mode == ADAPTIVE
        color = _ADAPTIVE if adaptive else _FIXED[number % len(_FIXED)]
        speedups = [row["speedup"] for row in own]
        style = {"color": color, "lw": 2.4 if adaptive else 1.4, "zorder": 4 if adaptive else 3}
        axes.plot(batches, speedups, marker="o", ms=4, label=mode, **style)
        for row in own:
            if row["speedup_low"] is not None:
                span = row["speedup_low"], row["speedup_high"]
                axes.plot([row["batch"]] * 2, span, color=color, lw=1, alpha=0.5, zorder=2)
        for one in places:
            if one.mode == mode and one.batch is not None:
                # Lengths that cross at about the same batch must not cover each other's number.
                low = sum(abs(at - one.batch) < 0.3 * one.batch for at in crossed)
                crossed.append(one.batch)
                axes.plot([one.batch], [1], "o", ms=9, mfc="none", mec=color, mew=1.4, zorder=5)
                axes.annotate(
                    f"{one.batch:.3g}", (one.batch, 1), xytext=(0, -16 - 10 * low), va="center",
                    textcoords="offset points", ha="center", fontsize=8, color=color, zorder=6,
                )  # fmt: skip
    speedup_axes.by_batch(axes, batches)


def _sentence(one: Crossover) -> str:
    where = f"{one.mode} at context {one.context}{_at(one.alpha)}"
    if one.batch is None:
        return f"{where}: at the largest batch not slower than plain decoding."
    return f"{where}: slower than plain decoding from batch {one.batch:.3g} on."


def _at(alpha: float | None) -> str:
    return "" if alpha is None else f", alpha {alpha:g}"


def _with_ends(row: Row, column: str) -> str:
    low, high = row[f"{column}_low"], row[f"{column}_high"]
    ends = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return f"{row[column]:.2f}{ends}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
