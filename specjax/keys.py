"""Noise: which key every random number comes from, and the draws themselves.

Three rules, each of which a published implementation breaks:

* The row comes first, so a row's output does not depend on its neighbours.
* Draft, accept and residual noise are keyed by the *length at the start of the round*, then the
  offset in the round, then the stream. Lengths strictly increase, so no noise is used twice. Keyed
  by absolute position, a position drafted again after a rejection would see its old noise, which
  biases every rule whose decision depended on it.
* The target stream alone is keyed by absolute position: there the output equals plain decoding with
  the same key, path by path.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

DRAFT, ACCEPT, RESIDUAL, TARGET = range(4)  # the streams

_BLOCK = 256  # ids a block in the two-level draw; two scans of about sqrt(V) each


class Noise(NamedTuple):
    """Where a round's randomness comes from.

    Attributes:
      keys: typed Threefry keys ``[B]``, one a row.
      length: int32 ``[B]``, the rows' lengths at the start of the round.
      gumbel: float32 ``[B, N+1, V]`` or None: what ``target_gumbel`` gives for a chain, where it
        was made already because drafter and target share it.
    """

    keys: Array
    length: Array
    gumbel: Array | None = None


def row_keys(key: Array, batch: int) -> Array:
    """Keys ``[B]``: one key is folded with the row index, ``[B]`` keys are taken as they are."""
    if key.ndim:
        return key
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch, dtype=jnp.uint32))


def _fold(key: Array, position: Array, offset: Array, stream: int) -> Array:
    # Always three folds: a key that numbers are drawn from is never folded further.
    key = jax.random.fold_in(key, position.astype(jnp.uint32))
    return jax.random.fold_in(jax.random.fold_in(key, offset), stream)


def uniforms(noise: Noise, offset: int | Array, stream: int, count: int) -> Array:
    """Float32 ``[B, count]`` in [0, 1) for one use in this round."""
    offset = jnp.asarray(offset, jnp.uint32)

    def one_row(key: Array, length: Array) -> Array:
        return jax.random.uniform(_fold(key, length, offset, stream), [count], jnp.float32)

    return jax.vmap(one_row)(noise.keys, noise.length)


def target_gumbel(noise: Noise, depths: Array, vocab: int) -> Array:
    """Gumbel noise of the target stream, keyed by row and absolute position.

    The default mode of ``jax.random.gumbel`` is wrong in the tail (a tail of mass 0.005 is drawn
    half as often as it should), hence ``mode="high"``.

    Args:
      noise: the round's noise.
      depths: int32 ``[N+1]``, how far past the pending token each node lies; the token that follows
        node n has absolute position ``length + depths[n]``.
      vocab: V.

    Returns:
      Float32 ``[B, N+1, V]``.
    """

    def one(key: Array, position: Array) -> Array:
        zero = jnp.zeros([], jnp.uint32)
        return jax.random.gumbel(
            _fold(key, position, zero, TARGET), [vocab], jnp.float32, mode="high"
        )

    if noise.gumbel is not None:
        return noise.gumbel[:, depths]
    positions = noise.length[:, None] + depths
    return jax.vmap(jax.vmap(one, (None, 0)))(noise.keys, positions)


def draw(weights: Array, uniform: Array) -> Array:
    """Draws ids from unnormalised weights by an inverse CDF on two levels.

    The first uniform picks a block of ids, the second an id inside it, so an id's probability is
    resolved relative to its block and not to one step of the uniform. An id of weight 0 is never
    drawn while any weight is positive.

    Args:
      weights: float ``[B, V]``, not negative.
      uniform: float ``[B, 2]`` in [0, 1).

    Returns:
      int32 ``[B]``.
    """
    vocab = weights.shape[-1]
    size = min(_BLOCK, vocab)
    padded = jnp.pad(weights, ((0, 0), (0, -vocab % size)))
    blocks = padded.reshape(weights.shape[0], -1, size)
    block = first_above(jnp.sum(blocks, -1), uniform[:, 0])
    inside = jnp.take_along_axis(blocks, block[:, None, None], 1)[:, 0]
    return block * size + first_above(inside, uniform[:, 1])


def first_above(weights: Array, uniform: Array) -> Array:
    """First index whose cumulative weight exceeds ``uniform`` times the total.

    Strict, and of positive weight: a parallel sum can step up by rounding where the weight is 0.
    Where rounding lets nothing exceed it, the last index of positive weight.

    Args:
      weights: float ``[B, n]``, not negative.
      uniform: float ``[B]`` in [0, 1).

    Returns:
      int32 ``[B]``.
    """
    cumulative = jnp.cumsum(weights, -1)
    above = (cumulative > uniform[:, None] * cumulative[:, -1:]) & (weights > 0)
    index = jnp.arange(weights.shape[-1], dtype=jnp.int32)
    last_positive = jnp.max(jnp.where(weights > 0, index, 0), -1)
    first = jnp.min(jnp.where(above, index, weights.shape[-1]), -1)
    return jnp.minimum(first, last_positive)


def argmax(values: Array) -> Array:
    """First index of the largest value on the last axis, int32.

    A maximum and a minimum reduction: on XLA's CPU backend eight times faster than ``jnp.argmax``
    over a vocabulary.
    """
    index = jnp.arange(values.shape[-1], dtype=jnp.int32)
    top = jnp.max(values, -1, keepdims=True)
    return jnp.min(jnp.where(values == top, index, values.shape[-1] - 1), -1)
