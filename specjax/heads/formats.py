"""Heads on disk: a folder with config.json and a file of tensors, of whichever kind they are.

EAGLE heads: ``eagle_format``; Medusa heads, in two layouts: ``medusa_format``.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np
import safetensors
from numpy.typing import NDArray

from specjax.heads import eagle_format, medusa_format
from specjax.heads.eagle import EagleConfig
from specjax.heads.medusa import MedusaConfig
from specjax.models import loading, saving

HeadConfig = EagleConfig | MedusaConfig
T = TypeVar("T")


class Loaded(NamedTuple):
    """What is in a head's folder.

    Attributes:
      config: its configuration, which says the kind.
      head: its parameters, float32.
      ids: int32 ``[Vd]``, ascending, the draft vocabulary.
    """

    config: HeadConfig
    head: dict[str, Any]
    ids: NDArray[np.int32]


def save(
    folder: str | os.PathLike[str],
    config: HeadConfig,
    head: Mapping[str, Any],
    ids: NDArray[np.int32],
    vocab_size: int,
    layout: str = medusa_format.VLLM,
) -> None:
    """Writes a head, matrices in bfloat16: whole files, each beside its place and then renamed.

    Args:
      folder: made if it isn't there; files of other names in it stay.
      config: the head's.
      head: its parameters.
      ids: int32 ``[Vd]``, ascending, the draft vocabulary.
      vocab_size: V, the target's.
      layout: of Medusa heads, "vllm" or "original"; EAGLE heads have one alone.

    Raises:
      ValueError: an unknown layout.
    """
    if layout not in medusa_format.LAYOUTS:
        known = " or ".join(map(repr, medusa_format.LAYOUTS))
        raise ValueError(f"layout={layout!r}; it must be {known}")
    if isinstance(config, MedusaConfig):
        about = medusa_format.config_json(config, vocab_size, layout)
        tensors = medusa_format.to_file(config, head, layout)
        maps, file = medusa_format.maps(ids, vocab_size), medusa_format.FILES[layout]
    else:
        about = eagle_format.config_json(config, vocab_size)
        tensors = eagle_format.to_file(config, head)
        maps, file = eagle_format.maps(ids, vocab_size), eagle_format.FILE
    stored = {name: _stored(value) for name, value in tensors.items()}
    saving.write(folder, about, stored | maps, file)


def load(folder: str | os.PathLike[str]) -> Loaded:
    """Reads a head.

    Args:
      folder: as ``save`` writes it, or a published EAGLE-3 head, or published Medusa heads.

    Raises:
      ValueError: a missing, truncated or unknown tensor, or one of another shape; names it.
    """
    path = weights_file(folder)
    about, tensors = _about(path.parent), _read(path)
    layout = medusa_format.layout_of(about)
    return _eagle(path, about, tensors) if layout is None else _medusa(path, about, tensors, layout)


def is_head(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a head, and no model."""
    folder = pathlib.Path(folder)
    if not (folder / "config.json").is_file():
        return False
    about = _about(folder)
    named = any("Eagle" in str(name) for name in about.get("architectures") or ())
    return medusa_format.layout_of(about) is not None or "eagle_config" in about or named


def weights_file(folder: str | os.PathLike[str]) -> pathlib.Path:
    """The file of a head's tensors.

    Raises:
      ValueError: there is none, or no config.json.
    """
    folder = pathlib.Path(folder)
    name = eagle_format.FILE
    if (folder / "config.json").is_file():
        layout = medusa_format.layout_of(_about(folder))
        name = medusa_format.FILES[layout] if layout else name
    for file in (folder / "config.json", folder / name):
        if not file.is_file():
            raise ValueError(f"{file} is missing; {folder} is not the folder of a head")
    return folder / name


def _eagle(path: pathlib.Path, about: Mapping[str, Any], tensors: dict[str, np.ndarray]) -> Loaded:
    config = _of(path.parent, eagle_format.read_config, about)
    maps = tensors.pop("d2t", None), tensors.pop("t2d", None)
    vocab_size = about.get("vocab_size")
    if not (vocab_size is None or type(vocab_size) is int):
        raise ValueError(f"{path.parent / 'config.json'}: vocab_size={vocab_size!r} is no integer")
    ids = eagle_format.ids_of(str(path), *maps, config, vocab_size)
    tensors.pop("embed_tokens.weight", None)  # a copy of the target's
    _check(path, tensors, eagle_format.shapes(config))
    return Loaded(config, eagle_format.from_file(config, _wide(tensors)), ids)


def _medusa(
    path: pathlib.Path, about: Mapping[str, Any], tensors: dict[str, np.ndarray], layout: str
) -> Loaded:
    tensors = {name.removeprefix("medusa_heads."): value for name, value in tensors.items()}
    token_map = tensors.pop("token_map", None)
    config, vocab = _of(path.parent, medusa_format.read_config, about, tensors)
    ids = medusa_format.ids_of(str(path), token_map, config, vocab)
    tensors = medusa_format.cut(config, tensors, ids, vocab, layout)
    _check(path, tensors, medusa_format.shapes(config, layout, medusa_format.has_bias(about)))
    heads = medusa_format.from_file(config, _wide(tensors), ids, layout)
    return Loaded(config, heads, np.sort(ids))


def _about(folder: pathlib.Path) -> Mapping[str, Any]:
    return loading.read_json(folder / "config.json")


def _of(folder: pathlib.Path, read: Callable[..., T], *args: Any) -> T:
    """What ``read`` makes of a folder's config.json; its errors name the folder."""
    try:
        return read(*args)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error})") from error


def _check(
    path: pathlib.Path, tensors: Mapping[str, np.ndarray], shapes: dict[str, tuple[int, ...]]
) -> None:
    """Every tensor is there, of its shape, and no other."""
    for name, shape in shapes.items():
        if name not in tensors:
            raise ValueError(f"{path} has no tensor {name}")
        if tensors[name].shape != shape:
            raise ValueError(f"{path}: {name} has shape {tensors[name].shape}, expected {shape}")
    unknown = sorted(tensors.keys() - shapes.keys())
    if unknown:
        raise ValueError(f"{path} holds {unknown[0]}, which a head of this kind doesn't have")


def _wide(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def _stored(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value.astype(ml_dtypes.bfloat16))
