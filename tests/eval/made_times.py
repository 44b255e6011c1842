"""Times that are made, not measured: what depends on them is the same however busy a machine is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specjax
from eval import timing


def make_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes 4.1 ms and more with its tokens, a draft 2 ms and more with its own.

    Everything is run as ever, and its real times are forgotten: those of an evaluation's clocks and
    those of ``calibrate``, which sees drafts take a tenth of that.
    """

    def replace(kind: Any, name: str, made: Any) -> None:
        real = getattr(kind, name)

        def both(*arguments: Any) -> Any:
            real(*arguments)
            return made(*arguments)

        monkeypatch.setattr(kind, name, both)

    def costs(clocks: Any, drafts: Any) -> tuple[np.ndarray, np.ndarray]:
        passes = [pass_s(width) for width in clocks._engine.widths]
        return np.array([passes] * len(clocks._contexts)), 0.1 * np.array(
            [draft_s(drafted) if drafted else 0.0 for drafted in drafts]
        )

    replace(timing.PassClock, "_seconds", lambda clock, width, at: pass_s(width))
    replace(timing.DraftClock, "_seconds", lambda clock, drafted: draft_s(drafted))
    replace(specjax.calibrate.__globals__["_Clocks"], "measure", costs)


def pass_s(width: int) -> float:
    """Seconds of a target pass."""
    return 4e-3 + 1e-4 * width


def draft_s(drafted: int) -> float:
    """Seconds of a draft."""
    return 1e-3 + 1e-3 * drafted
