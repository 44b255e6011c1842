"""What a run leaves behind: exported heads, results.json and the chart."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

from eval import results
from specjax import device
from specjax.models import saving
from train import curves
from train.checkpoint import is_remote, write_text
from train.settings import LoopSettings
from train.task import Summary, Task


def export(
    write_head: Callable[[Any, pathlib.Path], None], params: Any, folder: epath.Path
) -> None:
    """Exports a head; the folder is replaced when it was written in full.

    Args:
      write_head: ``(params, folder)``; see ``Task.export``.
      params: numpy arrays.
      folder: where; may be ``gs://``.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        beside = None if is_remote(folder) else os.fspath(folder.parent)
        if beside:
            stack.enter_context(saving.swept(beside, f".{folder.name}-????????*"))
        scratch = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=beside))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        write_head(params, scratch)
        if beside:
            _put(scratch, pathlib.Path(os.fspath(folder)))
        else:
            upload(scratch, folder)


def _put(new: pathlib.Path, folder: pathlib.Path) -> None:
    """Moves a folder to its place; what was there before goes, or comes back if that failed."""
    new.chmod(0o755)  # mkdtemp makes it private
    old = new.with_name(f"{new.name}-old")
    with contextlib.suppress(FileNotFoundError):
        folder.replace(old)  # moved, not removed: the name stands for nothing for less long
    try:
        new.replace(folder)
    except OSError:
        with contextlib.suppress(OSError):
            old.replace(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def upload(folder: pathlib.Path, to: epath.Path) -> None:
    """Copies a folder's files."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            target = to / file.relative_to(folder).as_posix()
            target.parent.mkdir(parents=True, exist_ok=True)
            epath.Path(file).copy(target, overwrite=True)


def write_results(
    workdir: epath.Path, task: Task, s: LoopSettings, summary: Summary, more: Mapping[str, Any]
) -> None:
    """Writes results.json, whose rows are the evaluations, and curves.png.

    Args:
      workdir: of the run.
      task: what was trained.
      s: the settings.
      summary: how it ended.
      more: further entries, which replace those of the same name.
    """
    held_out = [record for record in summary.records if record["split"] == "held_out"]
    content = {
        "command": results.command(),
        "config": dataclasses.asdict(s),
        "device": device.describe(),
        "versions": results.versions(),
        "seed": s.seed,
        "fingerprint": dict(task.fingerprint),
        "score": task.score,
        "steps": summary.step,
        "stopped": summary.stopped,
        "best_step": summary.best_step,
        "best_score": summary.best_score,
        "seconds": summary.seconds,
        "failures": [],
        "rows": held_out,
        **more,
    }
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False, default=str)
    write_text(workdir / "results.json", text + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        chart = pathlib.Path(scratch) / "curves.png"
        curves.write(chart, summary.records, task.score, task.name)
        epath.Path(chart).copy(workdir / "curves.png", overwrite=True)
