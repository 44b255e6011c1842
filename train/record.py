"""Follows a run: its metrics, fetched an interval late, and its progress."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import jax
import numpy as np
from etils import epath

from train import metrics, optim, step
from train.settings import LoopSettings
from train.task import NonFiniteError, Task


class Recorder:
    """Takes the metrics out of the state at log steps and writes them at the next.

    By then they have been computed, so nothing waits for them. ``flush`` writes them at once:
    before an evaluation and before a checkpoint, whose lines must be on disk when it is.

    Args:
      task: for the batch a message names, the token count and the score.
      s: the settings.
      workdir: of the run.
      start: finished steps.
      seconds: spent on these.
    """

    def __init__(
        self, task: Task, s: LoopSettings, workdir: epath.Path, start: int, seconds: float
    ):
        quiet = jax.process_index() != 0
        self._task, self._s = task, s
        self._log = metrics.Log(workdir, start, quiet=quiet)
        self._progress = metrics.Progress(start, s.steps, task.tokens_per_batch, quiet=quiet)
        self._before, self._begun = seconds, time.perf_counter()
        self._pending: tuple[int, step.Metrics, float, float] | None = None
        self._tickets: list[jax.Array] = []
        self._checked = self.saved_at = start

    @property
    def seconds(self) -> float:
        """Of training, with those before this process."""
        return self._before + time.perf_counter() - self._begun

    @property
    def records(self) -> list[metrics.Record]:
        """The lines of metrics.jsonl."""
        return self._log.records

    def advance(self, done: int, ticket: jax.Array) -> None:
        """After every step; waits for the last but one.

        Two steps in flight keep a device busy. More would only pile up batches, and make the
        clock lie.
        """
        self._tickets.append(ticket)
        if len(self._tickets) > 2:
            jax.block_until_ready(self._tickets.pop(0))
        self._progress.advance(done)

    def take(self, done: int, values: step.Metrics) -> None:
        """At a log step: writes the interval before, and keeps this one's metrics.

        Args:
          done: finished steps.
          values: the state's metrics, no longer part of it (they would be donated).
        """
        self.flush()
        rate = self._progress.tokens_per_second(done)
        self._pending = done, values, self.seconds, rate

    def flush(self) -> None:
        """Writes what was taken.

        Raises:
          NonFiniteError: a step in it had a loss or a gradient that isn't finite.
        """
        if self._pending is None:
            return
        (done, values, seconds, rate), self._pending = self._pending, None
        self.check(done, values)
        means = metrics.means(jax.device_get(values.sums))
        lr = float(optim.schedule(self._s.lr, self._s)(done - 1))
        more = {"lr": lr, "tokens_per_second": rate, "seconds": seconds}
        self._log.write({"step": done, "split": "train", **means, **more})
        self._progress.show(done, means.get("loss", math.nan), rate)

    def held_out(self, done: int, sums: Mapping[str, float]) -> float:
        """Writes an evaluation; returns its score.

        Raises:
          ValueError: there is no loss or no score in it.
          NonFiniteError: something in it isn't finite.
        """
        means, name = metrics.means(sums), self._task.score
        if name not in means or "loss" not in means:
            raise ValueError(f"evaluate gives {sorted(means)}; it must give 'loss' and {name!r}")
        if not all(map(np.isfinite, means.values())):
            raise NonFiniteError(
                f"held out after step {done}: {means}, which is not all finite; the last "
                f"checkpoint is of step {self.saved_at}"
            )
        self._log.write({"step": done, "split": "held_out", **means, "seconds": self.seconds})
        self._progress.say(
            f"step {done}: held-out loss {means['loss']:.4g}, "
            f"{name.replace('_', ' ')} {means[name]:.4g}"
        )
        return means[name]

    def check(self, done: int, values: step.Metrics) -> None:
        """Raises NonFiniteError if a step of an interval that ends with ``done`` was not finite."""
        bad = int(jax.device_get(values.first_bad))
        if bad < 0:
            self._checked = done
            return
        batch = self._task.batch(bad)
        has_ids = isinstance(batch, Mapping) and "ids" in batch
        ids = f", ids {np.ravel(batch['ids']).tolist()}" if has_ids else ""
        raise NonFiniteError(
            f"the loss or the gradient is NaN or infinite at step {bad} (its batch is number "
            f"{bad}{ids}); steps {self._checked} to {done - 1} were checked together. Nothing of "
            f"them was saved: the last checkpoint is of step {self.saved_at}. Look at that batch, "
            "or take a lower loop.lr"
        )

    def say(self, text: str) -> None:
        """Prints a line without breaking the bar."""
        self._progress.say(text)

    def close(self) -> None:
        """Closes files and the bar."""
        self._log.close()
        self._progress.close()
