"""From counts to a table: what each context says, and the contexts that are worth their bytes.

A context earns what it says better than the next shorter one: how often it was right in the text,
less how often the shorter one's answer would have been (the count of that answer after this very
context). A context that only repeats the shorter one's answer earns nothing, and goes first.
(Stolcke 1998, "Entropy-based pruning of backoff language models", with guesses for likelihood.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts.corpus_counts import Parts, summed
from specjax.drafters.corpus_table import CorpusTable

_AT_ONCE = 2**22  # rows merged at a time, about
_OF_CONTEXT = 9  # bytes of a context: key, check, total, size
_OF_ROW = 2  # bytes of a count; and a token's


class Contexts(NamedTuple):
    """Contexts of one order, by hash.

    Attributes:
      hash: uint64 ``[C]``, ascending.
      total: int64 ``[C]``.
      earns: int64 ``[C]``.
      tokens: uint32 ``[C, R]``, the most frequent continuations.
      counts: int64 ``[C, R]``, 0 where there are fewer.
    """

    hash: NDArray[np.uint64]
    total: NDArray[np.int64]
    earns: NDArray[np.int64]
    tokens: NDArray[np.uint32]
    counts: NDArray[np.int64]

    def take(self, which: NDArray[Any]) -> Contexts:
        """Some of them."""
        return Contexts(*(array[which] for array in self))


def prune(parts: Parts, *, ranks: int, min_count: int, bytes_: int, vocab_size: int) -> CorpusTable:
    """The table of at most some bytes that earns most.

    Args:
      parts: the counts.
      ranks: R, continuations kept of a context; further ones than the first if seen twice or more.
      min_count: contexts whose best continuation was seen less often are left out.
      bytes_: what the arrays may take.
      vocab_size: V; up to 65,536 tokens take two bytes each.

    Raises:
      ValueError: nothing is left.
    """
    token = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    most = bytes_ // (_OF_CONTEXT + _OF_ROW + token.itemsize) + 1
    kept: list[Contexts] = []
    shorter: Contexts | None = None
    for order in range(1, parts.orders + 1):
        shorter = merged(parts, order, shorter, ranks, min_count)
        # More of one order than fit in all will never be needed.
        kept.append(_best(shorter, most))
    whole = Contexts(*(np.concatenate(arrays) for arrays in zip(*kept, strict=True)))
    sizes = (whole.counts > 0).sum(1)
    order = _ranking(whole)
    spent = np.cumsum(_OF_CONTEXT + sizes[order] * (_OF_ROW + token.itemsize))
    order = order[spent <= bytes_]
    if not len(order):
        raise ValueError(
            f"no context is left (min_count={min_count}, {bytes_} bytes); lower min_count, or give "
            "more text or more bytes"
        )
    return _table(whole.take(order), token, parts.orders)


def merged(
    parts: Parts, order: int, shorter: Contexts | None, ranks: int, min_count: int
) -> Contexts:
    """All contexts of an order, from all parts, some hashes at a time."""
    files = parts.read(order)
    pieces = max(1, sum(map(len, files)) // _AT_ONCE)
    edges = [(2**64 * piece) // pieces for piece in range(1, pieces)]
    bounds = [np.searchsorted(rows["hash"], np.array(edges, np.uint64)).tolist() for rows in files]
    out = []
    for piece in range(pieces):
        some = [
            rows[(at[piece - 1] if piece else 0) : (at[piece] if piece < pieces - 1 else None)]
            for rows, at in zip(files, bounds, strict=True)
        ]
        out.append(_contexts(summed(np.concatenate(some)), shorter, ranks, min_count))
    return Contexts(*(np.concatenate(arrays) for arrays in zip(*out, strict=True)))


def _contexts(rows: NDArray[Any], shorter: Contexts | None, ranks: int, min_count: int) -> Contexts:
    """The contexts of rows that are in the order of hashes."""
    first = np.flatnonzero(np.diff(rows["hash"], prepend=~rows["hash"][:1]))
    owner = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))  # of each row
    counts = rows["count"].astype(np.int64)
    total = np.add.reduceat(counts, first) if len(first) else counts
    by_rank = np.lexsort((rows["token"], -counts, owner))
    rank = np.arange(len(rows)) - first[owner]
    tokens = np.zeros((len(first), ranks), np.uint32)
    best = np.zeros((len(first), ranks), np.int64)
    for r in range(ranks):
        row = by_rank[rank == r]
        tokens[owner[row], r], best[owner[row], r] = rows["token"][row], counts[row]
    best[:, 1:] *= best[:, 1:] >= 2
    earns = best[:, 0].copy()
    if shorter is not None:
        says, known = _says(shorter, rows["shorter"][first])
        agrees = (rows["token"] == says[owner]) & known[owner]
        np.subtract.at(earns, owner[agrees], counts[agrees])
    contexts = Contexts(rows["hash"][first], total, earns, tokens, best)
    return contexts.take(best[:, 0] >= min_count)


def _says(
    shorter: Contexts, hashes: NDArray[np.uint64]
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """The first continuations of contexts by their hashes, and whether they are known."""
    if not len(shorter.hash):
        return np.zeros(len(hashes), np.uint32), np.zeros(len(hashes), bool)
    at = np.minimum(np.searchsorted(shorter.hash, hashes), len(shorter.hash) - 1)
    return shorter.tokens[at, 0], shorter.hash[at] == hashes


def _ranking(contexts: Contexts) -> NDArray[np.int64]:
    """What earns most first; of equals what occurred most often, then by hash."""
    return np.lexsort((contexts.hash, -contexts.counts[:, 0], -contexts.earns))


def _best(contexts: Contexts, most: int) -> Contexts:
    return contexts.take(np.sort(_ranking(contexts)[:most]))


def _table(contexts: Contexts, token: np.dtype, orders: int) -> CorpusTable:
    # Two contexts of one key can't both be found. They come ranked: the one that earns more stays.
    keys = (contexts.hash >> np.uint64(32)).astype(np.uint32)
    contexts = contexts.take(np.unique(keys, return_index=True)[1])
    shift = np.ceil(np.log2(np.maximum(contexts.total / (2**16 - 1), 1))).astype(np.int64)
    kept = contexts.counts > 0
    counts = np.maximum(contexts.counts >> shift[:, None], 1)
    return CorpusTable(
        keys=(contexts.hash >> np.uint64(32)).astype(np.uint32),
        checks=((contexts.hash >> np.uint64(16)) & np.uint64(0xFFFF)).astype(np.uint16),
        totals=(contexts.total >> shift).astype(np.uint16),
        sizes=kept.sum(1).astype(np.uint8),
        tokens=contexts.tokens[kept].astype(token),
        counts=counts[kept].astype(np.uint16),
        doubt=np.zeros(orders, np.float32),
    )
