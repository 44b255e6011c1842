"""Draft models distilled from a target: its blocks' size, its embedding, its output rows.

A student is a transformer of its target's width and family with few blocks. It speaks a draft
vocabulary of the target's most frequent tokens (or all of them). Its embedding and output matrix
*are the target's*: they are gathered from it when the student is loaded. What is trained, and what
is on disk, is the blocks and the final norm.

A folder holds ``model.safetensors`` with the blocks and the final norm under the names of a Hugging
Face model, ``[out, in]``, and ``token_map`` (int32 ``[Vd]``, the target's ids of the draft
vocabulary, ascending; absent where it is the whole one). ``config.json`` is the family's own, but
under a name that no other library takes for a whole model's; an entry ``specjax`` says the family,
what is not shipped, and whose it is. ``scripts.export_draft`` makes a whole model of it.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array
from numpy.typing import NDArray

from specjax.models import fingerprint, loading, saving, weights
from specjax.models.config import ModelConfig
from specjax.models.linear import PANEL, to_panels
from specjax.models.transformer import init_params, output_rows, transformer_target
from specjax.models.weights import Entry, Part
from specjax.target import Target

_MAP = "token_map"
# transformers would fill up a "llama" without an embedding at random, and merely warn.
_NAMES = {"architectures": ["SpecjaxStudent"], "model_type": "specjax_student"}
Params = dict[str, Any]


class Student(NamedTuple):
    """What is in a student's folder.

    Attributes:
      config: its configuration; ``draft_vocab_size`` is 0 for the whole vocabulary.
      own: what it doesn't borrow: ``norm`` and ``block_0``, ``block_1``, ...
      ids: int32 ``[Vd]``, the target's ids of the draft vocabulary, ascending; None: all.
    """

    config: ModelConfig
    own: Params
    ids: NDArray[np.int32] | None


def config_of(target: ModelConfig, layers: Sequence[int], draft_vocab_size: int = 0) -> ModelConfig:
    """The configuration of a student.

    Args:
      target: the target's.
      layers: which of its blocks the student's are like.
      draft_vocab_size: Vd; 0 or V: the whole vocabulary.

    Raises:
      ValueError: no blocks, or one that the target doesn't have.
    """
    bad = [i for i in layers if not 0 <= i < target.num_layers]
    if bad or not layers:
        raise ValueError(
            f"layers={tuple(layers)}; name at least one of the target's blocks, 0 to "
            f"{target.num_layers - 1}"
        )
    truncated = draft_vocab_size not in (0, target.vocab_size)
    return dataclasses.replace(
        target,
        num_layers=len(layers),
        rope_layers=tuple(map(target.rotates, layers)) if target.rope_layers else (),
        tied=target.tied and not truncated,
        draft_vocab_size=draft_vocab_size if truncated else 0,
    )


def from_target(target_params: Mapping[str, Any], layers: Sequence[int]) -> Params:
    """The own parameters of a student made of the target's blocks and final norm, float32."""
    blocks = {f"block_{i}": target_params[f"block_{layer}"] for i, layer in enumerate(layers)}
    own = {"norm": target_params["norm"], **blocks}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), own)


def random(config: ModelConfig, key: Array) -> Params:
    """Own parameters to begin from nothing: normal matrices of deviation 0.02, norms of 1."""
    small = dataclasses.replace(config, vocab_size=1, draft_vocab_size=0)
    return {n: x for n, x in init_params(small, key).items() if n not in ("embed", "head")}


def save(
    folder: str | os.PathLike[str],
    config: ModelConfig,
    own: Mapping[str, Any],
    ids: NDArray[np.int32] | None,
    *,
    target: str | None = None,
) -> None:
    """Writes a student, matrices in bfloat16: whole files, each beside its place and then renamed.

    Args:
      folder: made if it isn't there; files of other names in it stay.
      config: the student's.
      own: its own parameters.
      ids: see ``Student``.
      target: the fingerprint of the target it borrows from (``fingerprint.target``), which
        ``check_pair`` holds others against; None: not known.
    """
    dtype = np.dtype(ml_dtypes.bfloat16)
    about: dict[str, Any] = {
        "embedding": "target", "head": "target", "draft_vocab_size": config.num_logits,
        "family": config.family,
    }  # fmt: skip
    if target is not None:
        about["target"] = target
    tensors = saving.tensors_of(_own_entries(config), own, dtype)
    if ids is not None:
        tensors[_MAP] = np.asarray(ids, np.int32)
    saving.write(folder, {**saving.to_hf(config, dtype), **_NAMES, "specjax": about}, tensors)


def is_student(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a student, and no whole model."""
    path = pathlib.Path(folder) / "config.json"
    return path.is_file() and "specjax" in loading.read_json(path)


def read_config(folder: str | os.PathLike[str]) -> ModelConfig:
    """Reads the configuration of a student, and no weights.

    Raises:
      ValueError: no student's folder, or a value that can't be; names it.
    """
    path = pathlib.Path(folder) / "config.json"
    whole = _about(path.parent)
    about = whole["specjax"]
    # Folders of earlier versions name the family as a whole model does.
    named = {**whole, "model_type": about.get("family", whole.get("model_type"))}
    try:
        config = ModelConfig.from_hf(named)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    size = about.get("draft_vocab_size")
    if size == config.vocab_size:
        return config
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size < config.vocab_size:
        raise ValueError(
            f"{path}: specjax.draft_vocab_size={size!r}; it must be 1 to {config.vocab_size}, the "
            "target's vocabulary"
        )
    return dataclasses.replace(config, tied=False, draft_vocab_size=size)


def read(folder: str | os.PathLike[str]) -> Student:
    """Reads a student, float32, without a target.

    Raises:
      ValueError: no student's folder, a missing, truncated, unknown or mis-shaped tensor, or ids
        that can't be; names it.
    """
    return _read(pathlib.Path(folder), np.dtype(np.float32), panels=False)


def load(
    folder: str | os.PathLike[str],
    target_params: Mapping[str, Any],
    target_config: ModelConfig,
    *,
    panels: bool | None = None,
    target_folder: str | os.PathLike[str] | None = None,
) -> tuple[Target, Params, Array | None]:
    """Loads a student beside its target, in the dtype of the target.

    Args:
      folder: as ``save`` writes it.
      target_params: the target's parameters, whose embedding the student's *is*.
      target_config: the target's configuration.
      panels: see ``models.load``.
      target_folder: see ``check_pair``.

    Returns:
      The student as a ``Target`` whose logits are over the draft vocabulary, its parameters, and
      int32 ``[Vd]``, the target's ids of the logits; None: the logits are by them.
      ``drafters.DraftModelParams`` takes the last two.

    Raises:
      ValueError: see ``read`` and ``check_pair``.
    """
    dtype = np.dtype(target_params["embed"].dtype)
    config = read_config(folder)
    check_pair(folder, config, target_config, target_folder)
    if panels is None:
        panels = loading.wants_panels(config, dtype)
    _, own, ids = _read(pathlib.Path(folder), dtype, panels)
    if ids is None:
        config = dataclasses.replace(config, tied=target_config.tied)
    params = assemble(config, own, target_params, ids, panels)
    return transformer_target(config), params, None if ids is None else jnp.asarray(ids)


def assemble(
    config: ModelConfig,
    own: Mapping[str, Any],
    target_params: Mapping[str, Any],
    ids: NDArray[np.int32] | None,
    panels: bool = False,
) -> Params:
    """All parameters of a student: its own, and what it borrows.

    Args:
      config: the student's.
      own: its own parameters.
      target_params: the target's.
      ids: see ``Student``.
      panels: hold the gathered output rows as panels too (see ``models.linear``).
    """
    params = {**own, "embed": target_params["embed"]}
    if ids is None:
        return params | {n: target_params[n] for n in ("head", "head_panels") if n in target_params}
    head = output_rows(target_params, jnp.asarray(ids))
    if panels and config.num_logits % PANEL == 0:
        params["head_panels"] = to_panels(head)
    return params | {"head": head}


def check_pair(
    folder: str | os.PathLike[str],
    student: ModelConfig,
    target: ModelConfig,
    target_folder: str | os.PathLike[str] | None = None,
) -> None:
    """Checks that a student belongs to a target: to one of this shape and, if known, these weights.

    Args:
      folder: the student's.
      student: its configuration.
      target: the target's.
      target_folder: where the target's files are, which are read only if the student says whose it
        is (see ``save``); None: the weights are not checked.

    Raises:
      ValueError: it does not.
    """
    for name in ("width", "vocab_size"):
        ours, theirs = getattr(student, name), getattr(target, name)
        if ours != theirs:
            raise ValueError(
                f"{folder} holds a draft model that borrows the embedding of a target of "
                f"{name}={ours}; this target's is {theirs}: take the target it was trained for"
            )
    made_for = _about(pathlib.Path(folder))["specjax"].get("target")
    if made_for is None or target_folder is None:
        return
    found = fingerprint.target(pathlib.Path(target_folder))
    if found != made_for:
        raise ValueError(
            f"{folder} holds a draft model that borrows the embedding of a target of fingerprint "
            f"{made_for!s:.12}; the one in {target_folder} has other weights ({found:.12}): take "
            "the target it was trained for, or train one for this"
        )


def _about(folder: pathlib.Path) -> Mapping[str, Any]:
    """The config.json of a student's folder; its entry ``specjax`` is an object."""
    missing = [n for n in ("config.json", "model.safetensors") if not (folder / n).is_file()]
    whole = {} if missing else loading.read_json(folder / "config.json")
    about = whole.get("specjax")
    if not missing and isinstance(about, Mapping) and about.get("embedding") == "target":
        return whole
    lacks = (
        "its config.json has no specjax.embedding='target' (a whole model is loaded with "
        "specjax.models.load)"
    )
    if missing:
        there = "" if folder.is_dir() else " (there is no such folder)"
        lacks = f"{missing[0]} is missing{there}"
    raise ValueError(f"{folder}: this is no draft model as train.draft_model makes it: {lacks}")


def _own_entries(config: ModelConfig) -> list[Entry]:
    return [e for e in weights.plan(config) if e.path not in (("embed",), ("head",))]


def _read(folder: pathlib.Path, dtype: np.dtype, panels: bool) -> Student:
    config = read_config(folder)
    entries, tensors = _own_entries(config), loading.Tensors(folder)
    parts = [part for entry in entries for part in entry.parts]
    if config.draft_vocab_size:
        parts.append(Part(_MAP, (config.draft_vocab_size,)))
    tensors.check(parts, config)
    ids = tensors.read(_MAP) if config.draft_vocab_size else None
    if ids is not None:
        whole = ids.dtype.kind == "i" and not np.any(np.diff(ids) <= 0)
        if not whole or ids[0] < 0 or ids[-1] >= config.vocab_size:
            raise ValueError(
                f"{folder}: {_MAP} must hold ascending ids of the target, 0 to "
                f"{config.vocab_size - 1}"
            )
        ids = ids.astype(np.int32)
    entries += weights.panels_of(entries) if panels else []
    return Student(config, loading.read_entries(tensors, entries, dtype), ids)
