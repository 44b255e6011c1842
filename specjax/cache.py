"""The key-value buffer of a decoder: fixed shapes, one length per row, rollback by index.

Between rounds the cache of a target holds ``length[b]`` valid entries in row ``b``; every slot from
there on is scratch that the next pass overwrites. Nothing is ever erased: to forget is to move
``length`` back.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class KVCache(NamedTuple):
    """Keys and values of every layer.

    Attributes:
      keys: one ``[B, K, S, D]`` buffer a layer (K KV heads, S slots, D head size).
      values: the same for the values.
      length: int32 ``[B]``, valid entries of each row.
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    length: Array

    @property
    def capacity(self) -> int:
        """S, the number of slots a row has."""
        return self.keys[0].shape[2]


def init(
    *,
    layers: int,
    batch: int,
    kv_heads: int,
    capacity: int,
    head_dim: int,
    dtype: jax.typing.DTypeLike,
) -> KVCache:
    """An empty cache: zeros, not ``empty`` (which newer jax leaves uninitialised, so 0 * NaN)."""
    shape = (batch, kv_heads, capacity, head_dim)
    return KVCache(
        keys=tuple(jnp.zeros(shape, dtype) for _ in range(layers)),
        values=tuple(jnp.zeros(shape, dtype) for _ in range(layers)),
        length=jnp.zeros([batch], jnp.int32),
    )


def write(buffer: Array, new: Array, start: Array) -> Array:
    """Writes ``new`` at each row's own slots, in place when the buffer is donated or a loop carry.

    Entries past the last slot are dropped. ``dynamic_update_slice`` would instead shift its start
    back and overwrite valid entries.

    Args:
      buffer: ``[B, K, S, D]``.
      new: ``[B, K, T, D]``, cast to the buffer's dtype.
      start: int32 ``[B]``, the slot of each row's first new entry.

    Returns:
      The buffer, with ``new[b, :, t]`` at slot ``start[b] + t``.
    """
    slots = start[:, None] + jnp.arange(new.shape[2], dtype=start.dtype)

    def one_row(row: Array, values: Array, at: Array) -> Array:
        return row.at[:, at].set(values, mode="drop", unique_indices=True)

    return jax.vmap(one_row)(buffer, new.astype(buffer.dtype), slots)


def rollback(cache: KVCache, length: Array) -> KVCache:
    """Forgets what lies past ``length`` (int32 ``[B]``) in each row; never lengthens a row."""
    return cache._replace(length=jnp.minimum(cache.length, length.astype(jnp.int32)))


def keep(cache: KVCache, start: Array, path: Array) -> KVCache:
    """Moves the entries of an accepted tree path together (all other entries stay).

    Entry ``start[b] + path[b, d]`` goes to slot ``start[b] + d``. Paths ascend (a parent comes
    before its children), so reading all before writing any is enough.

    Args:
      cache: the cache after a pass over a tree.
      start: int32 ``[B]``, the slot of node 0.
      path: int32 ``[B, D]``, node indices in order of depth.

    Returns:
      The cache with the path in consecutive slots; ``length`` is unchanged.
    """
    slots = jnp.minimum(start[:, None] + path, cache.capacity - 1)

    def move(buffer: Array) -> Array:
        return write(buffer, jnp.take_along_axis(buffer, slots[:, None, :, None], axis=2), start)

    return cache._replace(keys=tuple(map(move, cache.keys)), values=tuple(map(move, cache.values)))
