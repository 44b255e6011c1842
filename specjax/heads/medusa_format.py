"""Medusa heads in a file: the names and shapes of tensors, and config.json, in two layouts.

* "vllm": ``blocks.{head}.layers.{block}.weight`` and ``.bias``, ``lm_heads.{head}.weight``, and
  ``token_map`` (int64 [Vd], the target's ids) where the draft vocabulary is a part. A single
  ``lm_heads.0.weight``, or ``lm_head.weight``, under ``original_lm_head`` serves all heads.
* "original", of the Medusa repository: ``{head}.{block}.linear.weight`` and ``.bias``, and
  ``{head}.{num_blocks}.weight``, in ``medusa_lm_head.safetensors``.

Matrices are ``[out, in]``. ``medusa_config`` in config.json says what the layouts have no words
for: the projection and the tree. In "target" no output matrix is kept, and who reads the file must
take the target's rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
from numpy.typing import NDArray

from specjax.heads.medusa import MedusaConfig, Path, block_name, projection_names

VLLM, ORIGINAL = "vllm", "original"
LAYOUTS = (VLLM, ORIGINAL)
FILES = {VLLM: "model.safetensors", ORIGINAL: "medusa_lm_head.safetensors"}
_EXTRA = "medusa_config"
_MAP = "token_map"
_HEAD = "lm_head.weight"  # in vLLM's layout, of all heads
# Heads, blocks of a head. A config.json of the original layout may be the base model's own, with a
# num_hidden_layers that counts that one's blocks.
_COUNTS = {
    VLLM: ("num_heads", "num_hidden_layers"),
    ORIGINAL: ("medusa_num_heads", "medusa_num_layers"),
}

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

    Args:
      about: its config.json.
      tensors: those of its file, or ``shapes_in`` it.

    Raises:
      ValueError: a field that can't be; names it.
    """
    layout, extra = layout_of(about) or VLLM, _extra(about)
    if about.get("logit_scale") not in (None, 1):
        raise ValueError(
            f"config.json: logit_scale={about['logit_scale']!r}; it must be 1 or absent: multiply "
            "the output matrices by it instead"
        )
    heads, blocks = (_count(about, name, 1) for name in _COUNTS[layout])
    if layout == ORIGINAL and about.get(_EXTRA) is None:
        held = [int(name.split(".")[0]) + 1 for name in tensors if name.split(".")[0].isdigit()]
        heads = max(heads, *held) if held else heads  # never fewer: a file may be cut short
    width = _count(about, "hidden_size", _rows(tensors, _weight(layout, 0, 0)))
    vocab = _count(about, "vocab_size", _rows(tensors, _projection(layout, 0, blocks)))
    if not width or not vocab:
        raise ValueError("config.json has no hidden_size or no vocab_size, and no tensor shows it")
    published = _published(about, layout, tensors, blocks)
    config = MedusaConfig(
        target_width=width,
        num_heads=heads,
        num_blocks=blocks,
        draft_vocab_size=_count(about, "truncated_vocab_size", vocab),
        projection=extra.get("projection", published),
        tree=_tree(extra.get("tree")),
    )
    return config, vocab


def shapes_in(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """What stands for a file's tensors in ``read_config``: no weight is read, all hold zeros.

    Raises:
      ValueError: no whole safetensors file.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            sizes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error})") from error
    zero = np.zeros([], np.float32)
    return {n.removeprefix("medusa_heads."): np.broadcast_to(zero, x) for n, x in sizes.items()}


def _extra(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """What only our own folders say."""
    extra = about.get(_EXTRA)
    if not (extra is None or isinstance(extra, Mapping)):
        raise ValueError(f"config.json: {_EXTRA}={extra!r}; it must be an object, {{...}}")
    return extra or {}


def _count(about: Mapping[str, Any], name: str, default: int) -> int:
    """A field that counts something; null is as good as absent."""
    value = about.get(name)
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise ValueError(f"config.json: {name}={value!r}; it must be an integer of at least 1")
    return value


def _rows(tensors: Tensors, name: str) -> int:
    """Of a matrix; 0 where there is none."""
    return tensors[name].shape[0] if name in tensors and tensors[name].ndim else 0


def _tree(paths: Any) -> tuple[Path, ...]:
    """The rank paths of a JSON file, which are checked where the configuration is made."""
    paths = [] if paths is None else paths
    if not (isinstance(paths, list) and all(isinstance(path, list) for path in paths)):
        raise ValueError(
            f"config.json: {_EXTRA}.tree={paths!r}; it must be a list of rank paths, such as "
            "[[0], [0, 2]], or []"
        )
    return tuple(map(tuple, paths))


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
    """The tensors, with output matrices of the whole vocabulary cut to the ids, as vLLM does.

    It takes the matrix of all heads by either name, and so does this.
    """
    out = dict(tensors)
    shared = _projection(layout, 0, config.num_blocks)
    if layout == VLLM and config.projection == "shared" and shared not in out and _HEAD in out:
        out[shared] = out.pop(_HEAD)
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


def _weight(layout: str, head: int, block: int) -> str:
    if layout == ORIGINAL:
        return f"{head}.{block}.linear.weight"
    return f"blocks.{head}.layers.{block}.weight"


def _projection(layout: str, head: int, blocks: int) -> str:
    return f"{head}.{blocks}.weight" if layout == ORIGINAL else f"lm_heads.{head}.weight"


def _published(about: Mapping[str, Any], layout: str, tensors: Tensors, blocks: int) -> str:
    """Whose output matrices a folder has that doesn't say so itself."""
    if layout == ORIGINAL:  # the oldest heads came without: the target's own served them
        return "own" if _projection(layout, 0, blocks) in tensors else "target"
    return "shared" if about.get("original_lm_head") else "own"
