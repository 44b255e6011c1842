"""What the plots of speed-ups by batch share: the line of plain decoding, axes, and a heading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY, _GRID = "#666666", "#dddddd"
_SLOWER = "#fff3f0"
YLABEL = "times as fast as plain decoding"


def dress(axes: Axes, title: str, plain: str | None = None) -> None:
    """A panel whose y is a speed-up: shaded where that is slower than plain decoding.

    Args:
      axes: the panel.
      title: what it is of.
      plain: what a legend calls the line of plain decoding; None: nothing.
    """
    axes.axhline(1, color=_GREY, lw=1, zorder=1, label=plain)
    axes.axhspan(0, 1, color=_SLOWER, zorder=0)
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(color=_GRID, lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def by_batch(axes: Axes, batches: Sequence[int]) -> None:
    """An x of batch sizes, by doublings, each of them named."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()


def heading(figure: Figure, title: str, marks: str) -> None:
    """What was measured or reckoned, and what the marks mean."""
    figure.suptitle(f"{title}\n({marks})", fontsize=10, x=0.01, ha="left")
