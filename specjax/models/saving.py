"""Models out: the configuration and the tensors of a Hugging Face folder, all of it or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from safetensors.numpy import save_file

from specjax.models import weights
from specjax.models.config import ModelConfig, RopeConfig
from specjax.models.weights import Entry

_BESIDE = ".model-"  # what is written is in a folder of this prefix, until it is whole
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}


def to_hf(config: ModelConfig, dtype: DTypeLike) -> dict[str, Any]:
    """A ``config.json`` that ``ModelConfig.from_hf`` and transformers read.

    Args:
      config: the model's; a draft vocabulary is no part of the file.
      dtype: of the weights beside it.

    Raises:
      ValueError: settings that the family has no words for.
    """
    out: dict[str, Any] = {
        "architectures": [_CLASSES[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.ffn_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        **rope_json(config.rope),
        "attention_bias": config.out_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tied,
        "max_position_embeddings": config.max_positions,
        "torch_dtype": np.dtype(dtype).name,
    }
    if config.rope_layers:
        out["no_rope_layers"] = [int(rotates) for rotates in config.rope_layers]
    if config.family == "mistral":
        out["sliding_window"] = None  # absent, it would be 4096
    if ModelConfig.from_hf(out) != dataclasses.replace(config, draft_vocab_size=0):
        raise ValueError(f"a {config.family} config.json has no words for {config}")
    return out


def rope_json(rope: RopeConfig) -> dict[str, Any]:
    """In the spelling that transformers 4 and 5 both read."""
    scaling: dict[str, Any] | None = None
    if rope.scaling != "default":
        scaling = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling == "llama3":
        scaling = {
            **(scaling or {}),
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_positions,
        }
    return {"rope_theta": rope.base, "rope_scaling": scaling}


def tensors_of(
    entries: Sequence[Entry], params: Mapping[str, Any], dtype: DTypeLike
) -> dict[str, np.ndarray]:
    """The tensors of a file, ``[out, in]``.

    Args:
      entries: what of the model goes into it (``weights.plan``, or a part of it).
      params: nested dicts that hold these parameters.
      dtype: of the file.
    """
    out: dict[str, np.ndarray] = {}
    for entry in entries:
        value: Any = params
        for key in entry.path:
            value = value[key]
        parts = weights.split(entry, np.asarray(value))
        out |= {name: np.ascontiguousarray(part.astype(dtype)) for name, part in parts.items()}
    return out


def write(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    file: str = "model.safetensors",
) -> None:
    """Writes ``config.json`` and the tensors: both in full beside, then into place.

    Args:
      folder: made if it isn't there; files of other names in it stay.
      config: what the JSON file holds.
      tensors: what the other one does.
      file: its name.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with swept(folder, f"{_BESIDE}????????"):
        beside = pathlib.Path(tempfile.mkdtemp(prefix=_BESIDE, dir=folder))
        try:
            # transformers refuses a file that doesn't say whose tensors it holds.
            save_file(dict(tensors), beside / file, metadata={"format": "pt"})
            text = json.dumps(config, indent=2)
            (beside / "config.json").write_text(text + "\n", encoding="utf-8")
            for name in ("config.json", file):
                (beside / name).chmod(0o644)
                (beside / name).replace(folder / name)
        finally:
            shutil.rmtree(beside)


@contextlib.contextmanager
def swept(folder: str | os.PathLike[str], pattern: str) -> Iterator[None]:
    """While something is written beside its place in a folder: first goes what was left there.

    Who writes holds a lock on the folder, which the system drops however the process ends: while
    nobody holds it, what is there is of writes that were killed. Nothing goes where that can't be
    known: another process is writing, or the file system has no locks.

    Args:
      folder: where the writing is done.
      pattern: of the temporary names, as ``pathlib.Path.glob`` takes it.
    """
    folder = pathlib.Path(folder)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # Windows has none

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            with contextlib.suppress(BlockingIOError):  # another process is writing
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for old in folder.glob(pattern):
                    _remove(old)
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
