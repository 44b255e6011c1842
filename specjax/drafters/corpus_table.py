"""A table of what follows a few tokens in a corpus: its hashes, and the file it is kept in.

Contexts are known by their hashes alone: a key of 32 bits, by which they are sorted, and a check of
16 more, so that a context that isn't in the table is taken for one that is once in 2**48 tries a
row. What a draft costs then is a refusal: verification never trusts a drafter.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load_file

from specjax.models import saving

FORMAT = "specjax corpus table, version 1"
FILE = "model.safetensors"
_WRITTEN = "format", "orders", "doubt", "contexts", "checksum", "checksums"  # by save itself
_ARRAYS = {
    "keys": (np.uint32,),
    "checks": (np.uint16,),
    "totals": (np.uint16,),
    "sizes": (np.uint8,),
    "tokens": (np.uint16, np.uint32),
    "counts": (np.uint16,),
}
_SEEDS = 0x9E3779B9, 0x85EBCA6B  # of the key and of the check


@dataclasses.dataclass(frozen=True, eq=False)
class CorpusTable:
    """Contexts of 1 to N tokens, and the tokens that follow them most often.

    Attributes:
      keys: uint32 ``[C]``, ascending, each once: hashes of the contexts, of all orders together.
      checks: uint16 ``[C]``, further hashes of the same.
      totals: uint16 ``[C]``, how often each occurred (halved with its counts until they fit).
      sizes: uint8 ``[C]``, continuations kept of each, at least 1.
      tokens: uint16 or uint32 ``[R]``, the continuations, context by context, the most frequent
        first.
      counts: uint16 ``[R]``, how often each of them occurred.
      doubt: float32 ``[N]``: a continuation of count c, after a context of n tokens that occurred
        t times, is expected with probability ``c / (t + doubt[n - 1])``.
      about: what config.json says: the tokenizer's fingerprint, the text, figures.
    """

    keys: NDArray[np.uint32]
    checks: NDArray[np.uint16]
    totals: NDArray[np.uint16]
    sizes: NDArray[np.uint8]
    tokens: NDArray[Any]
    counts: NDArray[np.uint16]
    doubt: NDArray[np.float32]
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def orders(self) -> int:
        """N, the longest context."""
        return len(self.doubt)


def hashes(context: Any, xp: Any = np) -> tuple[Any, Any]:
    """Hashes of the last 1, 2, ..., N tokens.

    Args:
      context: integer ``[..., N]``, the last tokens, the last one first.
      xp: numpy, or jax.numpy inside programs: both give the same.

    Returns:
      uint32 ``[..., N]`` each: the key's, and one whose upper 16 bits are the check. Entry n - 1 is
      the hash of n tokens.
    """
    tokens = context.astype(xp.uint32)
    return tuple(_hashes(tokens, np.uint32(seed), xp) for seed in _SEEDS)


def _hashes(tokens: Any, seed: np.uint32, xp: Any) -> Any:
    state, out = xp.full(tokens.shape[:-1], seed, xp.uint32), []
    for n in range(tokens.shape[-1]):
        state = (state ^ _mixed(tokens[..., n] + seed)) * np.uint32(0x01000193)
        out.append(_mixed(state))
    return xp.stack(out, -1)


def _mixed(x: Any) -> Any:
    """Every bit of the result depends on every bit of x (the last steps of MurmurHash3)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def save(folder: str | os.PathLike[str], table: CorpusTable) -> None:
    """Writes a table's folder, whole files, each beside its place and then renamed."""
    about = {
        **table.about,
        "format": FORMAT,
        "orders": table.orders,
        "doubt": table.doubt.tolist(),
        "contexts": len(table.keys),
        "checksum": _checksum(table.keys),
        "checksums": {name: _checksum(getattr(table, name)) for name in _ARRAYS},
    }
    arrays = {name: getattr(table, name) for name in _ARRAYS}
    saving.write(folder, about, arrays, FILE)


def load(
    folder: str | os.PathLike[str], *, vocab_size: int, tokenizer: str | None = None
) -> CorpusTable:
    """Reads a table.

    Args:
      folder: as ``save`` writes it.
      vocab_size: V, the target's.
      tokenizer: the fingerprint of the target's tokenizer; None: not checked.

    Raises:
      ValueError: no table, a damaged one, or one of another tokenizer; names it and the fix. Or an
        argument that can't be.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int | np.integer):
        raise ValueError(
            f"vocab_size={vocab_size!r}; it must be an integer: pass the target's vocab_size"
        )
    folder = _path(folder)
    about = _about(folder / "config.json")
    if tokenizer is not None and about.get("tokenizer") != tokenizer:
        raise ValueError(
            f"{folder} holds a table of another tokenizer (fingerprint {about.get('tokenizer')}, "
            f"the target's is {tokenizer}); build one from the target's own text: python -m "
            "scripts.build_corpus"
        )
    path = folder / FILE
    arrays = _arrays(path)
    try:
        doubt = np.asarray(about.get("doubt", []), np.float32)
    except (OverflowError, TypeError, ValueError):
        doubt = np.zeros(0, np.float32)  # which is a problem below
    own = {name: value for name, value in about.items() if name not in _WRITTEN}
    table = CorpusTable(**arrays, doubt=doubt, about=own)
    if problem := _problem(table, about, vocab_size):
        raise ValueError(f"{path} is damaged: {problem}; get it again, or build it again")
    return table


def is_table(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a table, by its config.json."""
    try:
        _about(_path(folder) / "config.json")
    except ValueError:
        return False
    return True


def _path(folder: Any) -> pathlib.Path:
    try:
        return pathlib.Path(folder)
    except TypeError:
        raise ValueError(
            f"folder={folder!r}; it must be the path of a table's folder, a str or a pathlib.Path"
        ) from None


def _about(path: pathlib.Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        inside = path.parent / "table"
        fix = str(inside) if (inside / path.name).exists() else "the folder of a table"
        raise ValueError(f"{path} can't be read ({error}); give {fix}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"{path} is not that of a {FORMAT!r}; give the folder of a table")
    return about


def _arrays(path: pathlib.Path) -> dict[str, Any]:
    try:
        arrays = load_file(path)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise ValueError(
            f"{path} is missing or truncated ({error}); get it again, or build it again"
        ) from error
    except Exception as error:  # safetensors has no numpy dtype for a tensor: its errors differ
        raise ValueError(
            f"{path} has a tensor of a type that numpy lacks ({error}); it is no corpus table, or "
            "was converted: get it again, or build it again"
        ) from error
    for name, dtypes in _ARRAYS.items():
        if name not in arrays:
            raise ValueError(f"{path} lacks the tensor {name!r}; get it again, or build it again")
        if arrays[name].ndim != 1 or arrays[name].dtype not in dtypes:
            raise ValueError(
                f"{path} has {name!r} as {arrays[name].dtype} {list(arrays[name].shape)}; it must "
                f"be {' or '.join(np.dtype(dtype).name for dtype in dtypes)} of one axis"
            )
    if unknown := sorted(set(arrays) - set(_ARRAYS)):
        raise ValueError(f"{path} has an unknown tensor {unknown[0]!r}; it is no corpus table")
    return arrays


def _checksum(array: NDArray[Any]) -> int:
    """That an array belongs to this config.json, whose numbers were fitted to it."""
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def _problem(table: CorpusTable, about: Mapping[str, Any], vocab_size: int) -> str:
    """What is wrong with a table's contents; "" where nothing is."""
    contexts, orders = len(table.keys), about.get("orders")
    if table.doubt.ndim != 1 or not table.doubt.size or table.doubt.size != orders:
        return f"orders={orders!r} with {table.doubt.size} values of doubt"
    if not np.all(np.isfinite(table.doubt) & (table.doubt >= 0)):
        return f"doubt={table.doubt.tolist()}, where numbers of at least 0 belong"
    if not contexts or {len(table.checks), len(table.totals), len(table.sizes)} != {contexts}:
        return "its arrays belong to different numbers of contexts"
    if not np.all(table.keys[:-1] < table.keys[1:]):
        return "its contexts are not in order, each once"
    if _checksum(table.keys) != about.get("checksum"):
        return "its contexts are not those that its config.json was written for"
    rows = int(table.sizes.sum(dtype=np.int64))
    for name in ("tokens", "counts"):
        if (held := len(getattr(table, name))) != rows:
            return f"'sizes' names {rows} continuations and {name!r} holds {held}"
    for name in ("sizes", "totals", "counts"):
        if not getattr(table, name).all():
            return f"{name!r} holds a 0, where numbers of at least 1 belong"
    sums = about.get("checksums", {})  # older tables have none
    if not isinstance(sums, dict):
        return f"checksums={sums!r}, where one for each array belongs"
    for name, sum_ in sums.items():
        if name not in _ARRAYS or _checksum(getattr(table, name)) != sum_:
            return f"{name!r} is not the array that its config.json was written for"
    if int(table.tokens.max()) >= vocab_size:
        drafted = f"it drafts token {table.tokens.max()}, and the target has {vocab_size} of them"
        return f"{drafted} (is it another target's?)"
    return ""
