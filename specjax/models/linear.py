"""Matrix products whose form suits the number of rows: decoding multiplies a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from specjax import machine

PANEL = 64  # columns a panel
PANEL_ROWS = 5  # the most rows that XLA's CPU kernel takes through a panel at once
UPRIGHT = 2  # panels of an upright matrix
UPRIGHT_ROWS = (1, 4, 8, 16, 32)  # the numbers of rows that it is given: others are filled up
EMBED, HEAD = ("embed",), ("head",)  # where parameters hold the table, and the output matrix

Path = tuple[str, ...]  # keys into nested parameters


def linear(
    x: Array,
    weight: Array,
    panels: Array | None = None,
    *,
    transposed: bool = False,
    out_dtype: DTypeLike | None = None,
) -> Array:
    """``x @ weight``.

    On CPU a few rows times a matrix take as long as reading the matrix, if XLA's kernel for so many
    rows reads it well; that depends on the layout and on the processor. With AVX-512, from
    ``[in, out]`` two rows and more read a narrow strip of each row, at 15 to 19 GB/s; from panels
    they read on and on, at 23 to 26 (memory at 33). Milliseconds for all 0.54 GB of SmolLM2-135M's
    matrices alone, one run, against the number of rows (17.8 for one row by halves, which is what
    it takes without panels):

    ====== ==== ==== ==== ==== ==== ==== ====
    rows   1    2    3    4    5    6    10
    plain  19.5 31.6 31.0 30.3 30.7 34.3 36.3
    panels 18.3 21.5 21.8 22.4 23.8 31.5 38.7
    ====== ==== ==== ==== ==== ==== ==== ====

    With AVX2 alone XLA's kernels for a few rows are bound by arithmetic, and such panels are worse
    than none. One and two rows are multiplied one by one there (the second finds the matrix in the
    cache). For more, the matrix stands upright: it is the left side of the product, and the rows
    are filled up to 4, 8, 16 or 32, which cost least. Milliseconds for 100 matrices of 576 by
    1,536, 0.35 GB, one run (1 and 16 rows: another):

    ========== ==== ==== ==== ==== ==== ==== ====
    rows       1    2    3    4    5    8    16
    plain      25   50   68   79   72   84   98
    one by one 21   35   40   53   48   72   84
    upright    30   48   39   39   44   46   48
    ========== ==== ==== ==== ==== ==== ==== ====

    Such panels in a third: 23, 55, 99, 107 and 114 for 1, 2, 3, 5 and 8 rows, where the plain form
    took 21, 41, 68, 77 and 91.

    Args:
      x: ``[B, T, in]``.
      weight: ``[in, out]``, of the same dtype.
      panels: ``to_panels`` of the ``[in, out]`` matrix, read instead of it where that takes less.
      transposed: the weight is ``[out, in]``, as a table of embeddings is.
      out_dtype: of the sums and the result; by default that of ``x``.

    Returns:
      ``[B, T, out]``.

    Raises:
      ValueError: panels of another processor's form.
    """
    rows = math.prod(x.shape[:-1])
    if panels is not None:
        _check_panels(panels, weight.shape[::-1] if transposed else weight.shape)
    if panels is not None and _pays(rows, transposed):
        out = (_by_upright if is_upright() else _by_panels)(x.reshape(rows, -1), panels, out_dtype)
    elif transposed:
        return jnp.einsum("...w,vw->...v", x, weight, preferred_element_type=out_dtype)
    elif 0 < rows <= _one_by_one() and x.shape[-1] % 2 == 0:
        each = x.reshape(rows, 1, -1)
        out = jnp.concatenate([_by_halves(row, weight, out_dtype) for row in each])
    else:
        return jnp.matmul(x, weight, preferred_element_type=out_dtype)
    return out.reshape(*x.shape[:-1], -1)


def is_upright() -> bool:
    """Whether panels stand upright on this machine: where XLA's kernels are those for AVX2."""
    return machine.lacks_avx512()


def drop_panels(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without the second form of their matrices.

    What ``models.load`` gives on CPU holds small models' matrices twice, and short passes read the
    panels: where the weights are changed, or saved for another machine, drop the panels first.
    """
    return {
        name: drop_panels(value) if isinstance(value, Mapping) else value
        for name, value in params.items()
        if not name.endswith("_panels")
    }


def panels_for(columns: Mapping[Path, Sequence[int]]) -> dict[Path, Path]:
    """Which matrices are held as panels too, and where those go: one rule for all makers of models.

    A matrix that was joined is laid out part by part, so each part must fill whole panels. A table
    without an output matrix beside it is one as well, transposed.

    Args:
      columns: by the path of a matrix, the output columns of each of its parts; of the table its
        rows.

    Returns:
      The path of the panels by that of the matrix.
    """
    out = {}
    for path, parts in columns.items():
        if path == EMBED and HEAD in columns:
            continue
        *outer, name = HEAD if path == EMBED else path
        if all(part % PANEL == 0 for part in parts):
            out[path] = (*outer, f"{name}_panels")
    return out


def to_panels(weight: Array) -> Array:
    """``[in, out]`` in panels: each is one piece of memory; see ``panels_shape``."""
    inner, outer = weight.shape
    if is_upright():
        return weight.T.reshape(panels_shape(inner, outer))
    return weight.reshape(inner, -1, PANEL).swapaxes(0, 1)


def panels_shape(inner: int, outer: int, upright: bool | None = None) -> tuple[int, int, int]:
    """Of the panels of an ``[in, out]`` matrix.

    Args:
      inner: in.
      outer: out.
      upright: their form; by default this machine's.

    Returns:
      ``[out / PANEL, in, PANEL]``, or upright ``[UPRIGHT, out / UPRIGHT, in]``.
    """
    if is_upright() if upright is None else upright:
        return UPRIGHT, outer // UPRIGHT, inner
    return outer // PANEL, inner, PANEL


def _check_panels(panels: Array, matrix: tuple[int, ...]) -> None:
    inner, outer = matrix
    expected = panels_shape(inner, outer)
    if panels.shape != expected:
        raise ValueError(
            f"panels of shape {panels.shape} are of another processor's form; here they are "
            f"{expected}: load the model on this machine, or drop_panels"
        )


def _pays(rows: int, transposed: bool) -> bool:
    """Whether so many rows read the panels; a transposed matrix has nothing better for one."""
    if not is_upright():
        return rows <= PANEL_ROWS
    return (transposed or rows > _one_by_one()) and rows <= UPRIGHT_ROWS[-1]


def _one_by_one() -> int:
    """The most rows that are multiplied one after the other."""
    if jax.default_backend() != "cpu":
        return 0
    return 2 if is_upright() else 1


def _by_panels(x: Array, panels: Array, out_dtype: DTypeLike | None) -> Array:
    """``[T, in]`` times panels, ``[T, out]``."""
    x = jnp.broadcast_to(x, (panels.shape[0], *x.shape))
    dims = ((2,), (1,)), ((0,), (0,))
    out = lax.dot_general(x, panels, dims, preferred_element_type=out_dtype)
    return out.swapaxes(0, 1).reshape(x.shape[1], -1)  # [out / PANEL, T, PANEL] to [T, out]


def _by_upright(x: Array, panels: Array, out_dtype: DTypeLike | None) -> Array:
    """``[T, in]`` times an upright matrix, ``[T, out]``.

    XLA would swap the sides of a single product, and read the matrix as badly as the plain form.
    """
    rows = x.shape[0]
    full = next(count for count in UPRIGHT_ROWS if count >= rows)
    x = jnp.pad(x, ((0, full - rows), (0, 0)))
    x = jnp.broadcast_to(x, (panels.shape[0], *x.shape))
    dims = ((2,), (2,)), ((0,), (0,))
    out = lax.dot_general(panels, x, dims, preferred_element_type=out_dtype)
    return out.transpose(2, 0, 1).reshape(full, -1)[:rows]  # [UPRIGHT, out / UPRIGHT, T]


def _by_halves(x: Array, weight: Array, out_dtype: DTypeLike | None) -> Array:
    """One row ``[1, in]`` times ``[in, out]``: each thread streams one half of the weight."""
    inner, outer = weight.shape
    x, weight = x.reshape(1, 2, inner // 2), weight.reshape(2, inner // 2, outer)
    dims = ((2,), (1,)), ((1,), (0,))
    return jnp.sum(lax.dot_general(x, weight, dims, preferred_element_type=out_dtype), axis=0)
