"""The chart of a run: the loss, and the held-out score, by step."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from eval import results
from train.metrics import Record

_TRAIN, _HELD_OUT = "#0072b2", "#d55e00"


def write(path: pathlib.Path, records: Sequence[Record], score: str, title: str) -> None:
    """Draws the curves: losses on the left, the held-out score on the right.

    Args:
      path: the PNG, written whole or not at all.
      records: of metrics.jsonl.
      score: the held-out value to draw.
      title: what was trained.
    """
    train = [record for record in records if record["split"] == "train"]
    held_out = [record for record in records if record["split"] == "held_out"]
    figure = results.figure((9.6, 3.8))
    left, right = figure.subplots(1, 2, sharex=True)
    _line(left, train, "loss", _TRAIN, "train")
    _line(left, held_out, "loss", _HELD_OUT, "held out")
    left.set_title("loss", fontsize=11, loc="left")
    left.legend(frameon=False, fontsize=9)
    _line(right, held_out, score, _HELD_OUT, "held out")
    right.set_title(f"{score.replace('_', ' ')}, held out", fontsize=11, loc="left")
    if held_out:
        best = max(held_out, key=lambda record: record[score])
        right.annotate(
            f"{best[score]:.4g}", (best["step"], best[score]), xytext=(0, 6),
            textcoords="offset points", ha="center", fontsize=9, color=_HELD_OUT,
        )  # fmt: skip
    right.margins(y=0.12)  # for the number
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.grid(color="#dddddd", lw=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    results.save_figure(figure, path)


def _line(axes: Any, records: Sequence[Record], name: str, color: str, label: str) -> None:
    records = [record for record in records if record.get(name) is not None]
    steps = [record["step"] for record in records]
    # Points where there are few: a line through one point isn't seen.
    style = "o-" if len(steps) < 40 else "-"
    axes.plot(steps, [record[name] for record in records], style, ms=4, color=color, label=label)
