"""How far a table's counts can be trusted, from text that is not in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from scripts.corpus_counts import asked, before
from specjax.drafters.corpus import CorpusParams, Known, corpus_params, look_up
from specjax.drafters.corpus_table import CorpusTable
from train.data import Documents

_AT_ONCE = 4096
_GRID = np.concatenate([[0.0], np.geomspace(0.05, 200, 60)]).astype(np.float32)
_DEFAULT = 4.0  # of an order that the text says too little about
_ENOUGH = 20  # places that say something


class Looked(NamedTuple):
    """What a table said at some places of a text.

    Attributes:
      order: int32 ``[M]``, of the longest known context; 0: none.
      count: float32 ``[M]``, of its best continuation.
      total: float32 ``[M]``, of the context, without doubt.
      right: bool ``[M]``, the best continuation is what followed.
    """

    order: NDArray[np.int32]
    count: NDArray[np.float32]
    total: NDArray[np.float32]
    right: NDArray[np.bool_]


def look(table: CorpusTable, texts: Iterable[Documents]) -> Looked:
    """What a table says at the supervised tokens of texts."""
    params = corpus_params(dataclasses.replace(table, doubt=np.zeros_like(table.doubt)))
    out: list[tuple[Any, ...]] = [(np.zeros(0, np.int32), *[np.zeros(0, np.float32)] * 2, [])]
    for documents in texts:
        where, place = asked(documents)
        for at in range(0, len(where), _AT_ONCE):
            some, depth = (array[at : at + _AT_ONCE] for array in (where, place))
            recent = np.full((_AT_ONCE, table.orders), -1, np.int32)  # one shape, one program
            recent[: len(some)] = before(documents.tokens, some, depth, table.orders)
            known = jax.device_get(_search(params, recent))
            right = known.tokens[: len(some), 0] == documents.tokens[some]
            right &= known.order[: len(some)] > 0
            counted = known.order, known.counts[:, 0], known.total
            out.append((*(array[: len(some)] for array in counted), right))
    order, count, total, right = (np.concatenate(arrays) for arrays in zip(*out, strict=True))
    return Looked(order, count, total, right.astype(bool))


def doubt(looked: Looked, orders: int) -> NDArray[np.float32]:
    """For each order the doubt under which what followed was most probable (maximum likelihood).

    A context that was seen once says the same as one seen ten times, and is less often right: with
    the doubt d, ``count / (total + d)`` is how often it is.

    Args:
      looked: what the table said.
      orders: N.
    """
    out = np.full(orders, _DEFAULT, np.float32)
    for order in range(1, orders + 1):
        here = looked.order == order
        if here.sum() < _ENOUGH:
            continue
        some = Looked(*(array[here] for array in looked))
        out[order - 1] = max(_GRID, key=lambda doubt: _log_likelihood(some, doubt))
    return out


def _log_likelihood(looked: Looked, doubt: float) -> float:
    prob = np.clip(looked.count / (looked.total + doubt), 1e-6, 1 - 1e-6)
    return float(np.where(looked.right, np.log(prob), np.log1p(-prob)).sum())


@jax.jit
def _search(params: CorpusParams, recent: NDArray[np.int32]) -> Known:
    return look_up(params, jnp.asarray(recent), 1, 1)
