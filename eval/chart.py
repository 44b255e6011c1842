"""The chart: speed-up by category and mode."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from eval import results
from eval.report import heading, label
from eval.rows import ALL, Row

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_GREY = "#666666"


def write(path: pathlib.Path, rows: Sequence[Row], title: str) -> bool:
    """Draws the chart; a panel a temperature, a line a category.

    Args:
      path: the PNG, written whole or not at all.
      rows: of a measurement.
      title: what was measured, and on what.

    Returns:
      Whether there was anything to draw: a copy of the target is no speed-up.
    """
    drawn = [row for row in rows if row["mode"] != "plain" and not row["is_copy"]]
    if not drawn:
        return False
    temperatures = list(dict.fromkeys(row["temperature"] for row in drawn))
    categories = _by_speed(drawn)
    height = 1.9 + 0.42 * len(categories)
    figure = results.figure((1.6 + 4.6 * len(temperatures), height))
    panels = figure.subplots(1, len(temperatures), sharey=True, sharex=True, squeeze=False)[0]
    for axes, temperature in zip(panels, temperatures, strict=True):
        some = [row for row in drawn if row["temperature"] == temperature]
        _panel(axes, some, categories)
        axes.set_title(heading(temperature), fontsize=11, loc="left")
        axes.set_xlabel("times as fast as plain decoding")
    panels[0].set_yticks(range(len(categories)), [c.replace("_", " ") for c in categories])
    panels[0].get_yticklabels()[-1].set_fontweight("bold")
    if any(not row["lossless"] for row in drawn):
        title = f"SYNTHETIC ACCEPTANCE, lossless=False: timing only\n{title}"
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    results.save_figure(figure, path)
    return True


def _by_speed(rows: Sequence[Row]) -> list[str]:
    """Categories from slow to fast, and all of them together on top."""
    groups = [row for row in rows if row["prompt"] == ALL and row["category"] != ALL]
    first = groups[0]["mode"], groups[0]["temperature"]
    order = [row for row in groups if (row["mode"], row["temperature"]) == first]
    order.sort(key=lambda row: row["speedup"])
    names = [row["category"] for row in order]
    names += [c for c in dict.fromkeys(row["category"] for row in groups) if c not in names]
    return [*names, ALL]


def _panel(axes, rows: Sequence[Row], categories: Sequence[str]) -> None:
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    axes.axvline(1, color=_GREY, lw=1, zorder=1)
    axes.axvspan(0, 1, color="#fff3f0", zorder=0)  # slower than plain decoding
    axes.axhspan(len(categories) - 1.5, len(categories) - 0.5, color="#f2f2f2", zorder=0)
    for number, mode in enumerate(modes):
        color = _COLORS[number % len(_COLORS)]
        shift = 0.22 * ((len(modes) - 1) / 2 - number)
        own = [row for row in rows if row["mode"] == mode]
        groups = {row["category"]: row for row in own if row["prompt"] == ALL}
        singles = [row for row in own if row["prompt"] != ALL]
        place = {name: index + shift for index, name in enumerate(categories)}
        axes.plot(
            [row["speedup"] for row in singles],
            [place[row["category"]] for row in singles],
            "o", ms=4, mfc="none", mec=color, alpha=0.45, zorder=2, label="single prompts",
        )  # fmt: skip
        for name, row in groups.items():
            if row["speedup_low"] is not None:
                ends = row["speedup_low"], row["speedup_high"]
                axes.plot(ends, [place[name]] * 2, color=color, lw=2, zorder=3)
            axes.annotate(
                f"{row['speedup']:.2f}", (row["speedup"], place[name]),
                xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8, color=color,
            )  # fmt: skip
        axes.plot(
            [row["speedup"] for row in groups.values()],
            [place[name] for name in groups],
            "o", ms=7, color=color, zorder=4,
            label=f"{label(own[0])}: median and 95% interval over prompts",
        )  # fmt: skip
        axes.plot(
            [row["predicted_speedup"] for row in groups.values()],
            [place[name] for name in groups],
            "x", ms=6, color="black", zorder=5, label="predicted from acceptance and pass costs",
        )  # fmt: skip
    axes.set_ylim(-0.6, len(categories) - 0.4)
    axes.set_xlim(left=0)
    axes.grid(axis="x", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
