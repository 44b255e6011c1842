"""What a run leaves behind: exported heads, results.json and the chart."""

from __future__ import annotations

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
    beside = None if is_remote(folder) else os.fspath(folder.parent)
    if beside:
        for left in pathlib.Path(beside).glob(f".{folder.name}-*"):  # of killed processes
            shutil.rmtree(left, ignore_errors=True)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=beside))
    try:
        write_head(params, scratch)
        if is_remote(folder):
            upload(scratch, folder)
        else:
            scratch.chmod(0o755)  # mkdtemp makes it private
            old = scratch.with_name(f"{scratch.name}-old")
            if folder.exists():  # moved, not removed: the name stands for nothing for less long
                folder.replace(os.fspath(old))
            scratch.replace(os.fspath(folder))
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
