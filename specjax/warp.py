"""Warping: logits to the probabilities that are drawn from and verified against.

Order: (penalties, bias and masks have their place here, before the temperature), temperature,
top-k, top-p, min-p. Both q and p go through this one function, so they can't disagree on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from specjax import keys


class Sampling(NamedTuple):
    """How to sample; every field is None (absent: nothing is traced) or a number or array.

    Arrays are ``[]`` or ``[B]`` and dynamic: a new value never recompiles. Greedy decoding is
    temperature None or 0; filters along with it raise.

    Attributes:
      temperature: not negative; 0 in a row of a ``[B]`` array makes that row greedy.
      top_k: keep the k most probable ids (all that tie with the k-th); at least 1.
      top_p: keep the fewest most probable ids that hold this mass; in (0, 1].
      min_p: keep ids at least this fraction as probable as the most probable one; in [0, 1].
    """

    temperature: float | Array | None = None
    top_k: int | Array | None = None
    top_p: float | Array | None = None
    min_p: float | Array | None = None


def apply(sampling: Sampling, logits: Array) -> Array:
    """The warped distribution of each row of logits.

    Args:
      sampling: with a temperature; fields are ``[B]`` arrays or None.
      logits: float ``[B, n, V]``; -inf is legal padding.

    Returns:
      float32 probabilities ``[B, n, V]`` (float64 stays float64).
    """
    assert sampling.temperature is not None, "greedy decoding has no distribution to warp"
    if logits.dtype != jnp.float64:
        logits = logits.astype(jnp.float32)
    temperature = _column(sampling.temperature, logits.dtype)
    # Shifted first: a small temperature must not overflow, and -inf / T must stay -inf.
    logits = logits - jnp.max(logits, -1, keepdims=True)
    logits = logits / jnp.where(temperature > 0, temperature, 1)
    if sampling.top_k is not None:
        logits = _keep_top_k(logits, _column(sampling.top_k, jnp.int32))
    probs = jax.nn.softmax(logits, -1)
    if sampling.top_p is not None:
        probs = _keep_top_p(probs, _column(sampling.top_p, probs.dtype))
    if sampling.min_p is not None:
        floor = _column(sampling.min_p, probs.dtype) * jnp.max(probs, -1, keepdims=True)
        probs = jnp.where(probs >= floor, probs, 0)
    if sampling.top_p is not None or sampling.min_p is not None:
        probs = probs / jnp.sum(probs, -1, keepdims=True)
    ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    greedy = (ids == keys.argmax(logits)[..., None]).astype(probs.dtype)
    return jnp.where(temperature > 0, probs, greedy)


def _column(value: ArrayLike, dtype: DTypeLike) -> Array:
    """A setting as ``[B, 1, 1]`` (or ``[1, 1, 1]``)."""
    return jnp.asarray(value).astype(dtype).reshape(-1, 1, 1)


def _keep_top_k(logits: Array, k: Array) -> Array:
    """Sets ids below the k-th largest logit to -inf; ties with it stay."""

    def enough(threshold: Array) -> Array:
        return jnp.sum(_ordered(logits) >= threshold, -1, keepdims=True, dtype=jnp.int32) >= k

    return jnp.where(_ordered(logits) >= _largest(enough, logits), logits, -jnp.inf)


def _keep_top_p(probs: Array, mass: Array) -> Array:
    """Zeroes the ids outside the smallest most probable set that holds ``mass``; ties stay."""
    ordered = _ordered(probs)

    def enough(threshold: Array) -> Array:
        return jnp.sum(jnp.where(ordered >= threshold, probs, 0), -1, keepdims=True) >= mass

    # All of the mass is all ids: a float32 sum reaches 1 before the last of them.
    return jnp.where((ordered >= _largest(enough, probs)) | (mass >= 1), probs, 0)


def _ordered(values: Array) -> Array:
    """Integers in the order of the floats (sign-magnitude to two's complement)."""
    integer = jnp.int64 if values.dtype == jnp.float64 else jnp.int32
    bits = lax.bitcast_convert_type(values, integer)
    return jnp.where(bits < 0, bits ^ jnp.iinfo(integer).max, bits)


def _largest(enough: Callable[[Array], Array], values: Array) -> Array:
    """The largest threshold ``[B, n, 1]`` on ``_ordered(values)`` that still holds enough.

    Bisection over the bits of a float: exact, and 20 times faster than a sort of a vocabulary.
    """
    bits = 64 if values.dtype == jnp.float64 else 32
    integer = jnp.int64 if bits == 64 else jnp.int32
    low = jnp.full((*values.shape[:-1], 1), jnp.iinfo(integer).min, integer)
    high = jnp.full_like(low, jnp.iinfo(integer).max)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low | high) - ((low ^ high) >> 1)  # the mean rounded up, without overflow
        holds = enough(middle)
        return jnp.where(holds, middle, low), jnp.where(holds, high, middle - 1)

    return lax.fori_loop(0, bits, halve, (low, high))[0]
