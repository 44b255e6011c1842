"""The target's features: computed inside the train step, or once, into a file on disk."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import tqdm
from jax import Array

from eval import results
from specjax.target import Target
from train.data import Rows

FINAL = -1  # the stream after the final norm: what the target's output matrix reads
_ABOUT, _PROGRESS = "about.json", "progress.json"
_DATA, _DONE = "features.bf16", "manifest.json"
_LATER = ("dtype",)  # entries that older stores lack, and are taken without
_PATIENCE_S = 900.0  # without a row from the first process, which compiles before its first one
_NOTE_S = 10.0  # what a killed run may lose, at most, besides the batch it is at


@partial(jax.jit, static_argnums=(0, 1))
def compute(
    target: Target, layers: tuple[int, ...], params: Any, rows: Mapping[str, Array]
) -> Array:
    """One pass over packed rows; documents don't see each other.

    Args:
      target: the model.
      layers: streams to return; see ``Target.layers``.
      params: its parameters.
      rows: ``tokens``, ``segment`` and ``position`` int32 ``[B, T]``.

    Returns:
      ``[B, T, F]``.
    """
    batch, length = rows["tokens"].shape
    cache = target.init_cache(batch, length, jax.tree.leaves(params)[0].dtype)
    out = target.apply(
        params,
        rows["tokens"],
        cache,
        positions=rows["position"],
        mask=visible(rows["segment"]),
        layers=layers,
    )
    return out[1]


def visible(segment: Array) -> Array:
    """Bool ``[B, T, T]`` (query by key): the causal mask within documents.

    Padding sees itself: a softmax over nothing has no value.
    """
    causal = jnp.tril(jnp.ones([segment.shape[1]] * 2, bool))
    return (segment[:, :, None] == segment[:, None, :]) & causal


class Store:
    """Features of all rows of a data set, bfloat16, in a file that is read as it is needed.

    The folder is complete when its manifest is there; until then the rows that are on disk are
    counted in ``progress``, and filling goes on after them. Where the data aren't of the size they
    were begun with, nothing that is counted can be trusted: filling begins anew.
    """

    def __init__(self, folder: str | os.PathLike[str], width: int, fingerprint: Mapping[str, Any]):
        """Opens a store.

        Args:
          folder: made if it isn't there.
          width: F.
          fingerprint: what the features were made of.

        Raises:
          ValueError: it holds features of something else; names what differs.
        """
        self._folder, self._width = pathlib.Path(folder), width
        self._fingerprint = json.loads(json.dumps(fingerprint))
        about = self._folder / _ABOUT
        if about.exists():
            was = json.loads(about.read_text(encoding="utf-8"))
            said = [key for key in self._fingerprint if key in was or key not in _LATER]
            changed = [key for key in said if was.get(key) != self._fingerprint[key]]
            if changed:
                key = changed[0]
                raise ValueError(
                    f"{folder} holds features made with {key}={was.get(key)!r}, but now it is "
                    f"{self._fingerprint[key]!r}; delete the folder, or name another one"
                )

    def fill(self, target: Target, layers: tuple[int, ...], params: Any, rows: Rows) -> None:
        """Computes what is not there yet; says the size first.

        Of several processes the first one does, and the others wait until they can read it.

        Raises:
          ValueError: the disk has no room for it, or is not one that all processes share; or what
            was complete isn't any more.
        """
        self._shape = (*rows.tokens.shape, self._width)
        if jax.process_index():
            self._wait()
        elif not self._complete:
            self._fill(target, layers, params, rows)
        self._check_whole()

    def _wait(self) -> None:
        """Until the first process is done: a collective would give up after a minute."""
        rows, since = -1, time.monotonic()
        while not self._complete:
            time.sleep(0.5)
            now = self._progress()
            if now != rows:
                rows, since = now, time.monotonic()
            elif time.monotonic() - since > _PATIENCE_S:
                raise ValueError(
                    f"process {jax.process_index()} finds no features in {self._folder} that "
                    "process 0 would write; config.feature_store must be a folder that all "
                    "processes share"
                )

    def _fill(self, target: Target, layers: tuple[int, ...], params: Any, rows: Rows) -> None:
        count, length = rows.tokens.shape
        size = 2 * count * length * self._width
        self._folder.mkdir(parents=True, exist_ok=True)
        done = self._begun(size)
        free = shutil.disk_usage(self._folder).free + done * size // count
        print(f"features: {size / 1e9:.1f} GB in {self._folder}", flush=True)
        if size > free:
            raise ValueError(
                f"features take {size / 1e9:.1f} GB, but {self._folder} has {free / 1e9:.1f} GB "
                "free; use config.features='online', fewer tokens, or another disk"
            )
        if not (done and (self._folder / _ABOUT).exists()):
            results.write_json(self._folder / _ABOUT, self._fingerprint)
        mode = "r+" if done else "w+"
        data = np.memmap(self._folder / _DATA, np.uint16, mode, shape=self._shape)
        batch, noted = max(1, 4096 // length), time.monotonic()
        with tqdm.tqdm(total=count, initial=done, desc="features", unit="row", disable=None) as bar:
            for at in range(done, count, batch):
                # The last batch reaches back, so that all are of one shape.
                at = max(min(at, count - batch), 0)
                part = {n: getattr(rows, n)[at : at + batch] for n in _INPUTS}
                new = np.asarray(compute(target, layers, params, part).astype(jnp.bfloat16))
                data[at : at + batch] = new.view(np.uint16)
                # By time: every batch of a slow target, few of a fast one, as flushes take time.
                if time.monotonic() - noted >= _NOTE_S or at + batch >= count:
                    data.flush()
                    results.write_json(self._folder / _PROGRESS, {"rows": at + len(new)})
                    noted = time.monotonic()
                bar.update(at + len(new) - bar.n)
        results.write_json(self._folder / _DONE, {"rows": count, "bytes": size})

    def read(self, chosen: np.ndarray) -> np.ndarray:
        """bfloat16 ``[len(chosen), T, F]``."""
        data = np.memmap(self._folder / _DATA, np.uint16, "r", shape=self._shape)
        return np.asarray(data[chosen]).view(ml_dtypes.bfloat16)

    @property
    def _complete(self) -> bool:
        return (self._folder / _DONE).exists()

    def _check_whole(self) -> None:
        path = self._folder / _DATA
        want = json.loads((self._folder / _DONE).read_text())["bytes"]
        if _size(path) != want:
            raise ValueError(
                f"{path} has {_size(path)} bytes, but {_DONE} beside it says {want}; delete the "
                "folder, and the features are computed again"
            )

    def _begun(self, size: int) -> int:
        """How many rows are on disk; begins anew where the data can't be those that were noted."""
        path, done = self._folder / _DATA, self._progress()
        if done and _size(path) == size:
            return done
        if done:
            print(
                f"features: begun anew, because {path} has {_size(path)} bytes, not the {size} it "
                "was begun with",
                flush=True,
            )
        # What counts the rows goes first: killed in between, it would count rows of zeros.
        (self._folder / _PROGRESS).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        return 0

    def _progress(self) -> int:
        path = self._folder / _PROGRESS
        return json.loads(path.read_text())["rows"] if path.exists() else 0


_INPUTS = ("tokens", "segment", "position")


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.exists() else 0


def rows_fingerprint(rows: Rows) -> str:
    """A checksum of what features depend on."""
    digest = hashlib.sha256()
    for name in _INPUTS:
        digest.update(np.ascontiguousarray(getattr(rows, name)).tobytes())
    return digest.hexdigest()[:16]
