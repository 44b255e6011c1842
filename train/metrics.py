"""What a run says of itself: metrics.jsonl, TensorBoard events, and the progress on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import tqdm
from etils import epath

from train.checkpoint import is_remote, write_text

Record = dict[str, Any]


def means(sums: Mapping[str, Any]) -> dict[str, float]:
    """Means from sums.

    Args:
      sums: name -> sum over supervised units, and ``weight``, their count. A name with a
        ``NAME_weight`` beside it is divided by that instead (a metric of fewer units).

    Returns:
      name -> mean, without the weights, and without what had no unit.
    """
    values = {name: float(value) for name, value in sums.items()}
    out = {}
    for name, value in values.items():
        if name != "weight" and not name.endswith("_weight"):
            weight = values.get(f"{name}_weight", values["weight"])
            if weight:
                out[name] = value / weight
    return out


class Log:
    """metrics.jsonl and TensorBoard events, in a workdir.

    Lines after the step a run resumes from belong to steps that are done again: they are removed,
    so that the curve has every step once.

    Args:
      workdir: the folder; ``gs://`` is fine.
      step: finished steps so far.
      quiet: keeps records in memory only (every process but the first).
    """

    def __init__(self, workdir: epath.Path, step: int, *, quiet: bool = False):
        self._path, self._quiet = workdir / "metrics.jsonl", quiet
        self.records = [record for record in read(self._path) if record["step"] <= step]
        if not quiet:
            self._rewrite()
        self._board = None if quiet else board(workdir / "tensorboard", step)

    def write(self, record: Record) -> None:
        """Adds a line; it is on disk when this returns.

        Args:
          record: flat; ``step`` and ``split`` ("train" or "held_out"), and numbers.
        """
        record = {name: value if _can_be_json(value) else None for name, value in record.items()}
        self.records.append(record)
        if self._quiet:
            return
        if is_remote(self._path):  # objects can't be appended to
            self._rewrite()
        else:
            with self._path.open("a") as file:
                file.write(_line(record))
        if self._board is not None:
            for name, value in record.items():
                if name not in ("step", "split") and value is not None:
                    self._board.add_scalar(f"{record['split']}/{name}", value, record["step"])

    def close(self) -> None:
        """Closes the TensorBoard file."""
        if self._board is not None:
            self._board.close()

    def _rewrite(self) -> None:
        write_text(self._path, "".join(map(_line, self.records)))


def board(folder: epath.Path, step: int) -> Any:
    """A writer of TensorBoard events that hides those after a step; None without its packages."""
    try:
        import tensorboardX  # not at the top: where torch is installed, it imports torch

        return tensorboardX.SummaryWriter(os.fspath(folder), purge_step=step + 1)
    except ImportError as error:  # a bucket needs its own client
        print(f"no TensorBoard events: {error}", file=sys.stderr, flush=True)
        return None


def read(path: epath.Path) -> list[Record]:
    """The records of a metrics.jsonl; none if it isn't there. A line cut short is left out."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:  # the process was killed while it wrote
            continue
    return records


def _can_be_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


class Progress:
    """A bar with loss, tokens per second and time left; plain lines where stderr is no terminal.

    Args:
      start: steps finished before this process.
      steps: steps of the whole run.
      tokens_per_step: tokens a step sees.
      quiet: shows nothing (every process but the first).
      every: seconds between plain lines.
    """

    def __init__(
        self, start: int, steps: int, tokens_per_step: int, *, quiet: bool, every: float = 15.0
    ):
        self._steps, self._tokens, self._quiet, self._every = steps, tokens_per_step, quiet, every
        self._marks = [(time.perf_counter(), start)]
        self._said = -math.inf
        self._bar = tqdm.tqdm(
            total=steps, initial=start, desc="training", unit="step", leave=False,
            dynamic_ncols=True, disable=quiet or not sys.stderr.isatty(),
        )  # fmt: skip

    def advance(self, step: int) -> None:
        """After every step."""
        self._bar.update(step - self._bar.n)

    def tokens_per_second(self, step: int) -> float:
        """Of the last minute or so; marks the time."""
        now = time.perf_counter()
        # The marks of about a minute: long enough to be steady, short enough to follow a change.
        while len(self._marks) > 1 and now - self._marks[0][0] > 60:
            self._marks.pop(0)
        then, begun = self._marks[0]
        self._marks.append((now, step))
        return (step - begun) * self._tokens / max(now - then, 1e-9)

    def show(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Shows the state of things at a log step."""
        self._bar.set_postfix_str(f"loss {loss:.4g}, {tokens_per_second:.0f} tok/s", refresh=False)
        now = time.perf_counter()
        last = step >= self._steps
        if self._quiet or not self._bar.disable or (now - self._said < self._every and not last):
            return
        self._said = now
        left = (self._steps - step) * self._tokens / max(tokens_per_second, 1e-9)
        print(
            f"step {step}/{self._steps}  loss {loss:.4g}  {tokens_per_second:.0f} tok/s  "
            f"{clock(left)} left",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def say(self, text: str) -> None:
        """Prints a line without breaking the bar."""
        if not self._quiet:
            tqdm.tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()


def clock(seconds: float) -> str:
    """A duration, such as 1:02:03 or 2:03."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
