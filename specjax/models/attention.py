"""Attention over a cache, in blocks: its cost follows what is filled, not the buffer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

BLOCK = 128  # slots read at a time: the best of 64, 128 and 256 over passes of 1 to 16 tokens


def visible_slots(start: Array, mask: Array | None, length: int, capacity: int) -> Array:
    """Which slots each new token sees: all older valid ones, and the new ones its mask names.

    Args:
      start: int32 ``[B]``, slot of the first new token.
      mask: bool ``[B, T, T]`` among the new tokens (query by key), or None for causal.
      length: T.
      capacity: S.

    Returns:
      bool ``[B, T, S]``.
    """
    offset = jnp.arange(capacity, dtype=jnp.int32)[None, :] - start[:, None]  # [B, S]
    if mask is None:
        return offset[:, None, :] <= jnp.arange(length, dtype=jnp.int32)[None, :, None]
    new = (offset >= 0) & (offset < length)
    index = jnp.where(new, offset, 0)[:, None, :]
    among_new = jnp.take_along_axis(mask, index, axis=2, mode="promise_in_bounds")
    return (offset < 0)[:, None, :] | (new[:, None, :] & among_new)


@jax.custom_jvp
def attend(query: Array, keys: Array, values: Array, visible: Array, filled: Array) -> Array:
    """Softmax attention with the online form of the softmax over blocks of slots.

    Differentiable: derivatives are those of ``attend_at_once``, which holds all scores in memory
    (a loop whose trips are counted at run time has no reverse mode).

    Slots that are not visible get probability 0, so what they hold does not matter as long as it is
    finite (0 * NaN is NaN): a cache starts as zeros and every pass writes finite entries.

    Args:
      query: ``[B, K, G*T, D]``, already scaled by 1/sqrt(D); the T axis is the inner one.
      keys: ``[B, K, S, D]``.
      values: ``[B, K, S, D]``.
      visible: bool ``[B, T, S]``; every query sees at least one slot below ``filled``.
      filled: int32 ``[]``, slots from here on are visible to nobody.

    Returns:
      ``[B, K, G*T, D]`` in the values' dtype.
    """
    batch, kv_heads, rows, head_dim = query.shape
    length, capacity = visible.shape[1:]
    # At least two blocks: XLA sees through a block that is the whole buffer, merges the read with
    # the write of a single token, and copies the buffer for it (every buffer, every pass).
    block = min(BLOCK, (capacity + 1) // 2)
    low = jnp.finfo(jnp.float32).min

    def step(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        index, highest, total, out = carry
        # S need not be a multiple: the last block may overlap the one before; those are masked.
        begin = index * block
        at = jnp.minimum(begin, capacity - block)
        key = lax.dynamic_slice_in_dim(keys, at, block, axis=2)
        value = lax.dynamic_slice_in_dim(values, at, block, axis=2)
        see = lax.dynamic_slice_in_dim(visible, at, block, axis=2)
        see = see & (at + jnp.arange(block, dtype=jnp.int32) >= begin)
        scores = jnp.einsum("bkrd,bksd->bkrs", query, key, preferred_element_type=jnp.float32)
        scores = scores.reshape(batch, kv_heads, rows // length, length, block)
        scores = jnp.where(see[:, None, None], scores, low).reshape(batch, kv_heads, rows, block)
        top = jnp.maximum(highest, scores.max(-1))
        weight = jnp.exp(scores - top[..., None])
        scale = jnp.exp(highest - top)
        total = total * scale + weight.sum(-1)
        new = jnp.einsum(
            "bkrs,bksd->bkrd", weight.astype(value.dtype), value, preferred_element_type=jnp.float32
        )
        return index + 1, top, total, out * scale[..., None] + new

    start = (
        jnp.zeros([], jnp.int32),
        jnp.full([batch, kv_heads, rows], low, jnp.float32),
        jnp.zeros([batch, kv_heads, rows], jnp.float32),
        jnp.zeros([batch, kv_heads, rows, head_dim], jnp.float32),
    )
    _, _, total, out = jax.lax.while_loop(lambda carry: carry[0] * block < filled, step, start)
    return (out / total[..., None]).astype(values.dtype)


def attend_at_once(
    query: Array, keys: Array, values: Array, visible: Array, filled: Array
) -> Array:
    """``attend``, all slots at a time: scores of ``[B, K, G*T, S]``."""
    del filled
    batch, kv_heads, rows, _ = query.shape
    length, capacity = visible.shape[1:]
    scores = jnp.einsum("bkrd,bksd->bkrs", query, keys, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, kv_heads, rows // length, length, capacity)
    scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weight = jax.nn.softmax(scores).reshape(batch, kv_heads, rows, capacity)
    out = jnp.einsum(
        "bkrs,bksd->bkrd", weight.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    return out.astype(values.dtype)


@attend.defjvp
def _attend_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    out: tuple[Array, Array] = jax.jvp(attend_at_once, primals, tangents)
    return out


def grouped(query: Array, kv_heads: int) -> Array:
    """``[B, T, H, D]`` as ``[B, K, G*T, D]``, the form ``attend`` takes (G = H/K)."""
    batch, length, heads, dim = query.shape
    query = query.reshape(batch, length, kv_heads, heads // kv_heads, dim)
    return query.transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, dim)


def ungrouped(out: Array, length: int) -> Array:
    """``[B, K, G*T, D]`` as ``[B, T, H, D]`` (T = ``length``)."""
    batch, kv_heads, rows, dim = out.shape
    out = out.reshape(batch, kv_heads, rows // length, length, dim).transpose(0, 3, 1, 2, 4)
    return out.reshape(batch, length, -1, dim)
