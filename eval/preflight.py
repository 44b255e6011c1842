"""Whether the models fit, before any weight is read; whether passes wait for memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from eval import chat as chats
from eval.chat import Chat
from eval.models import HEADS, Head
from eval.settings import Settings
from specjax import device
from specjax.heads import (
    EagleConfig,
    EagleHead,
    MedusaHeads,
    eagle_format,
    formats,
    medusa_format,
)
from specjax.heads.formats import HeadConfig
from specjax.models import ModelConfig, loading, students, transformer_target

# A pass that takes this many times its floor waits for something else than memory.
LAUNCH_BOUND = 3.0


def table(settings: Settings, slots: int, memory: int | None = None) -> str:
    """Memory the run needs, from config.json files and the shapes in the heads' files alone.

    Args:
      settings: the run's.
      slots: of the buffers, roughly.
      memory: bytes there are; by default the device's.

    Returns:
      A table to print.

    Raises:
      ValueError: it does not fit, or there is no such model.
    """
    dtype = jnp.dtype(settings.dtype or device.default_dtype())
    target = _config(settings.target)
    heads = {name: getattr(settings, name) for name in HEADS}
    looked_up = settings.ngram, settings.short_lookup, settings.corpus, settings.suffix
    nodes = max(settings.k, *(one.k for one in (*looked_up, *heads.values())))
    items = {
        "target weights": _weight_bytes(target, dtype),
        "target KV cache": _cache_bytes(target, slots, dtype),
        # Logits and, when sampling, p and q of every node, in float32.
        "logits": 3 * 4 * (nodes + 1) * target.vocab_size,
    }
    if "draft_model" in settings.drafting:
        draft, weights = _draft(settings.draft, target, dtype)
        items["draft weights" if weights else "draft weights (the target's)"] = weights
        items["draft KV cache"] = _cache_bytes(draft, slots, dtype)
    for name, head in heads.items():
        if name in settings.drafting:
            items[f"head ({name})"] = _head_bytes(name, head.folder, target, dtype)
    return device.preflight(items, memory)


def _config(name: str) -> ModelConfig:
    """A model's configuration; of one on the hub nothing else is downloaded yet."""
    return loading.read_config(chats.find(name, files=("config.json",)))


def _weight_bytes(config: ModelConfig, dtype: jnp.dtype) -> int:
    copies = 2 if loading.wants_panels(config, dtype) else 1
    return copies * config.num_parameters * dtype.itemsize


def _draft(name: str, target: ModelConfig, dtype: jnp.dtype) -> tuple[ModelConfig, int]:
    """A draft model's configuration, and what it holds that isn't the target's; "": a copy."""
    if not name:
        return target, 0
    if not students.is_student(name):
        config = _config(name)
        return config, _weight_bytes(config, dtype)
    config = students.read_config(name)
    shared = {"embed"} if config.draft_vocab_size else {"embed", "head", "head_panels"}
    held = loading.shapes(config, dtype)
    own = {part: x for part, x in held.items() if part not in shared}
    return config, _bytes(own) + 4 * config.draft_vocab_size  # ids, int32


def _head_bytes(name: str, folder: str, target: ModelConfig, dtype: jnp.dtype) -> int:
    """What is held of a head: what its drafter is given, and float32 as it was read."""
    try:
        config = _head_config(folder)
    except ValueError as error:
        raise ValueError(f"config.{name}.folder={folder!r} holds no head: {error}") from error
    module = EagleHead(config) if isinstance(config, EagleConfig) else MedusaHeads(config)
    method = "fuse" if isinstance(config, EagleConfig) else "streams"  # no head needs more for init

    def held(key: Array, features: Array, ids: Array, target_params: Any) -> Any:
        read = module.init(key, features, method=method)["params"]
        given = Head(config, read, ids).params(target_params)
        return given if dtype == jnp.float32 else (read, given)

    features = jax.ShapeDtypeStruct((1, len(config.layers) * config.target_width), jnp.float32)
    ids = jax.ShapeDtypeStruct((config.draft_vocab_size,), jnp.int32)
    shapes = loading.shapes(target, dtype)
    return _bytes(jax.eval_shape(held, jax.random.key(0), features, ids, shapes))


def _head_config(folder: str) -> HeadConfig:
    """A head's configuration; of its file only the shapes are read."""
    file = formats.weights_file(folder)
    about = loading.read_json(file.parent / "config.json")
    if medusa_format.layout_of(about) is None:
        return eagle_format.read_config(about)
    return medusa_format.read_config(about, medusa_format.shapes_in(file))[0]


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _cache_bytes(config: ModelConfig, slots: int, dtype: jnp.dtype) -> int:
    init = transformer_target(config).init_cache
    return _bytes(jax.eval_shape(lambda: init(1, slots, dtype)))


def pass_floor(chat: Chat) -> float:
    """Least seconds of a pass: every weight is read once, at the bandwidth measured here."""
    config = chat.config
    # Of an embedding that is not also the head, a pass reads a row.
    unread = 0 if config.tied else config.vocab_size * config.width
    read = (config.num_parameters - unread) * jnp.dtype(chat.dtype).itemsize
    return read / device.memory_bandwidth()


def launch_bound(pass_s: float, floor_s: float) -> str | None:
    """A warning where passes wait for launches, not memory: there a wide pass costs nothing more.

    Args:
      pass_s: seconds of a one-token pass.
      floor_s: its floor.
    """
    if pass_s <= LAUNCH_BOUND * floor_s:
        return None
    return (
        f"launch-bound: speculation can't be judged here. A one-token pass takes "
        f"{1e3 * pass_s:.3g} ms, {pass_s / floor_s:.1f} times the {1e3 * floor_s:.3g} ms it takes "
        "to read its weights; take a larger model"
    )
