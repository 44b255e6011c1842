"""A profile of some steps, to look at in TensorBoard, Perfetto or xprof."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath


class Trace:
    """Traces a range of steps; says so where the run has none of them.

    Args:
      folder: where the trace goes.
      steps: the steps; an empty range for none.
    """

    def __init__(self, folder: epath.Path, steps: range):
        self._folder, self._steps, self._on = os.fspath(folder), steps, False
        self._awaited = bool(steps)  # neither traced yet nor said to be missed

    @contextlib.contextmanager
    def step(self, number: int, before: Any) -> Iterator[None]:
        """Around a step.

        Args:
          number: of the step, from 0.
          before: arrays of earlier steps, to wait for: they are not part of the trace.
        """
        if self._awaited and number >= self._steps.stop:
            self._tell(f"this run goes on from step {number}")
        if not self._on and number in self._steps:
            jax.block_until_ready(before)
            jax.profiler.start_trace(self._folder)
            self._on, self._awaited = True, False
        if not self._on:
            yield
            return
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            yield

    def stepped(self, done: int, after: Any) -> None:
        """After a step; ends the trace where it is to end."""
        if self._on and done not in self._steps:
            self.close(after)

    def close(self, after: Any) -> None:
        """Ends a trace that is under way, once ``after`` is computed."""
        if self._awaited:
            self._tell("this run took none of them")
        if self._on:
            self._on = False
            jax.block_until_ready(after)
            jax.profiler.stop_trace()

    def _tell(self, why: str) -> None:
        self._awaited = False
        if jax.process_index() == 0:
            first, last = self._steps[0], self._steps[-1]
            print(
                f"no profile is written of steps {first} to {last}, because {why}; name steps "
                "that it takes",
                flush=True,
            )
