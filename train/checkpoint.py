"""Checkpoints: written in the background, complete or not there, and checked before they're read.

The only module that imports Orbax. ``FOLDER/00000200/`` holds Orbax's ``state/`` and, written
last, ``manifest.json``: what was trained, the shape of every array, and the size of every file.
A folder without a manifest, or with a file missing or cut short, is half of a checkpoint (a killed
process, an interrupted copy, an object store without atomic renames) and counts as none.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

_STATE, _MANIFEST = "state", "manifest.json"


class Saved(NamedTuple):
    """A complete checkpoint.

    Attributes:
      step: finished optimizer steps.
      path: its folder.
      score: the held-out score at that step; None if none was measured there.
      manifest: everything else it says of itself.
    """

    step: int
    path: epath.Path
    score: float | None
    manifest: Mapping[str, Any]


def folder(path: str | os.PathLike[str]) -> epath.Path:
    """A path that may be ``gs://``; a local one is made absolute, as Orbax wants it."""
    text = os.fspath(path)
    return epath.Path(text if is_remote(text) else os.path.abspath(os.path.expanduser(text)))


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an object store's, where files can't be appended to."""
    return "://" in os.fspath(path)


def write_text(path: epath.Path, text: str) -> None:
    """Writes a file whole or not at all."""
    if is_remote(path):  # objects appear whole
        path.write_text(text)
        return
    beside = path.parent / f".{path.name}.{os.getpid()}"
    beside.write_text(text)
    beside.replace(path)


def shapes(state: Any) -> dict[str, str]:
    """The name, dtype and shape of every array of a state (real or abstract)."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in leaves
    }


class Checkpoints:
    """The checkpoints of one run: the newest few, and the one of the best score.

    Several processes each make one, and call its methods together.

    Args:
      path: their folder; made if it isn't there.
      fingerprint: what is trained, JSON-like; a checkpoint of anything else is refused.
      keep_last: how many of the newest stay, besides the best.
      say: prints a line for a person.
    """

    def __init__(
        self,
        path: epath.Path,
        fingerprint: Mapping[str, Any],
        keep_last: int,
        say: Callable[[str], None] = print,
    ):
        self._path, self._keep_last, self._say = path, keep_last, say
        self._fingerprint = json.loads(json.dumps(_flat(fingerprint), default=str))
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None
        path.mkdir(parents=True, exist_ok=True)

    def all(self) -> list[Saved]:
        """The complete checkpoints, oldest first."""
        steps = [p for p in self._path.iterdir() if re.fullmatch(r"\d{8,}", p.name)]
        found = (_read(path) for path in sorted(steps, key=lambda p: int(p.name)))
        return [saved for saved in found if saved is not None]

    def latest(self) -> Saved | None:
        """The newest complete checkpoint, the same one in every process.

        What is left of others is removed, so call this before the first save.
        """
        if jax.process_index() == 0:
            self._remove_halves()
        saved = self.all()
        newest = saved[-1].step if saved else -1
        if jax.process_count() > 1:
            seen = int(multihost_utils.broadcast_one_to_all(np.int32(newest)))
            if seen != newest:
                raise RuntimeError(
                    f"{self._path}: process 0 finds a checkpoint at step {seen}, process "
                    f"{jax.process_index()} at step {newest} (-1: none); the workdir must be a "
                    "folder that all processes share"
                )
        return saved[-1] if saved else None

    def best(self) -> Saved | None:
        """The checkpoint of the highest score (of equals the first); None if none has a score."""
        scored = [saved for saved in self.all() if saved.score is not None]
        return max(scored, key=lambda saved: saved.score, default=None)  # type: ignore[arg-type,return-value]

    def save(self, step: int, state: Any, *, score: float | None = None, **more: Any) -> None:
        """Starts to write a checkpoint; waits for the one before, not for this one.

        The state's buffers may be donated once this returns.

        Args:
          step: finished steps.
          state: pytree of arrays.
          score: the held-out score, if it was measured at this step.
          **more: JSON-like entries of the manifest.

        Raises:
          OSError: the one before could not be written.
        """
        self.wait()
        path = self._path / f"{step:08d}"
        manifest = {
            "step": step,
            "score": score,
            "fingerprint": self._fingerprint,
            "shapes": shapes(state),
            **more,
        }
        path.mkdir(parents=True, exist_ok=True)
        response = ocp.save_async(path / _STATE, state)
        self._pending = self._thread.submit(self._finish, response, path, manifest)

    def wait(self) -> None:
        """Waits until the last checkpoint is on disk."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()
            if jax.process_count() > 1:  # the manifest is written by process 0 alone
                multihost_utils.sync_global_devices("checkpoint")

    def close(self) -> None:
        """Waits, and ends the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def load(self, saved: Saved, abstract: Any) -> Any:
        """Reads a checkpoint.

        Args:
          saved: which.
          abstract: a state of ``jax.ShapeDtypeStruct``, with shardings.

        Returns:
          The state, on these shardings.

        Raises:
          ValueError: it is of another target, of other data or of other shapes; nothing was read.
        """
        self._check(saved, abstract)
        return ocp.load(saved.path / _STATE, abstract)

    def _check(self, saved: Saved, abstract: Any) -> None:
        fix = "take another --workdir, or train what was trained here"
        kinds = ("fingerprint", saved.manifest.get("fingerprint", {}), self._fingerprint), (
            "shapes", saved.manifest.get("shapes", {}), shapes(abstract),
        )  # fmt: skip
        for kind, there, here in kinds:
            for name in [*here, *(name for name in there if name not in here)]:
                was, now = there.get(name, "not there"), here.get(name, "not there")
                if was != now:
                    what = name if kind == "fingerprint" else f"the array {name}"
                    raise ValueError(
                        f"{saved.path} is a checkpoint of another run: {what} is {was} in it, "
                        f"and {now} in this run; {fix}"
                    )

    def _finish(self, response: Any, path: epath.Path, manifest: dict[str, Any]) -> None:
        response.result()
        if jax.process_index() == 0:
            manifest["files"] = _sizes(path)
            write_text(path / _MANIFEST, json.dumps(manifest, indent=1, allow_nan=False))
            self._prune()

    def _prune(self) -> None:
        saved, best = self.all(), self.best()
        for old in saved[: -self._keep_last]:
            if best is None or old.step != best.step:
                _remove(old.path)

    def _remove_halves(self) -> None:
        complete = {saved.path.name for saved in self.all()}
        for path in self._path.iterdir():
            if re.match(r"\d{8}", path.name) and path.name not in complete:
                self._say(f"skipped {path}: this checkpoint was never finished")
                _remove(path)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, Mapping)
        out |= _flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return out


def _read(path: epath.Path) -> Saved | None:
    """A checkpoint, if it is complete."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        there = _sizes(path)
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    if not isinstance(manifest, dict) or manifest.get("step") != int(path.name):
        return None
    if any(there.get(name) != size for name, size in manifest.get("files", {}).items()):
        return None
    return Saved(manifest["step"], path, manifest.get("score"), manifest)


def _sizes(path: epath.Path) -> dict[str, int]:
    """The size of every file under a folder, the manifest's apart."""
    sizes: dict[str, int] = {}

    def add(folder: epath.Path, prefix: str) -> None:
        for file in folder.iterdir():  # not walk: in a bucket it gives names without the gs://
            if file.is_dir():
                add(file, f"{prefix}{file.name}/")
            else:
                sizes[prefix + file.name] = file.stat().length

    add(path, "")
    sizes.pop(_MANIFEST, None)
    return dict(sorted(sizes.items()))


def _remove(path: epath.Path) -> None:
    """Removes a checkpoint; its manifest first, so that half of one is never taken for a whole."""
    (path / _MANIFEST).unlink(missing_ok=True)
    path.rmtree(missing_ok=True)
