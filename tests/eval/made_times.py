"""Times that are made, not measured: what depends on them is the same however busy a machine is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eval import timing
from specjax import clocks


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

    def costs(clock: Any, plans: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        return [
            (
                np.array([[pass_s(width) for width in plan.widths]] * len(clock._contexts)),
                0.1 * np.array([draft_s(drafted) if drafted else 0.0 for drafted in plan.drafts]),
            )
            for plan in plans
        ]

    replace(timing.PassClock, "_seconds", lambda clock, width, at: pass_s(width))
    replace(timing.DraftClock, "_seconds", lambda clock, drafted: draft_s(drafted))
    replace(clocks.Clocks, "measure", costs)


def pass_s(width: int) -> float:
    """Seconds of a target pass."""
    return 4e-3 + 1e-4 * width


def draft_s(drafted: int) -> float:
    """Seconds of a draft."""
    return 1e-3 + 1e-3 * drafted
