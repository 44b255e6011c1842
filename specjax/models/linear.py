"""Matrix products whose form suits the number of rows: decoding multiplies a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

PANEL = 64  # columns a panel
PANEL_ROWS = 5  # the most rows that XLA's CPU kernel takes through a panel at once
EMBED, HEAD = ("embed",), ("head",)  # where parameters hold the table, and the output matrix

Path = tuple[str, ...]  # keys into nested parameters


def linear(
    x: Array, weight: Array, panels: Array | None = None, *, out_dtype: DTypeLike | None = None
) -> Array:
    """``x @ weight``.

    On CPU a few rows times a matrix take as long as reading the matrix, and that depends on its
    layout. From ``[in, out]`` XLA's kernel for two rows and more reads a narrow strip of each row,
    at 15 to 19 GB/s; from panels it reads on and on, at 23 to 26 (memory at 33). Milliseconds for
    all 0.54 GB of SmolLM2-135M's matrices alone, one run, by rows (17.8 for one by halves, which is
    what a single row takes without panels):

    ====== ==== ==== ==== ==== ==== ==== ====
    rows   1    2    3    4    5    6    10
    plain  19.5 31.6 31.0 30.3 30.7 34.3 36.3
    panels 18.3 21.5 21.8 22.4 23.8 31.5 38.7
    ====== ==== ==== ==== ==== ==== ==== ====

    Args:
      x: ``[B, T, in]``.
      weight: ``[in, out]``, of the same dtype.
      panels: ``to_panels(weight)``, read instead of it for up to ``PANEL_ROWS`` rows.
      out_dtype: of the sums and the result; by default that of ``x``.

    Returns:
      ``[B, T, out]``.
    """
    rows = math.prod(x.shape[:-1])
    if panels is not None and rows <= PANEL_ROWS:
        out = _by_panels(x.reshape(rows, -1), panels, out_dtype)
    elif rows == 1 and x.shape[-1] % 2 == 0 and jax.default_backend() == "cpu":
        out = _by_halves(x.reshape(rows, -1), weight, out_dtype)
    else:
        return jnp.matmul(x, weight, preferred_element_type=out_dtype)
    return out.reshape(*x.shape[:-1], -1)


def drop_panels(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without the second form of their matrices.

    What ``models.load`` gives on CPU holds small models' matrices twice, and short passes read the
    panels: where the weights are changed, drop the panels first.
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
    """``[in, out]`` as ``[out / PANEL, in, PANEL]``: each panel is one piece of memory."""
    inner, outer = weight.shape
    return weight.reshape(inner, outer // PANEL, PANEL).swapaxes(0, 1)


def _by_panels(x: Array, panels: Array, out_dtype: DTypeLike | None) -> Array:
    """``[T, in]`` times panels, ``[T, out]``."""
    x = jnp.broadcast_to(x, (panels.shape[0], *x.shape))
    dims = ((2,), (1,)), ((0,), (0,))
    out = lax.dot_general(x, panels, dims, preferred_element_type=out_dtype)
    return out.swapaxes(0, 1).reshape(x.shape[1], -1)  # [out / PANEL, T, PANEL] to [T, out]


def _by_halves(x: Array, weight: Array, out_dtype: DTypeLike | None) -> Array:
    """One row ``[1, in]`` times ``[in, out]``: each thread streams one half of the weight."""
    inner, outer = weight.shape
    x, weight = x.reshape(1, 2, inner // 2), weight.reshape(2, inner // 2, outer)
    dims = ((2,), (1,)), ((1,), (0,))
    return jnp.sum(lax.dot_general(x, weight, dims, preferred_element_type=out_dtype), axis=0)
