"""EAGLE heads in a file, in the tensor layout of the EAGLE-3 repository, SpecForge and SGLang.

The file holds ``fc.weight``, ``midlayer.*``, ``norm.weight``, ``lm_head.weight``, ``d2t`` (target
id less draft id, int64 [Vd]) and ``t2d`` (bool [V]), matrices as ``[out, in]``; config.json is a
Llama configuration with ``draft_vocab_size`` and ``eagle_config``. Numbers of streams are
converted: ``eagle_aux_hidden_state_layer_ids`` names layers by what they put *out*, so the stream
that enters block i is number i - 1 there (SGLang's convention; vLLM's is ours).

Version 1 heads are kept in the same form, under the names of the EAGLE repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from specjax.heads.eagle import EagleConfig
from specjax.models.config import read_rope
from specjax.models.saving import rope_json

FILE = "model.safetensors"
_FLAGS = ("norm_features", "norm_output", "norm_before_residual")


def _names(config: EagleConfig) -> dict[str, str]:
    """Names of what is stored as it is, or transposed: ours, theirs."""
    block = "midlayer" if config.version == 3 else "layers.0"
    names = {
        "fuse": "fc.weight",
        "out": f"{block}.self_attn.o_proj.weight",
        "mlp_norm": f"{block}.post_attention_layernorm.weight",
        "down": f"{block}.mlp.down_proj.weight",
    }
    if config.version == 3:
        names |= {
            "embed_norm": f"{block}.input_layernorm.weight",
            "hidden_norm": f"{block}.hidden_norm.weight",
            "output_norm": "norm.weight",
        }
    if config.own_head:
        names["head"] = "lm_head.weight"
    return names


def _joined(config: EagleConfig) -> dict[str, dict[str, int]]:
    """What is one matrix here and several there: ours, theirs and their output sizes."""
    block = "midlayer" if config.version == 3 else "layers.0"
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sizes = {"q": q, "k": kv, "v": kv}
    return {
        "qkv": {f"{block}.self_attn.{x}_proj.weight": size for x, size in sizes.items()},
        "gate_up": {f"{block}.mlp.{x}_proj.weight": config.ffn_width for x in ("gate", "up")},
    }


def shapes(config: EagleConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a file, and its shape there."""
    wide = config.target_width + config.width if config.version == 3 else config.width
    sizes = {
        "fuse": (config.width, config.feature_width if config.version == 3 else 2 * config.width),
        "out": (config.width, config.num_heads * config.head_dim),
        "down": (config.width, config.ffn_width),
        "head": (config.draft_vocab_size, config.width),
        "embed_norm": (config.target_width,),
    }
    shapes = {theirs: sizes.get(ours, (config.width,)) for ours, theirs in _names(config).items()}
    for ours, parts in _joined(config).items():
        inner = wide if ours == "qkv" else config.width
        shapes |= {theirs: (size, inner) for theirs, size in parts.items()}
    if config.norm_features:
        shapes |= {f"fc_norm.{i}.weight": (config.target_width,) for i in range(len(config.layers))}
    return shapes


def to_file(config: EagleConfig, head: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Parameters as tensors of a file."""
    out = {theirs: np.asarray(head[ours]).T for ours, theirs in _names(config).items()}
    for ours, parts in _joined(config).items():
        ends = np.cumsum(list(parts.values()))[:-1]
        pieces = np.split(np.asarray(head[ours]).T, ends)
        out |= dict(zip(parts, pieces, strict=True))
    if config.norm_features:
        pieces = np.split(np.asarray(head["feature_norm"]), len(config.layers))
        out |= {f"fc_norm.{i}.weight": piece for i, piece in enumerate(pieces)}
    return out


def from_file(config: EagleConfig, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Tensors of a file as parameters."""
    head = {ours: tensors[theirs].T for ours, theirs in _names(config).items()}
    for ours, parts in _joined(config).items():
        head[ours] = np.concatenate([tensors[name] for name in parts]).T
    if config.norm_features:
        count = range(len(config.layers))
        head["feature_norm"] = np.concatenate([tensors[f"fc_norm.{i}.weight"] for i in count])
    return {name: jnp.asarray(value) for name, value in head.items()}


def maps(ids: NDArray[np.int32], vocab_size: int) -> dict[str, np.ndarray]:
    """The tensors that say which tokens of the target the draft vocabulary is."""
    return {
        "d2t": ids.astype(np.int64) - np.arange(len(ids)),
        "t2d": np.isin(np.arange(vocab_size), ids),
    }


def ids_of(
    path: str,
    d2t: np.ndarray | None,
    t2d: np.ndarray | None,
    config: EagleConfig,
    vocab_size: int | None,
) -> NDArray[np.int32]:
    """The draft vocabulary; SGLang and vLLM read d2t alone, so t2d must agree with it.

    Args:
      path: of the file.
      d2t: its tensor of that name, or None.
      t2d: likewise.
      config: the head's.
      vocab_size: V, the target's; None where config.json doesn't say.

    Raises:
      ValueError: no map of a vocabulary that is cut, or one that isn't one.
    """
    size = config.draft_vocab_size
    if d2t is None:
        if vocab_size not in (None, size):
            raise ValueError(
                f"{path} has no tensor d2t, and config.json cuts the vocabulary of {vocab_size} to "
                f"{size}; get the file again, or the config.json that belongs to it"
            )
        ids = np.arange(size, dtype=np.int32)
    else:
        ids = (d2t + np.arange(len(d2t))).astype(np.int32)
        whole = len(ids) == size and np.all(np.diff(ids) > 0) and ids[0] >= 0
        if not whole or (vocab_size is not None and ids[-1] >= vocab_size):
            of = "" if vocab_size is None else f"'s {vocab_size}"
            raise ValueError(
                f"{path}: d2t has {len(ids)} entries; it must give {size} ascending ids of the "
                f"target{of}"
            )
    if t2d is not None and not np.array_equal(np.flatnonzero(t2d), ids):
        raise ValueError(f"{path}: t2d and d2t name different tokens")
    return ids


def config_json(config: EagleConfig, vocab_size: int) -> dict[str, Any]:
    """What config.json holds."""
    return {
        "architectures": ["LlamaForCausalLMEagle3" if config.version == 3 else "LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.width,
        "target_hidden_size": config.target_width,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        **rope_json(config.rope),
        "vocab_size": vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {
            "version": config.version,
            "own_head": config.own_head,
            # Theirs count layers by what they put out.
            "eagle_aux_hidden_state_layer_ids": [i - 1 if i > 0 else i for i in config.layers],
            **{flag: getattr(config, flag) for flag in _FLAGS},
        },
    }


def read_config(config: Mapping[str, Any]) -> EagleConfig:
    """The head that a config.json speaks of.

    Raises:
      ValueError: a field that is missing or can't be; names it.
    """
    inner = config.get("eagle_config") or {}
    layers = _layers(inner)
    heads, width = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    version = inner.get("version", 3)
    vocabulary = "vocab_size" if config.get("draft_vocab_size") is None else "draft_vocab_size"
    return EagleConfig(
        version=version,
        target_width=_size(config, "target_hidden_size", width),
        layers=tuple(i + 1 if i >= 0 else i for i in layers),
        draft_vocab_size=_size(config, vocabulary),
        width=width,
        num_heads=heads,
        num_kv_heads=_size(config, "num_key_value_heads", heads),
        head_dim=_size(config, "head_dim", width // heads),
        ffn_width=_size(config, "intermediate_size"),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=read_rope(config, "llama"),
        own_head=inner.get("own_head", version == 3),
        **{flag: bool(inner.get(flag, False)) for flag in _FLAGS},
    )


def _layers(inner: Any) -> list[int]:
    """The numbers of the layers in ``eagle_config``, as they are there."""
    name = "eagle_aux_hidden_state_layer_ids"
    layers = inner.get(name) if isinstance(inner, Mapping) else None
    if not isinstance(layers, list) or not layers or any(type(i) is not int for i in layers):
        raise ValueError(
            f"config.json: eagle_config.{name}={layers!r}; it must be a list of the target's "
            "layers that the head reads"
        )
    return layers


def _size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A field that holds a size; null is as good as absent."""
    value = default if config.get(name) is None else config[name]
    if type(value) is not int or value < 1:
        raise ValueError(f"config.json: {name}={value!r}; it must be an integer of at least 1")
    return value
