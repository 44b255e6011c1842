"""Builds a table of what the target says after a few tokens, for ``drafters.corpus``.

  python -m scripts.build_corpus --config=configs/corpus_smollm2.py --workdir=runs/corpus
      [--config.data="('FOLDER', ...)"] [--config.megabytes=8] [--config.KEY=VALUE ...]

Token shards in (scripts/generate_data.py; the supervised tokens are counted, the target's own), a
folder ``table/`` out: for contexts of 1 to ``orders`` tokens the continuations that were most
frequent, the contexts that earn least left out. Some documents are held out: they say how far
counts can be trusted, and how often the table is right.

Text is read a shard at a time, and a shard's counts are kept in the workdir: a run that is killed
goes on with the next one when the command is given again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval import chat as chats
from eval import results
from scripts.corpus_counts import Parts
from scripts.corpus_fit import Looked, doubt, look
from scripts.corpus_prune import prune
from specjax import device
from specjax.drafters import corpus_table
from specjax.drafters.corpus_table import CorpusTable
from specjax.models import fingerprint, loading
from train import data
from train.data import Documents

MOST_ORDERS = 8
MOST_RANKS = 16
_HELD_OUT_TOKENS = 200_000  # of each shard at most: enough to fit a few numbers


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run depends on.

    Attributes:
      target: a folder, a hub id, or "smollm2", the default model: whose tokenizer, and whose text.
      data: folders of token shards.
      documents: how many documents of each shard are counted; 0: all.
      orders: the longest context, in tokens.
      ranks: continuations kept of a context at most.
      min_count: contexts whose best continuation was seen less often are left out.
      megabytes: what the table may take.
      held_out: the share of documents that are not counted, but measured with.
      seed: of that choice.
    """

    target: str
    data: tuple[str, ...]
    documents: int
    orders: int
    ranks: int
    min_count: int
    megabytes: float
    held_out: float
    seed: int


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Builds the table, prints how often it is right and writes the results.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      No failed checks.

    Raises:
      ValueError: a setting or a folder of shards that can't be used.
      RuntimeError: another run is at work in the workdir.
    """
    settings = _read(config)
    print(device.describe(), file=sys.stderr, flush=True)
    folder = pathlib.Path(workdir)
    model = chats.find(settings.target)
    tokenizer = fingerprint.tokenizer(model)
    vocab_size = loading.read_config(model).vocab_size
    manifests = {name: data.read_manifest(name, tokenizer) for name in settings.data}
    shards = [
        (name, number)
        for name, manifest in manifests.items()
        for number in range(len(manifest["shards"]))
    ]
    with _alone(folder):
        parts = Parts(folder / "counts", _identity(settings, manifests), settings.orders)
        _count(settings, parts, shards, manifests, vocab_size)
        table = prune(
            parts,
            ranks=settings.ranks,
            min_count=settings.min_count,
            bytes_=int(settings.megabytes * 1e6),
            vocab_size=vocab_size,
        )
        looked = look(table, _held_out(settings, shards, manifests, vocab_size))
        about = {
            "tokenizer": tokenizer,
            "target_name": settings.target,
            "tokens": parts.tokens,
            "held_out": settings.held_out,
            "min_count": settings.min_count,
        }
        table = dataclasses.replace(table, doubt=doubt(looked, table.orders), about=about)
        corpus_table.save(folder / "table", table)
        rows = _rows(table, looked)
        results.write(folder, settings, rows, [], contexts=len(table.keys))
    print(f"{results.table([_cells(row) for row in rows])}\n")
    if not len(looked.order):
        print(
            "Nothing was measured, and doubt is a guess: nothing is held out of a shard that holds "
            "a single conversation; give more text"
        )
    print(f"{len(table.keys):,} contexts, {len(table.tokens):,} continuations: {folder}/table")
    return []


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Keeps other runs out of a workdir. The system drops the lock of a run that dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"another run is building a table in {folder}: wait for it, or take another "
                "--workdir"
            ) from None
        yield


def _count(
    settings: Settings,
    parts: Parts,
    shards: Sequence[tuple[str, int]],
    manifests: Mapping[str, dict[str, Any]],
    vocab_size: int,
) -> None:
    begun, tokens = time.perf_counter(), 0
    for number, (name, shard) in enumerate(shards):
        if parts.has(number):
            continue
        counted, _ = _split(settings, _shard(name, manifests[name], shard, vocab_size), number)
        parts.add(number, counted)
        tokens += len(counted.tokens)
        speed = tokens / (time.perf_counter() - begun)
        left = sum(manifests[n]["shards"][i]["tokens"] for n, i in shards[number + 1 :]) / speed
        print(
            f"counted {number + 1} of {len(shards)} shards, {speed:,.0f} tokens/s, {left:.0f} s "
            "left at most",
            file=sys.stderr,
            flush=True,
        )


def _held_out(
    settings: Settings,
    shards: Sequence[tuple[str, int]],
    manifests: Mapping[str, dict[str, Any]],
    vocab_size: int,
) -> Iterator[Documents]:
    for number, (name, shard) in enumerate(shards):
        whole = _shard(name, manifests[name], shard, vocab_size)
        _, held = _split(settings, whole, number)
        enough = int(np.searchsorted(held.starts, _HELD_OUT_TOKENS, side="right"))
        yield data.first(held, max(enough - 1, 1))


def _shard(folder: str, manifest: dict[str, Any], number: int, vocab_size: int) -> Documents:
    """A shard, of tokens that the target has."""
    documents = data.read_shard(folder, manifest, number)
    strange = documents.tokens[(documents.tokens < 0) | (documents.tokens >= vocab_size)]
    if len(strange):
        raise ValueError(
            f"{pathlib.Path(folder) / manifest['shards'][number]['file']} holds token "
            f"{strange[0]}, and the target's go from 0 to {vocab_size - 1}; make the data with "
            "this target"
        )
    return documents


def _split(settings: Settings, documents: Documents, number: int) -> tuple[Documents, Documents]:
    """What is counted of a shard, and what is held out."""
    if not documents.conversations.any():  # the last shard of a folder may hold a single one
        return documents, data.first(documents, 0)
    counted, held = data.split(documents, settings.held_out, settings.seed + number)
    return (data.first(counted, settings.documents) if settings.documents else counted), held


def _rows(table: CorpusTable, looked: Looked) -> list[dict[str, Any]]:
    """By order, and in all: how often its contexts are the longest known, and right.

    None stands for what wasn't measured, as no text was held out.
    """

    def mean(values: NDArray[Any]) -> float | None:
        return float(values.mean()) if len(looked.order) else None

    rows: list[dict[str, Any]] = []
    for order in range(1, table.orders + 1):
        here = looked.order == order
        rows.append(
            {
                "context": str(order),
                "doubt": float(table.doubt[order - 1]),
                "share": mean(here),
                "right": mean(looked.right[here]) if here.any() else mean(here),
            }
        )
    known, right = mean(looked.order > 0), mean(looked.right)
    rows.append({"context": "all", "doubt": None, "share": known, "right": right})
    return rows


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}"

    return {
        "context, tokens": row["context"],
        "longest known, %": percent(row["share"]),
        "right, %": percent(row["right"]),
        "doubt": "" if row["doubt"] is None else f"{row['doubt']:.2f}",
    }


def _identity(settings: Settings, manifests: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """What the counts depend on."""
    names = ("documents", "orders", "held_out", "seed")
    sums = [shard["sha256"] for manifest in manifests.values() for shard in manifest["shards"]]
    return {name: getattr(settings, name) for name in names} | {"shards": sums}


def _read(config: Mapping[str, Any]) -> Settings:
    values = dict(config.items())
    given = values.get("data", ())
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"config.data={given!r}; it must be names of folders of token shards")
    s = results.read(Settings, values | {"data": tuple(names)})
    if not isinstance(s.target, str) or not s.target:
        raise ValueError(f"config.target={s.target!r}; it must be a folder, a hub id or 'smollm2'")
    results.at_least(1, orders=s.orders, ranks=s.ranks, min_count=s.min_count)
    results.at_least(0, documents=s.documents, seed=s.seed)
    if not s.data:
        raise ValueError("config.data is empty; name folders of token shards")
    for name, most in (("orders", MOST_ORDERS), ("ranks", MOST_RANKS)):
        if getattr(s, name) > most:
            raise ValueError(f"config.{name}={getattr(s, name)}; it must be 1 to {most}")
    if not _number(s.megabytes) or not 0 < s.megabytes <= 4096:
        raise ValueError(
            f"config.megabytes={s.megabytes!r}; it must be a number above 0, at most 4096"
        )
    if not _number(s.held_out) or not 0 < s.held_out < 1:
        raise ValueError(
            f"config.held_out={s.held_out!r}; it must be a share between 0 and 1, such as 0.03"
        )
    return s


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


if __name__ == "__main__":
    results.main(run)
