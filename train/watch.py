"""Signals and clocks: when to save, and when to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from train.settings import LoopSettings

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Watch:
    """Says after each step whether it is time to save or to stop.

    The first SIGTERM or SIGINT asks for both; a second one does what it did before.

    Args:
      s: its max_seconds, checkpoint_seconds and log_every.
    """

    def __init__(self, s: LoopSettings):
        self._s = s
        self._signal = 0
        self.begun = self._saved = time.perf_counter()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Catches the signals while the loop runs (in a main thread; elsewhere Python can't)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}

        def handle(number: int, frame: FrameType | None) -> None:
            del frame
            self._signal = number
            _restore(before)

        for number in _SIGNALS:
            signal.signal(number, handle)
        try:
            yield
        finally:
            _restore(before)

    def ask(self, done: int) -> tuple[str, bool]:
        """After a step.

        Args:
          done: finished steps.

        Returns:
          Why to stop ("" to go on: "SIGTERM", "SIGINT", "max_seconds"), and whether a checkpoint
          is due by the clock. The same in every process: several of them agree at log steps.
        """
        s, now = self._s, time.perf_counter()
        over = bool(s.max_seconds) and now - self.begun >= s.max_seconds
        late = bool(s.checkpoint_seconds) and now - self._saved >= s.checkpoint_seconds
        asked = np.array([self._signal, over, late], np.int32)
        if jax.process_count() > 1:
            if done % s.log_every and done != s.steps:
                return "", False
            asked = np.max(multihost_utils.process_allgather(asked), axis=0)
        number, stop, save = (int(x) for x in asked)
        why = signal.Signals(number).name if number else "max_seconds" if stop else ""
        return why, bool(save)

    def saved(self) -> None:
        """A checkpoint was taken just now."""
        self._saved = time.perf_counter()


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
