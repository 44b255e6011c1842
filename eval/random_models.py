"""A target and a head of random weights: what timing needs where nothing is to be downloaded.

They cost what the real ones cost, and say nothing of use: for ``eval.synthetic`` acceptance.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax import Array
from jax.typing import DTypeLike

from eval.chat import Chat
from eval.models import Head
from specjax.heads import EagleConfig
from specjax.models import ModelConfig, init_params, loading, transformer_target, weights
from specjax.models.linear import EMBED, panels_for, to_panels
from train import eagle_init

_DEVIATION = 0.02


def target(name: str, config: ModelConfig, dtype: DTypeLike, seed: int) -> Chat:
    """A model of this shape, without a tokenizer.

    Args:
      name: what messages call it.
      config: the shape.
      dtype: of the weights.
      seed: of the weights.
    """
    key = jax.random.key(seed)
    shapes = jax.eval_shape(partial(init_params, config), key)
    params = _filled(shapes, dtype, key)
    if loading.wants_panels(config, dtype):
        params = _with_panels(params, config)
    return Chat(name, transformer_target(config), params, config, None, ())


def head(config: ModelConfig, dtype: DTypeLike, seed: int) -> Head:
    """An EAGLE-3 head of the target's shape, with a matrix for a quarter of the vocabulary.

    That is the share that published heads for Llama 3 draft from.
    """
    own = head_config(config)
    weights = _filled(head_shapes(own), dtype, jax.random.key(seed + 1))
    return Head(own, weights, np.arange(own.draft_vocab_size, dtype=np.int32))


def head_config(config: ModelConfig) -> EagleConfig:
    """What that head is made of."""
    layers = config.num_layers
    return EagleConfig(
        version=3,
        target_width=config.width,
        layers=(min(2, layers), max(1, layers // 2), max(1, layers - 3)),
        draft_vocab_size=-(-config.vocab_size // 4),
        width=config.width,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        ffn_width=config.ffn_width,
        norm_eps=config.norm_eps,
        rope=config.rope,
    )


def head_shapes(config: EagleConfig) -> Any:
    """The shapes of a head's parameters."""
    return jax.eval_shape(partial(eagle_init.random, config), jax.random.key(0))


def _filled(shapes: Any, dtype: DTypeLike, key: Array) -> Any:
    """Normal matrices, and ones; made one by one in their dtype, for two copies may not fit."""
    leaves, structure = jax.tree.flatten(shapes)

    def fill(number: int, shape: tuple[int, ...]) -> Array:
        if len(shape) < 2:
            return jnp.ones(shape, dtype)
        return _normal(jax.random.fold_in(key, number), shape, jnp.dtype(dtype))

    return jax.tree.unflatten(structure, [fill(i, leaf.shape) for i, leaf in enumerate(leaves)])


@partial(jax.jit, static_argnums=(1, 2))
def _normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    return jnp.asarray(_DEVIATION, dtype) * jax.random.normal(key, shape, dtype)


def _with_panels(params: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """With the second form of the matrices, as ``loading`` keeps them for small models."""
    flat: dict[Any, Any] = traverse_util.flatten_dict(params)
    for path, place in panels_for(weights.columns(weights.plan(config))).items():
        flat[place] = to_panels(flat[path].T if path == EMBED else flat[path])
    return traverse_util.unflatten_dict(flat)
