"""Prefill: the prompt, all but its last token, goes through the model in chunks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.target import Cache, Target


def prefill(
    target: Target,
    params: Any,
    tokens: Array,
    length: Array,
    cache: Cache,
    *,
    chunk: int,
    layers: tuple[int, ...] = (),
) -> tuple[Cache, Array | None]:
    """Fills an empty cache with ``tokens[b, :length[b] - 1]``.

    One compiled program serves every prompt that fits the buffer: the number of chunks is dynamic.
    The logits are never used, so XLA never computes them.

    Args:
      target: the model.
      params: its parameters.
      tokens: int32 ``[B, S]``.
      length: int32 ``[B]``, at least 1.
      cache: an empty cache.
      chunk: tokens a pass takes, static.
      layers: features to collect.

    Returns:
      The cache, holding ``length[b] - 1`` entries, and features ``[B, S, F]`` (zeros past them) or
      None.
    """
    filled = length - 1
    offsets = jnp.arange(chunk, dtype=jnp.int32)

    def run(start: Array, cache: Cache) -> tuple[Array | None, Cache]:
        piece = jnp.take(tokens, start + offsets, axis=1, mode="fill", fill_value=0)
        _, features, cache = target.apply(params, piece, cache, layers=layers)
        # Shorter rows already hold all they need: what was appended to them is forgotten.
        return features, target.rollback(cache, jnp.minimum(filled, start + chunk))

    def body(carry: tuple) -> tuple:
        start, cache, collected = carry
        features, cache = run(start, cache)
        if features is not None:
            live = (start + offsets < filled[:, None])[:, :, None]
            features = jnp.where(live, features, 0)
            collected = collected.at[:, start + offsets].set(features, mode="drop")
        return start + chunk, cache, collected

    collected = None
    if layers:
        shape = jax.eval_shape(lambda cache: run(jnp.zeros([], jnp.int32), cache)[0], cache)
        collected = jnp.zeros((*tokens.shape, shape.shape[-1]), shape.dtype)
    carry = jnp.zeros([], jnp.int32), cache, collected
    _, cache, collected = lax.while_loop(lambda carry: carry[0] < jnp.max(filled), body, carry)
    return cache, collected
