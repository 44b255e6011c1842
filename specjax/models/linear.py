"""Matrix products whose form suits the number of rows: decoding multiplies one row at a time."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array, lax


def linear(x: Array, weight: Array) -> Array:
    """``x @ weight`` for a ``[in, out]`` weight.

    A single row on CPU is a product of two halves: XLA gives each half of a batched product to a
    thread of its own, which then streams one contiguous half of the weight. The plain form shares
    out columns and reaches 20-28 GB/s where this one reaches 31-35 of 33.5 (576x576 to 1536x576).

    Args:
      x: ``[B, T, in]``.
      weight: ``[in, out]``, of the same dtype.

    Returns:
      ``[B, T, out]``.
    """
    inner, outer = weight.shape
    if math.prod(x.shape[:-1]) != 1 or inner % 2 or jax.default_backend() != "cpu":
        return x @ weight
    halves = lax.dot_general(
        x.reshape(1, 2, inner // 2),
        weight.reshape(2, inner // 2, outer),
        (((2,), (1,)), ((1,), (0,))),
    )
    return jnp.sum(halves, axis=0).reshape(*x.shape[:-1], outer)
