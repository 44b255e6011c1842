"""A plan on a page: its tables, and its plot."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval import results, speedup_axes
from eval.datasheet import GB

if TYPE_CHECKING:
    from eval.plan import Point


def tables(points: Sequence[Point], alphas: Sequence[float]) -> str:
    """What passes, drafts and memory cost; then the best draft by acceptance rate."""
    return f"{_costs(points)}\n\n{_speeds(points, alphas)}"


def _costs(points: Sequence[Point]) -> str:
    lines = []
    for point in points:
        most, start = len(point.drafts) - 1, point.break_even
        lines.append(
            {
                "batch": str(point.batch),
                "context": str(point.context),
                "pass\nms": f"{1e3 * point.pass_s:.3g}",
                **{f"\nv({t})": f"{point.passes[t - 1]:.2f}" for t in (2, most // 2 + 1, most + 1)},
                "\nc": f"{point.drafts[most] / most:.3f}",
                "break-even\nalpha": "never" if start is None else f"{start:.2f}",
                **{f"{name}\nGB": f"{size / GB:.2f}" for name, size in point.bytes.items()},
                "sum\nGB": f"{sum(point.bytes.values()) / GB:.2f}",
                "of\nGB": "?" if point.memory is None else f"{point.memory / GB:.1f}",
            }
        )
    return results.table(lines)


def _speeds(points: Sequence[Point], alphas: Sequence[float]) -> str:
    lines = []
    for point in points:
        best = {f"alpha {alpha:g}": point.best(alpha) for alpha in alphas}
        cells = {name: f"{gain:.2f}x k={k}" for name, (k, gain) in best.items()}
        lines.append({"batch": str(point.batch), "context": str(point.context)} | cells)
    return results.table(lines)


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes the page around the plot: Markdown, whole or not at all."""
    with results.replacing(path) as beside:
        beside.write_text(f"# Does speculation pay?\n\n```text\n{text}\n```\n\n![plan](plan.png)\n")


def write(path: pathlib.Path, points: Sequence[Point], alphas: Sequence[float], title: str) -> None:
    """Draws the plot: to the left by acceptance rate, to the right by batch; a line a context.

    Args:
      path: the PNG, written whole or not at all.
      points: of every context and batch.
      alphas: ascending acceptance rates.
      title: what the plan is for.
    """
    contexts = list(dict.fromkeys(point.context for point in points))
    top = 1.1 * max(1, *(point.best(alphas[-1])[1] for point in points))
    figure = results.figure((11.5, 0.9 + 3.9 * len(contexts)))
    panels = figure.subplots(len(contexts), 2, squeeze=False, sharey=True)
    for (left, right), context in zip(panels, contexts, strict=True):
        own = [point for point in points if point.context == context]
        _by_alpha(left, own, alphas)
        _by_batch(right, own, alphas)
        for axes in (left, right):
            speedup_axes.dress(axes, f"{context} tokens of context")
        left.set_ylim(0, top)
        left.set_ylabel(speedup_axes.YLABEL)
    marks = "numbers: the best k; shaded: slower than plain decoding"
    speedup_axes.heading(figure, title, marks)
    results.save_figure(figure, path)


def _by_alpha(axes: Any, points: Sequence[Point], alphas: Sequence[float]) -> None:
    grid = np.linspace(0, alphas[-1], 100)
    for point, color in zip(points, _shades(len(points)), strict=True):
        gains = [point.best(alpha)[1] for alpha in grid]
        start = point.break_even
        label = f"{point.batch}: {'never' if start is None else f'from {start:.2f}'}"
        axes.plot(grid, gains, color=color, lw=1.5, label=label)
        if start is not None and start <= grid[-1]:
            axes.plot([start], [1], "o", ms=4, color=color)
        _numbers(axes, alphas, [point.best(alpha) for alpha in alphas], color)
    axes.set_xlabel("acceptance rate alpha")
    axes.legend(title="batch: pays", fontsize=8, title_fontsize=8, frameon=False, loc="upper left")


def _by_batch(axes: Any, points: Sequence[Point], alphas: Sequence[float]) -> None:
    batches = [point.batch for point in points]
    for alpha, color in zip(alphas, _shades(len(alphas)), strict=True):
        best = [point.best(alpha) for point in points]
        axes.plot(batches, [gain for _, gain in best], color=color, lw=1.5, label=f"{alpha:g}")
        _numbers(axes, batches, best, color)
    speedup_axes.by_batch(axes, batches)
    axes.set_xlabel("batch")
    axes.legend(
        title="alpha", reverse=True, fontsize=8, title_fontsize=8, frameon=False,
        loc="center left", bbox_to_anchor=(1, 0.5),
    )  # fmt: skip


def _numbers(
    axes: Any, places: Sequence[float], best: Sequence[tuple[int, float]], color: Any
) -> None:
    for place, (k, gain) in zip(places, best, strict=True):
        axes.plot([place], [gain], "o", ms=8, mfc="white", mec=color, zorder=3)
        axes.text(place, gain, str(k), ha="center", va="center", fontsize=6, color=color, zorder=4)


def _shades(count: int) -> list[Any]:
    """From dark to light, told apart by the colour-blind too; none is lost on white."""
    from matplotlib import colormaps

    return [colormaps["viridis"](x) for x in np.linspace(0, 0.85, count)]
