"""Checkpoints in, parameters out: a local folder or a hub id, safetensors in one file or many."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import safetensors

from specjax import device
from specjax.models import weights
from specjax.models.config import ModelConfig
from specjax.models.transformer import transformer_target
from specjax.models.weights import Entry, Part
from specjax.target import Target

_TABLE = "model.embed_tokens.weight"
_HINTS = {
    "lm_head.weight": " (tie_word_embeddings is false)",
    _TABLE: " (a draft model that borrows its target's is loaded with specjax.models.students)",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_PANELS_UP_TO = 2 * 2**30  # bytes of weights: where holding them twice is no burden
# The parts this library reads; repositories also hold other formats of the same weights.
_HUB_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
)


def load(
    source: str | os.PathLike[str],
    dtype: jax.typing.DTypeLike | None = None,
    *,
    panels: bool | None = None,
) -> tuple[Target, dict[str, Any], ModelConfig]:
    """Loads a model of the Llama family.

    Args:
      source: a local folder in Hugging Face layout, or a hub id, ``owner/name`` or
        ``owner/name@revision`` (downloaded once to ``HF_HOME``, with ``HF_TOKEN`` if set).
      dtype: of the parameters; by default float32 on CPU and bfloat16 on accelerators.
      panels: whether to hold the matrices a second time, as ``NAME_panels`` beside ``NAME``, which
        short passes read; by default small models on CPU (``wants_panels``). With weights that are
        to change, say False, or use ``drop_panels``: nothing keeps the two forms equal.

    Returns:
      The target, its parameters (a pytree of arrays on the default device) and the configuration.

    Raises:
      ValueError: no such folder, an unsupported model, or a missing, truncated, unknown or
        mis-shaped tensor; the message names it.
      PermissionError: the hub refused the download; the message names the licence page.
    """
    folder = resolve(source)
    config = read_config(folder)
    return transformer_target(config), load_params(folder, config, dtype, panels=panels), config


def resolve(source: str | os.PathLike[str], files: Sequence[str] = _HUB_FILES) -> pathlib.Path:
    """The local folder of a model: itself, or the downloaded snapshot of a hub id.

    Args:
      source: see ``load``.
      files: names or patterns of the files to download; by default all that is ever read.
    """
    folder = pathlib.Path(source).expanduser()
    if folder.is_dir():
        return folder
    if not isinstance(source, str) or not _HUB_ID.fullmatch(source):
        raise ValueError(
            f"no folder {os.fspath(source)!r}, and it isn't a hub id (owner/name[@revision])."
        )
    # Only needed here, and slow to import.
    from huggingface_hub import errors, snapshot_download

    repo, _, revision = source.partition("@")
    page = f"https://huggingface.co/{repo}"
    try:
        path = snapshot_download(repo, revision=revision or None, allow_patterns=list(files))
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{repo} is gated: accept its licence at {page} and set HF_TOKEN to a token of that "
            "account."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{repo} has no revision {revision!r}; see {page}/tree/main.") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"no folder and no public hub repository {repo!r} ({page}); a private one needs "
            "HF_TOKEN."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ValueError(f"{repo} isn't downloaded yet and {page} can't be reached.") from error
    return pathlib.Path(path)


def read_config(folder: pathlib.Path) -> ModelConfig:
    """The model configuration of a folder."""
    path = folder / "config.json"
    config = read_json(path)
    try:
        return ModelConfig.from_hf(config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def wants_panels(config: ModelConfig, dtype: jax.typing.DTypeLike) -> bool:
    """Whether ``load`` keeps the matrices a second time, as panels: small models on CPU.

    Passes over a few tokens, which speculation lives on, then take 0.5 to 0.8 of the time (see
    ``linear.linear``). Longer ones, such as prefill, take longer from panels, so the first copy
    stays.
    """
    size = config.num_parameters * np.dtype(dtype).itemsize
    return jax.default_backend() == "cpu" and size <= _PANELS_UP_TO


def load_params(
    folder: pathlib.Path,
    config: ModelConfig,
    dtype: jax.typing.DTypeLike | None = None,
    *,
    panels: bool | None = None,
) -> dict[str, Any]:
    """Reads a folder's safetensors into the parameter pytree of ``Transformer``.

    Args:
      folder: holds ``model.safetensors``, or shards and ``model.safetensors.index.json``.
      config: what they should hold.
      dtype: of the parameters; by default the device's.
      panels: see ``load``.

    Returns:
      Nested dicts of arrays; on CPU, of small models, with ``..._panels`` beside the matrices, a
      second form of the same weights.

    Raises:
      ValueError: see ``load``.
    """
    dtype = np.dtype(device.default_dtype() if dtype is None else dtype)
    tensors = Tensors(folder)
    tensors.check([part for entry in weights.plan(config) for part in entry.parts], config)
    return read_entries(tensors, _entries(config, dtype, panels), dtype)


def shapes(
    config: ModelConfig,
    dtype: jax.typing.DTypeLike,
    *,
    panels: bool | None = None,
    upright: bool | None = None,
) -> dict[str, Any]:
    """The shapes of what ``load_params`` gives, without a file: ``jax.ShapeDtypeStruct``, nested.

    Args:
      config: what the model is made of.
      dtype: of the parameters.
      panels: see ``load``.
      upright: whether panels are (see ``linear``); by default as on this machine.
    """
    entries = _entries(config, dtype, panels)
    sizes = [weights.shape_of(entry, upright) for entry in entries]
    return _nested(entries, [jax.ShapeDtypeStruct(size, dtype) for size in sizes])


def _entries(config: ModelConfig, dtype: jax.typing.DTypeLike, panels: bool | None) -> list[Entry]:
    entries = weights.plan(config)
    if wants_panels(config, dtype) if panels is None else panels:
        entries += weights.panels_of(entries)
    return entries


def read_entries(tensors: Tensors, entries: Sequence[Entry], dtype: np.dtype) -> dict[str, Any]:
    """Parameters from the tensors of a folder, as nested dicts of arrays."""

    def read(entry: Entry) -> jax.Array:
        # On CPU the array *is* the memory it was read into: no second copy, and huge pages.
        return jax.device_put(weights.assemble(entry, tensors.read, dtype), may_alias=True)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return _nested(entries, pool.map(read, entries))


def _nested(entries: Sequence[Entry], values: Iterable[Any]) -> dict[str, Any]:
    """The values by their entries' paths."""
    params: dict[str, Any] = {}
    for entry, value in zip(entries, values, strict=True):
        *outer, name = entry.path
        place = params
        for key in outer:
            place = place.setdefault(key, {})
        place[name] = value
    return params


class Tensors:
    """The tensors of a folder, whichever file each is in."""

    def __init__(self, folder: pathlib.Path):
        single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        if single.is_file():
            self._files = {single.name: _open(single)}
            self._where = dict.fromkeys(self._files[single.name].keys(), single.name)
        elif index.is_file():
            self._where = read_json(index).get("weight_map", {})
            names = sorted(set(self._where.values()))
            missing = [name for name in names if not (folder / name).is_file()]
            if missing:
                raise ValueError(
                    f"{index} names {missing[0]}, which is missing ({len(missing)} in all)."
                )
            self._files = {name: _open(folder / name) for name in names}
            for name, file in self._files.items():
                absent = {k for k, v in self._where.items() if v == name} - set(file.keys())
                if absent:
                    raise ValueError(
                        f"{index} puts {min(absent)} in {name}, which doesn't hold it."
                    )
        else:
            raise ValueError(
                f"{folder} has neither model.safetensors nor model.safetensors.index.json;"
                " other weight formats are not read."
            )
        self._folder = folder

    def check(self, parts: list[Part], config: ModelConfig) -> None:
        """Raises ValueError unless the folder holds these tensors in these shapes, and no more."""
        expected = {part.name: part.shape for part in parts}
        # Old checkpoints also store the RoPE frequencies, which follow from the configuration.
        held = {name for name in self._where if not name.endswith("rotary_emb.inv_freq")}
        if config.tied and held >= {"lm_head.weight", _TABLE}:
            head, embed = self.read("lm_head.weight"), self.read(_TABLE)
            if not np.array_equal(head, embed):
                raise ValueError(
                    f"{self._folder}: config.json says tie_word_embeddings, but lm_head.weight"
                    " differs from model.embed_tokens.weight; one of them is wrong."
                )
            held.remove("lm_head.weight")
        missing = sorted(expected.keys() - held, key=lambda name: (name != _TABLE, name))
        if missing:
            hint = _HINTS.get(missing[0], "")
            raise ValueError(
                f"{self._folder} has no tensor {missing[0]}{hint}; {len(missing)} missing in all."
            )
        unknown = sorted(held - expected.keys())
        if unknown:
            raise ValueError(
                f"{self._folder} holds {unknown[0]}, which a {config.family} model of this"
                f" configuration doesn't have; {len(unknown)} unknown in all."
            )
        for name, shape in expected.items():
            found = tuple(self._slice(name).get_shape())
            if found != shape:
                raise ValueError(f"{self._folder}: {name} has shape {found}, expected {shape}.")

    def read(self, name: str) -> np.ndarray:
        """A tensor, in the dtype of the file."""
        return self._files[self._where[name]].get_tensor(name)

    def _slice(self, name: str) -> Any:
        return self._files[self._where[name]].get_slice(name)


def _open(path: pathlib.Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); download it again."
        ) from error


def read_json(path: pathlib.Path) -> Mapping[str, Any]:
    """A file of a model's folder that holds a JSON object.

    Raises:
      ValueError: it is missing, no JSON, or something else than an object; names it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing.") from None
    except ValueError as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}); correct it or download it again."
        ) from error
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{path} holds a {type(value).__name__}; it must be a JSON object, {{...}}: correct it "
            "or download it again."
        )
    return value
