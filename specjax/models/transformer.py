"""One decoder for the Llama family, its cache an explicit argument and result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax import cache as kv
from specjax.cache import KVCache
from specjax.factory import factory
from specjax.models import attention, rope
from specjax.models.config import ModelConfig
from specjax.models.linear import linear
from specjax.target import Target

Params = Any

_matrix = nn.initializers.normal(0.02)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Root-mean-square norm over the last axis, computed in float32 (arXiv:1910.07467)."""
    x = x.astype(jnp.float32)
    x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * weight.astype(jnp.float32)


class Block(nn.Module):
    """Attention and gated feed-forward, each on the normed residual stream.

    Weights are ``[in, out]``. Query, key and value projections are one matrix, so are gate and up:
    fewer and larger matmuls.
    """

    config: ModelConfig
    rotates: bool

    @nn.compact
    def __call__(
        self, x: Array, keys: Array, values: Array, step: _Step
    ) -> tuple[Array, Array, Array]:
        """Runs the block and writes its keys and values.

        Args:
          x: ``[B, T, W]``, the residual stream.
          keys: ``[B, K, S, D]``.
          values: ``[B, K, S, D]``.
          step: what all blocks of one pass share.

        Returns:
          The new residual stream and both buffers with the T new entries written.
        """
        c = self.config
        batch, length, width = x.shape
        heads, kv_heads, dim = c.num_heads, c.num_kv_heads, c.head_dim
        out_width = (heads + 2 * kv_heads) * dim

        def weight(name: str, *shape: int) -> Array:
            init = _matrix if len(shape) > 1 else nn.initializers.ones
            return self.param(name, init, shape, jnp.float32)

        def bias(name: str, size: int) -> Array:
            return self.param(name, nn.initializers.zeros, (size,), jnp.float32)

        def product(h: Array, name: str, *shape: int) -> Array:
            w = weight(name, *shape)
            panels: Array | None = self.get_variable("params", f"{name}_panels")
            return linear(h.astype(w.dtype), w, panels)

        h = rms_norm(x, weight("attention_norm", width), c.norm_eps)
        h = product(h, "qkv", width, out_width)
        if c.qkv_bias:
            h = h + bias("qkv_bias", out_width)
        h = h.reshape(batch, length, heads + 2 * kv_heads, dim)
        q, k, v = jnp.split(h, [heads, heads + kv_heads], axis=2)
        q, k = q.astype(jnp.float32), k.astype(jnp.float32)
        if c.qk_norm:
            q = rms_norm(q, weight("q_norm", dim), c.norm_eps)
            k = rms_norm(k, weight("k_norm", dim), c.norm_eps)
        if self.rotates:
            q, k = rope.rotate(q, step.cos, step.sin), rope.rotate(k, step.cos, step.sin)
        keys = kv.write(keys, k.swapaxes(1, 2), step.start)
        values = kv.write(values, v.swapaxes(1, 2), step.start)

        q = attention.grouped(q * dim**-0.5, kv_heads).astype(keys.dtype)
        h = attention.attend(q, keys, values, step.visible, step.filled)
        h = attention.ungrouped(h, length).reshape(batch, length, heads * dim)
        h = product(h, "out", heads * dim, width)
        if c.out_bias:
            h = h + bias("out_bias", width)
        x = x + h

        h = rms_norm(x, weight("mlp_norm", width), c.norm_eps)
        h = product(h, "gate_up", width, 2 * c.ffn_width)
        if c.mlp_bias:
            h = h + bias("gate_up_bias", 2 * c.ffn_width)
        gate, up = jnp.split(h, 2, axis=-1)
        h = product(nn.silu(gate) * up, "down", c.ffn_width, width)
        if c.mlp_bias:
            h = h + bias("down_bias", width)
        return x + h, keys, values


def _once(compute: Callable[[], Any], positive: Array) -> Any:
    """``compute()``, once: XLA would repeat it in every fusion that uses it, twice a layer.

    Nothing is fused into or out of a loop; XLA can't tell that this one takes a single trip. (An
    optimization barrier is gone by the time the CPU compiler fuses.) Worth about 1 ms
    of a pass over 16 tokens of a model of 30 layers (measured on a busy machine).

    Args:
      compute: of arrays outside.
      positive: int32 ``[]``, at least 1, of unknown value.
    """
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute))
    trips = jnp.minimum(positive, 1)

    def body(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        return carry[0] + 1, compute()

    return jax.lax.while_loop(lambda carry: carry[0] < trips, body, (jnp.int32(0), empty))[1]


class _Step(NamedTuple):
    """What all blocks of one pass share: where it writes, what it sees, how it rotates."""

    start: Array
    filled: Array
    cos: Array
    sin: Array
    visible: Array


def _step(
    config: ModelConfig, cache: KVCache, length: int, positions: Array | None, mask: Array | None
) -> _Step:
    start = cache.length
    if positions is None:
        positions = start[:, None] + jnp.arange(length, dtype=jnp.int32)
    freq = rope.frequencies(config.rope, config.head_dim)
    filled = jnp.minimum(jnp.max(start) + length, cache.capacity)
    cos, sin = _once(lambda: rope.cos_sin(positions, freq), filled)
    visible = attention.visible_slots(start, mask, length, cache.capacity)
    return _Step(start, filled, cos, sin, visible)


# Equal blocks are traced once: a third of the time from a start to a first token was tracing.
_TracedOnce = nn.jit(Block)


class Transformer(nn.Module):
    """The decoder; see ``specjax.target.Target.apply`` for the meaning of the arguments."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        tokens: Array,
        cache: KVCache,
        positions: Array | None = None,
        mask: Array | None = None,
        layers: tuple[int, ...] = (),
    ) -> tuple[Array, Array | None, KVCache]:
        """Appends T tokens a row and returns logits, features and the cache.

        Args:
          tokens: int32 ``[B, T]``. An id outside the vocabulary embeds as zeros (finite, so that a
            junk draft token can't poison the scratch slots it is written to).
          cache: the cache; its rows may have different lengths.
          positions: int32 ``[B, T]``, slot numbers by default.
          mask: bool ``[B, T, T]``, causal by default.
          layers: features to return.

        Returns:
          float32 logits ``[B, T, V]``, features ``[B, T, len(layers) * W]`` or None, and the cache
          with ``length`` moved on by T.
        """
        c = self.config
        check_layers(layers, c.num_layers)
        embed = self.param("embed", _matrix, (c.vocab_size, c.width), jnp.float32)
        step = _step(c, cache, tokens.shape[1], positions, mask)
        x = embed_tokens({"embed": embed}, tokens)
        streams, keys, values = [x], [], []
        for layer in range(c.num_layers):
            block = _TracedOnce(c, c.rotates(layer), name=f"block_{layer}")
            x, key, value = block(x, cache.keys[layer], cache.values[layer], step)
            streams.append(x)
            keys.append(key)
            values.append(value)
        norm = self.param("norm", nn.initializers.ones, (c.width,), jnp.float32)
        x = rms_norm(x, norm, c.norm_eps).astype(embed.dtype)
        streams.append(x)  # streams[-1] is the final normed one, streams[L] the one before
        panels: Array | None = self.get_variable("params", "head_panels")
        if c.tied:
            logits = linear(x, embed, panels, transposed=True, out_dtype=jnp.float32)
        else:
            head = self.param("head", _matrix, (c.width, c.num_logits), jnp.float32)
            logits = linear(x, head, panels, out_dtype=jnp.float32)
        features = jnp.concatenate([streams[i] for i in layers], axis=-1) if layers else None
        length = cache.length + jnp.int32(tokens.shape[1])
        return logits, features, KVCache(tuple(keys), tuple(values), length)


def embed_tokens(params: Params, tokens: Array) -> Array:
    """``[B, T, W]``, rows of the embedding; zeros for an id outside the vocabulary."""
    table: Array = params["embed"]
    return table.at[tokens].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def output_rows(params: Params, ids: Array) -> Array:
    """``[W, len(ids)]``, columns of the output matrix, tied or not."""
    if "head" in params:
        return params["head"][:, ids]
    return params["embed"][ids].T


def output_matrix(params: Params) -> Array:
    """``[W, V]``, tied or not: what the last norm's output is multiplied by."""
    return params["head"] if "head" in params else params["embed"].T


def check_layers(layers: tuple[int, ...], num_layers: int) -> None:
    """Raises ValueError unless every entry names a residual stream (0..L, or -1)."""
    bad = [i for i in layers if not -1 <= i <= num_layers]
    if bad:
        raise ValueError(
            f"layers={tuple(layers)!r} holds {bad}; allowed: 0..{num_layers} (entering block i;"
            f" {num_layers} is after the last) and -1 (after the final norm)."
        )


@factory
def transformer_target(config: ModelConfig) -> Target:
    """The target of a configuration; equal configurations give the same object.

    Args:
      config: what the model is made of.

    Returns:
      A ``Target`` whose ``apply`` takes the parameter pytree of ``loading.load`` or of
      ``init_params``.
    """
    model = Transformer(config)

    def init_cache(batch: int, capacity: int, dtype: jax.typing.DTypeLike = jnp.float32) -> KVCache:
        return kv.init(
            layers=config.num_layers,
            batch=batch,
            kv_heads=config.num_kv_heads,
            capacity=capacity,
            head_dim=config.head_dim,
            dtype=dtype,
        )

    def apply(
        params: Params,
        tokens: Array,
        cache: KVCache,
        *,
        positions: Array | None = None,
        mask: Array | None = None,
        layers: tuple[int, ...] = (),
    ) -> tuple[Array, Array | None, KVCache]:
        arguments: Any = tokens, cache, positions, mask, tuple(layers)
        out: Any = model.apply({"params": params}, *arguments)
        return out

    return Target(
        init_cache=init_cache,
        apply=apply,
        rollback=kv.rollback,
        keep=kv.keep,
        vocab_size=config.num_logits,
        name=config.family,
    )


def init_params(
    config: ModelConfig, key: Array, dtype: jax.typing.DTypeLike = jnp.float32
) -> Params:
    """Random parameters: for tests and for training from nothing."""
    cache = transformer_target(config).init_cache(1, 1)
    params = Transformer(config).init(key, jnp.zeros([1, 1], jnp.int32), cache)["params"]
    return jax.tree.map(lambda x: x.astype(dtype), params)
