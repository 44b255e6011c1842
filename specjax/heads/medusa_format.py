"""Medusa heads in a file: the names and shapes of tensors, and config.json, in two layouts.

* "vllm": ``blocks.{head}.layers.{block}.weight`` and ``.bias``, ``lm_heads.{head}.weight``, and
  ``token_map`` (int64 [Vd], the target's ids) where the draft vocabulary is a part. A single
  ``lm_heads.0.weight`` under ``original_lm_head`` serves all heads.
* "original", of the Medusa repository: ``{head}.{block}.linear.weight`` and ``.bias``, and
  ``{head}.{num_blocks}.weight``, in ``medusa_lm_head.safetensors``.

Matrices are ``[out, in]``. ``medusa_config`` in config.json says what the layouts have no words
for: the projection and the tree. In "target" no output matrix is kept, and who reads the file must
take the target's rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from specjax.heads.medusa import MedusaConfig, block_name, projection_names

VLLM, ORIGINAL = "vllm", "original"
LAYOUTS = (VLLM, ORIGINAL)
FILES = {VLLM: "model.safetensors", ORIGINAL: "medusa_lm_head.safetensors"}
_EXTRA = "medusa_config"
_MAP = "token_map"

Tensors = Mapping[str, np.ndarray]


def layout_of(about: Mapping[str, Any]) -> str | None:
    """The layout that a config.json speaks of; None: it isn't one of Medusa heads."""
    if "medusa_num_heads" in about:
        return ORIGINAL
    is_vllm = about.get("model_type") == "medusa" or about.get("architectures") == ["MedusaModel"]
    return VLLM if is_vllm else None


def config_json(config: MedusaConfig, vocab_size: int, layout: str) -> dict[str, Any]:
    """What config.json holds."""
    extra = {"projection": config.projection, "tree": config.tree}
    sizes = {
        "hidden_size": config.target_width,
        "vocab_size": vocab_size,
        "truncated_vocab_size": config.draft_vocab_size,
    }
    if layout == ORIGINAL:
        counts = {"medusa_num_heads": config.num_heads, "medusa_num_layers": config.num_blocks}
        return {**counts, **sizes, _EXTRA: extra}
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": config.num_heads,
        "num_hidden_layers": config.num_blocks,
        **sizes,
        "medusa_fc_bias": True,
        "original_lm_head": config.projection != "own",
        "torch_dtype": "bfloat16",
        _EXTRA: extra,
    }


def read_config(about: Mapping[str, Any], tensors: Tensors) -> tuple[MedusaConfig, int]:
    """The heads that a folder holds, and V, the target's vocabulary.

    What published folders don't say is read off the tensors: those in the original layout name no
    sizes, and some name fewer heads than the file holds.
    """
    layout = layout_of(about)
    blocks = about.get("num_hidden_layers") or about.get("medusa_num_layers") or 1
    heads = about.get("num_heads") or about.get("medusa_num_heads") or 1
    extra = about.get(_EXTRA)
    if layout == ORIGINAL and extra is None:
        numbers = [int(name.split(".")[0]) for name in tensors if name.split(".")[0].isdigit()]
        heads = max(numbers, default=heads - 1) + 1
    first = tensors.get(_weight(layout, 0, 0))
    width = about.get("hidden_size") or (0 if first is None else first.shape[0])
    last = tensors.get(_projection(layout, 0, blocks))
    vocab = about.get("vocab_size") or (0 if last is None else last.shape[0])
    if not width or not vocab:
        raise ValueError("config.json has no hidden_size or no vocab_size, and no tensor shows it")
    extra = extra or {"projection": _published(about, layout, tensors, blocks)}
    config = MedusaConfig(
        target_width=width,
        num_heads=heads,
        num_blocks=blocks,
        draft_vocab_size=about.get("truncated_vocab_size") or vocab,
        projection=extra["projection"],
        tree=tuple(tuple(path) for path in extra.get("tree", ())),
    )
    return config, vocab


def maps(ids: NDArray, vocab_size: int) -> dict[str, np.ndarray]:
    """The tensor that says which tokens the draft vocabulary is, where it isn't the whole one."""
    return {} if len(ids) == vocab_size else {_MAP: ids.astype(np.int64)}


def ids_of(path: str, token_map: np.ndarray | None, config: MedusaConfig, vocab: int) -> NDArray:
    """The draft vocabulary as the file orders it, int32 ``[Vd]``.

    Raises:
      ValueError: a map that isn't one.
    """
    if token_map is None:
        if config.draft_vocab_size != vocab:
            raise ValueError(
                f"{path} has no tensor {_MAP}, and config.json cuts the vocabulary of {vocab} to "
                f"{config.draft_vocab_size}"
            )
        return np.arange(vocab, dtype=np.int32)
    ids = token_map.astype(np.int32)
    whole = ids.shape == (config.draft_vocab_size,) and len(np.unique(ids)) == len(ids)
    if not whole or ids.min() < 0 or ids.max() >= vocab:
        raise ValueError(
            f"{path}: {_MAP} has shape {ids.shape}; it must give {config.draft_vocab_size} "
            f"different ids of the target's {vocab}"
        )
    return ids


def cut(
    config: MedusaConfig, tensors: Tensors, ids: NDArray, vocab: int, layout: str
) -> dict[str, np.ndarray]:
    """The tensors, with output matrices of the whole vocabulary cut to the ids, as vLLM does."""
    out = dict(tensors)
    for head in range(len(projection_names(config))):
        name = _projection(layout, head, config.num_blocks)
        if name in out and out[name].shape[:1] == (vocab,):
            out[name] = out[name][ids]
    return out


def shapes(config: MedusaConfig, layout: str, has_bias: bool = True) -> dict[str, tuple[int, ...]]:
    """Every tensor of a file but the map, and its shape there."""
    size = {".weight": (config.target_width,) * 2, ".bias": (config.target_width,)}
    out = {
        _weight(layout, head, block).replace(".weight", kind): shape
        for head in range(config.num_heads)
        for block in range(config.num_blocks)
        for kind, shape in size.items()
        if has_bias or kind == ".weight"
    }
    matrix = config.draft_vocab_size, config.target_width
    heads = range(len(projection_names(config)))
    return out | {_projection(layout, head, config.num_blocks): matrix for head in heads}


def has_bias(about: Mapping[str, Any]) -> bool:
    """Whether blocks have biases: always in the original layout, where it is said in vLLM's."""
    return layout_of(about) == ORIGINAL or bool(about.get("medusa_fc_bias", False))


def to_file(config: MedusaConfig, heads: Mapping[str, Any], layout: str) -> dict[str, np.ndarray]:
    """Parameters as tensors of a file."""
    return {
        theirs: np.asarray(heads[ours]).T for ours, theirs in _names(config, layout).items()
    }  # a vector is its own transpose


def from_file(config: MedusaConfig, tensors: Tensors, ids: NDArray, layout: str) -> dict[str, Any]:
    """Tensors of a file as parameters, the draft vocabulary in ascending order."""
    order = np.argsort(ids)
    out: dict[str, np.ndarray] = {}
    for ours, theirs in _names(config, layout).items():
        if theirs not in tensors:  # a file without biases
            out[ours] = np.zeros(config.target_width, np.float32)
        elif ours.startswith("projection"):
            out[ours] = tensors[theirs][order].T
        else:
            out[ours] = tensors[theirs].T
    return {name: jnp.asarray(value) for name, value in out.items()}


def _names(config: MedusaConfig, layout: str) -> dict[str, str]:
    """Names: ours, theirs."""
    out: dict[str, str] = {}
    for head in range(config.num_heads):
        for block in range(config.num_blocks):
            ours, theirs = block_name(head, block), _weight(layout, head, block)
            out |= {ours: theirs, f"{ours}_bias": theirs.replace(".weight", ".bias")}
    for head, name in enumerate(projection_names(config)):
        out[name] = _projection(layout, head, config.num_blocks)
    return out


def _weight(layout: str | None, head: int, block: int) -> str:
    if layout == ORIGINAL:
        return f"{head}.{block}.linear.weight"
    return f"blocks.{head}.layers.{block}.weight"


def _projection(layout: str | None, head: int, blocks: int) -> str:
    return f"{head}.{blocks}.weight" if layout == ORIGINAL else f"lm_heads.{head}.weight"


def _published(about: Mapping[str, Any], layout: str | None, tensors: Tensors, blocks: int) -> str:
    """Whose output matrices a folder has that doesn't say so itself."""
    if layout == ORIGINAL:  # the oldest heads came without: the target's own served them
        return "own" if _projection(layout, 0, blocks) in tensors else "target"
    return "shared" if about.get("original_lm_head") else "own"
