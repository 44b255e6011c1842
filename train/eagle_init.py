"""Where an EAGLE head starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.heads.eagle import EagleConfig, EagleHead
from specjax.models import ModelConfig
from train.eagle_settings import TARGET
from train.material import say

_COPIED = ("out", "mlp_norm", "gate_up", "down")


def new(
    start: str, config: EagleConfig, model: ModelConfig, params: Any, rows: Array, key: Array
) -> Any:
    """The parameters of a new head, float32.

    Args:
      start: one of ``EagleSettings.STARTS``.
      config: the head's.
      model: the target's configuration.
      params: the target's parameters.
      rows: ``[Wt, Vd]``, its output matrix at the draft vocabulary.
      key: of the random parts.

    Raises:
      ValueError: see ``check_target``.
    """
    head = random(config, key)
    return from_target(config, model, params, rows, head) if start == TARGET else head


def random(config: EagleConfig, key: Array) -> Any:
    """Normal matrices of deviation 0.02; norms of 1."""
    one = jnp.zeros([1, 1, config.feature_width], jnp.float32)
    embedded = jnp.zeros([1, 1, config.target_width], jnp.float32)
    angle = jnp.zeros([1, 1, config.head_dim // 2], jnp.float32)
    group = config.num_heads // config.num_kv_heads

    def attend(q: Array, k: Array, v: Array) -> Array:
        del q, k
        return jnp.repeat(v, group, 2)

    model = EagleHead(config)
    return dict(model.init(key, one, embedded, angle, angle, attend)["params"])


def check_target(config: EagleConfig, model: ModelConfig) -> None:
    """Checks that a head can start as the target's last block.

    Raises:
      ValueError: it is of other sizes; names them.
    """
    if config.width != model.width or config.ffn_width != model.ffn_width:
        raise ValueError(
            f"config.start='target' copies the target's last block, of width {model.width} and "
            f"ffn_width {model.ffn_width}; the head has {config.width} and {config.ffn_width}: "
            "take config.ffn_width=0 (the target's), or config.start='random'"
        )


def from_target(
    config: EagleConfig, model: ModelConfig, params: Any, rows: Array, head: Any
) -> Any:
    """The target's last block, final norm and output rows, so that the head speaks its language.

    The fused hidden state starts as the last of the streams, and the embedding's half of the
    attention's input as small random numbers. Prints what of the block the head has no place for.

    Args:
      config: the head's.
      model: the target's configuration.
      params: the target's parameters.
      rows: ``[Wt, Vd]``.
      head: random parameters, which are kept where the target has nothing to give.

    Raises:
      ValueError: see ``check_target``.
    """
    check_target(config, model)
    head, width = dict(head), config.width
    last = params[f"block_{model.num_layers - 1}"]
    _tell_left_out(config, model, last)
    for name in _COPIED:
        head[name] = last[name]
    if config.version == 1:
        head["qkv"] = last["qkv"]
        head["fuse"] = head["fuse"].at[width:].add(jnp.eye(width))
    else:
        head["qkv"] = head["qkv"].at[config.target_width :].set(last["qkv"])
        head["hidden_norm"] = last["attention_norm"]
        head["output_norm"] = params["norm"]
        head["fuse"] = head["fuse"].at[-width:].add(jnp.eye(width))
    if config.own_head:
        head["head"] = rows
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), head)


def _tell_left_out(config: EagleConfig, model: ModelConfig, last: Mapping[str, Any]) -> None:
    taken = {*_COPIED, "qkv"} | ({"attention_norm"} if config.version == 3 else set())
    left_out = sorted(last.keys() - taken)
    if not model.rotates(model.num_layers - 1):
        left_out.append("attention without positions")
    if left_out:
        say(
            f"config.start='target': the head starts from the target's last block without its "
            f"{', '.join(left_out)}, which an EAGLE-{config.version} head doesn't have"
        )
