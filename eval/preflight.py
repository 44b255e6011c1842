"""Whether the models fit, before any weight is read; whether passes wait for memory."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp

from eval import chat as chats
from eval.chat import Chat
from eval.models import HEADS
from eval.settings import Settings
from specjax import device
from specjax.heads import formats
from specjax.models import ModelConfig, loading, students, transformer_target

# A pass that takes this many times its floor waits for something else than memory.
LAUNCH_BOUND = 3.0


def table(settings: Settings, slots: int, memory: int | None = None) -> str:
    """Memory the run needs, from the models' config.json files alone.

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
        draft = _config(settings.draft) if settings.draft else target
        weights = _draft_bytes(settings.draft, draft, dtype) if settings.draft else 0
        items["draft weights" if weights else "draft weights (the target's)"] = weights
        items["draft KV cache"] = _cache_bytes(draft, slots, dtype)
    for name, head in heads.items():
        if name in settings.drafting:
            items[f"head ({name})"] = _head_bytes(name, head.folder, dtype)
    return device.preflight(items, memory)


def _config(name: str) -> ModelConfig:
    """A model's configuration; of one on the hub nothing else is downloaded yet."""
    return loading.read_config(chats.find(name, files=("config.json",)))


def _weight_bytes(config: ModelConfig, dtype: jnp.dtype) -> int:
    copies = 2 if loading.wants_panels(config, dtype) else 1
    return copies * config.num_parameters * dtype.itemsize


def _draft_bytes(name: str, config: ModelConfig, dtype: jnp.dtype) -> int:
    """A draft model's weights; of a distilled one what it does not share with the target."""
    if not students.is_student(name):
        return _weight_bytes(config, dtype)
    return _file_bytes(pathlib.Path(name) / "model.safetensors", dtype)


def _head_bytes(name: str, folder: str, dtype: jnp.dtype) -> int:
    try:
        return _file_bytes(formats.weights_file(folder), dtype)
    except ValueError as error:
        raise ValueError(f"config.{name}.folder={folder!r} holds no head: {error}") from error


def _file_bytes(file: pathlib.Path, dtype: jnp.dtype) -> int:
    """Weights that a file holds in two bytes each; panels as for small models."""
    copies = 2 if jax.default_backend() == "cpu" else 1
    return copies * file.stat().st_size * dtype.itemsize // 2


def _cache_bytes(config: ModelConfig, slots: int, dtype: jnp.dtype) -> int:
    init = transformer_target(config).init_cache
    cache = jax.eval_shape(lambda: init(1, slots, dtype))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))


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
