"""Matrix products whose form suits the number of rows: decoding multiplies one row at a time."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array, lax


def linear(x: Array, weight: Array) -> Array:
    """``x @ weight`` for a ``[in, out]`` weight.

    On CPU one row is a product of two halves: XLA gives each half of a batched product to a thread
    of its own, which then streams one contiguous half of the weight. The plain form shares out
    columns: 20-29 GB/s where this one reached 28-33 in the same run (matrices of 576x576 to
    576x3072, memory at 33). Two rows are two such products, the second of which can find the weight
    in the processor's cache; XLA's kernel for two rows and more read memory at 13-20 GB/s.

    Args:
      x: ``[B, T, in]``.
      weight: ``[in, out]``, of the same dtype.

    Returns:
      ``[B, T, out]``.
    """
    rows = math.prod(x.shape[:-1])
    if rows > 2 or jax.default_backend() != "cpu":
        return x @ weight
    flat = x.reshape(rows, x.shape[-1])
    out = jnp.concatenate([_row(flat[row : row + 1], weight) for row in range(rows)])
    return out.reshape(*x.shape[:-1], weight.shape[1])


def _row(x: Array, weight: Array) -> Array:
    """One row ``[1, in]`` times ``[in, out]``, by halves."""
    inner, outer = weight.shape
    if inner % 2:
        return x @ weight
    x, weight = x.reshape(1, 2, inner // 2), weight.reshape(2, inner // 2, outer)
    halves = lax.dot_general(x, weight, (((2,), (1,)), ((1,), (0,))))
    return jnp.sum(halves, axis=0)
