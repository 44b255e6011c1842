"""The chart: speed-up by category and mode."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from eval import results
from eval.report import heading
from eval.rows import ALL, Row

# Told apart by the colour-blind too; none is light enough to be lost on white.
_COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b4f2a", "#6a51a3",
)  # fmt: skip
_GREY = "#666666"
_ENDS = "speedup_low", "speedup_high"
_SPEEDS = "speedup", "predicted_speedup", "speedup_high"
_LINE = 0.14  # inches a mode takes in a category


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
    colors = _colors(drawn)
    highest = max(row[what] or 0 for row in drawn for what in _SPEEDS)
    right = max(1.12 * highest, 1.5)  # room for the numbers
    height = 1.9 + 0.16 * len(colors) + (0.16 + _LINE * max(len(colors), 2)) * len(categories)
    width = 1.6 + 4.6 * len(temperatures)
    figure = results.figure((width, height))
    panels = figure.subplots(1, len(temperatures), sharey=True, sharex=True, squeeze=False)[0]
    for axes, temperature in zip(panels, temperatures, strict=True):
        some = [row for row in drawn if row["temperature"] == temperature]
        _panel(axes, some, categories, colors, right)
        axes.set_title(heading(temperature), fontsize=11, loc="left")
        axes.set_xlabel("times as fast as plain decoding")
    panels[0].set_yticks(range(len(categories)), [c.replace("_", " ") for c in categories])
    panels[0].get_yticklabels()[-1].set_fontweight("bold")
    if any(not row["lossless"] for row in drawn):
        title = f"lossless=False (synthetic or lossy acceptance): not the target's output\n{title}"
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    columns = 3 if len(temperatures) > 1 else 1
    place = {"loc": "outside lower left", "ncols": columns, "frameon": False, "fontsize": 9}
    figure.legend(handles=_legend(drawn, colors), **place)
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


def _colors(rows: Sequence[Row]) -> dict[str, str]:
    """A colour for each mode, the same in all panels."""
    names = dict.fromkeys(row["mode"] for row in rows)
    return {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(names)}


def _legend(rows: Sequence[Row], colors: dict[str, str]) -> list[Any]:
    """An entry a mode, then one for each kind of mark, whatever its colour."""
    from matplotlib.lines import Line2D

    labels = {row["mode"]: row["label"] for row in reversed(rows)}
    modes = [
        Line2D([], [], marker="o", ms=7, ls="", color=color, label=labels[name])
        for name, color in colors.items()
    ]
    return [
        *modes,
        Line2D([], [], marker="o", ms=7, color=_GREY, label="median, 95% interval over prompts"),
        Line2D([], [], marker="o", ms=4, mfc="none", ls="", color=_GREY, label="a single prompt"),
        Line2D(
            [],
            [],
            marker="x",
            ms=6,
            ls="",
            color="black",
            label="predicted from acceptance and costs",
        ),
    ]


def _panel(
    axes: Any,
    rows: Sequence[Row],
    categories: Sequence[str],
    colors: dict[str, str],
    right: float,
) -> None:
    axes.axvline(1, color=_GREY, lw=1, zorder=1)
    axes.axvspan(0, 1, color="#fff3f0", zorder=0)  # slower than plain decoding
    axes.axhspan(len(categories) - 1.5, len(categories) - 0.5, color="#f2f2f2", zorder=0)
    step = 0.8 / max(len(colors), 2)
    for number, (mode, color) in enumerate(colors.items()):
        shift = step * ((len(colors) - 1) / 2 - number)
        own = [row for row in rows if row["mode"] == mode]
        groups = {row["category"]: row for row in own if row["prompt"] == ALL}
        singles = [row for row in own if row["prompt"] != ALL]
        place = {name: index + shift for index, name in enumerate(categories)}
        axes.plot(
            [row["speedup"] for row in singles],
            [place[row["category"]] for row in singles],
            "o", ms=4, mfc="none", mec=color, alpha=0.45, zorder=2,
        )  # fmt: skip
        for name, row in groups.items():
            ends = [row["speedup"] if row[end] is None else row[end] for end in _ENDS]
            axes.plot(ends, [place[name]] * 2, color=color, lw=2, zorder=3)
            marks = [one["speedup"] for one in singles if one["category"] == name]
            far = max(*ends, *marks, row["predicted_speedup"] or 0)
            axes.annotate(
                f"{row['speedup']:.2f}", (far, place[name]),
                xytext=(6, 0), textcoords="offset points", va="center", fontsize=7, color=color,
            )  # fmt: skip
        medians, heights = [row["speedup"] for row in groups.values()], [place[c] for c in groups]
        axes.plot(medians, heights, "o", ms=6, color=color, zorder=4)
        predicted = [row["predicted_speedup"] for row in groups.values()]
        axes.plot(predicted, heights, "x", ms=5, color="black", zorder=5)
    axes.set_ylim(-0.6, len(categories) - 0.4)
    axes.set_xlim(0, right)
    axes.grid(axis="x", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
