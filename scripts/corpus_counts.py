"""Counts of what follows a few tokens, shard by shard: sorted parts on disk.

A part is a folder with one array an order, ``1.npy`` to ``N.npy``, of ``ROW``s in the order of
their hashes and tokens; it gets its name when it is whole. So text of any size is counted in the
memory of one shard, and a run that is killed goes on with the shards that have no part yet.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval import results
from specjax.drafters import corpus_table
from train.data import Documents

ROW = np.dtype([("hash", "<u8"), ("shorter", "<u8"), ("token", "<u4"), ("count", "<u4")])
_ABOUT = "about.json"
_FORMAT = "specjax corpus counts, version 1"
_UNFINISHED = ".part-"


class Parts:
    """The parts of a run.

    Args:
      folder: made if it isn't there.
      identity: what counts depend on; parts of another run are refused.
      orders: N.

    Raises:
      ValueError: there are parts of another run, or what they are of can't be read; says how they
        differ, or why.
    """

    def __init__(self, folder: pathlib.Path, identity: Mapping[str, Any], orders: int) -> None:
        self.orders, self._folder = orders, folder
        identity = json.loads(json.dumps({"format": _FORMAT, **identity}))  # tuples become lists
        for old in folder.glob(f"{_UNFINISHED}*"):  # of a run that was killed while it counted
            shutil.rmtree(old, ignore_errors=True)
        path = folder / _ABOUT
        if path.exists():
            held = _read(path)
            for name in sorted(set(held) | set(identity)):
                if held.get(name) != identity.get(name):
                    raise ValueError(
                        f"{folder} holds counts of another run: {name} was {held.get(name)!r} and "
                        f"is {identity.get(name)!r} now; take another --workdir or remove it"
                    )
        else:
            results.write_json(path, identity)

    def has(self, number: int) -> bool:
        """Whether a shard has been counted."""
        return self._path(number).exists()

    def add(self, number: int, documents: Documents) -> None:
        """Counts a shard."""
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=self._folder) as beside:
            whole = pathlib.Path(beside) / "whole"
            whole.mkdir()
            for order, rows in enumerate(count(documents, self.orders), 1):
                np.save(whole / f"{order}.npy", rows)
            whole.replace(self._path(number))

    @property
    def tokens(self) -> int:
        """Tokens that were counted."""
        return sum(int(rows["count"].sum(dtype=np.int64)) for rows in self.read(1))

    def read(self, order: int) -> list[NDArray[Any]]:
        """The rows of one order, part by part, as maps of their files."""
        paths = sorted(self._folder.glob("part-*"))
        return [np.load(path / f"{order}.npy", mmap_mode="r") for path in paths]

    def _path(self, number: int) -> pathlib.Path:
        return self._folder / f"part-{number:05d}"


def _read(path: pathlib.Path) -> dict[str, Any]:
    """What the parts beside a file are of."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): remove {path.parent} to count again"
        ) from error


def count(documents: Documents, orders: int) -> Iterator[NDArray[Any]]:
    """Rows of orders 1 to N: the supervised tokens by the n tokens before each, in its document."""
    where, place = asked(documents)
    contexts = before(documents.tokens, where, place, orders)
    high, low = corpus_table.hashes(contexts)
    whole = (high.astype(np.uint64) << np.uint64(32)) | low
    tokens = documents.tokens[where].astype(np.uint32)
    for order in range(1, orders + 1):
        enough = place >= order
        rows = np.zeros(int(enough.sum()), ROW)
        rows["hash"] = whole[enough, order - 1]
        rows["shorter"] = whole[enough, order - 2] if order > 1 else 0
        rows["token"], rows["count"] = tokens[enough], 1
        yield summed(rows)


def asked(documents: Documents) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The supervised tokens that follow another of their document.

    Returns:
      int64 ``[M]`` each: where they are, and how many tokens of the document are before each.
    """
    place = np.arange(len(documents.tokens)) - np.repeat(documents.starts[:-1], documents.lengths)
    where = np.flatnonzero(documents.mask & (place > 0))
    return where, place[where]


def before(
    tokens: NDArray[np.int32], where: NDArray[np.int64], place: NDArray[np.int64], orders: int
) -> NDArray[np.int32]:
    """int32 ``[M, N]``, the tokens before those of ``asked``, the last one first; -1 for none."""
    back = np.arange(orders)
    slots = np.maximum(where[:, None] - 1 - back, 0)
    return np.where(back < place[:, None], tokens[slots], -1).astype(np.int32)


def summed(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows in order, with one for each context and token."""
    if not len(rows):
        return rows
    rows = rows[np.lexsort((rows["token"], rows["hash"]))]
    new = np.ones(len(rows), bool)
    new[1:] = (rows["hash"][1:] != rows["hash"][:-1]) | (rows["token"][1:] != rows["token"][:-1])
    first = np.flatnonzero(new)
    out = rows[first]
    total = np.add.reduceat(rows["count"].astype(np.uint64), first)
    out["count"] = np.minimum(total, np.iinfo(np.uint32).max)
    return out
