"""Going on from a head that is on disk."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specjax.heads import formats
from train import vocabulary
from train.material import Material, say


def read(folder: str) -> formats.Loaded | None:
    """A head to go on from: its configuration, parameters (float32) and draft vocabulary.

    Args:
      folder: of the head; "": of none.

    Raises:
      ValueError: a folder that holds no head.
    """
    if not folder:
        return None
    try:
        return formats.load(folder)
    except ValueError as error:
        raise ValueError(f"config.start={folder!r} is no head to go on from: {error}") from error


def vocab_size(before: formats.Loaded | None, size: int, most: int) -> int:
    """Vd of the head to train.

    Args:
      before: what it goes on from, whose vocabulary it keeps.
      size: of a new one; see ``vocabulary.size_of``.
      most: V, the target's.
    """
    return len(before.ids) if before else vocabulary.size_of(size, most)


def check(
    folder: str, before: formats.Loaded | None, config: formats.HeadConfig, most: int
) -> None:
    """Checks that a head on disk is of the kind to train.

    Args:
      folder: of the head.
      before: what is there, if there is to be something.
      config: of the head to train.
      most: V, the target's.

    Raises:
      ValueError: it isn't, or drafts tokens that the target doesn't have; names what differs.
    """
    if before is None:
        return
    check_same(folder, before.config, config)
    if before.ids[-1] >= most:
        raise ValueError(
            f"config.start={folder!r} drafts token {before.ids[-1]}, but the target has 0 to "
            f"{most - 1}; start from a head that was made for it"
        )


def check_same(folder: str, was: Any, now: Any) -> None:
    """Checks that two configurations, dataclasses, are the same.

    Args:
      folder: of what is on disk.
      was: its configuration.
      now: of what is to be trained.

    Raises:
      ValueError: they differ; names the first field that does.
    """
    if type(was) is not type(now):
        kinds = [type(config).__name__.removesuffix("Config") for config in (was, now)]
        raise ValueError(
            f"config.start={folder!r} holds a head of another kind: it is {kinds[0]}, and this "
            f"command trains {kinds[1]}; start from one of those"
        )
    for field in dataclasses.fields(now):
        there, here = getattr(was, field.name), getattr(now, field.name)
        if there != here:
            raise ValueError(
                f"config.start={folder!r} was made with {field.name}={there}, but this run has "
                f"{field.name}={here}; give the run what its start has, or start from another"
            )


def draft_vocabulary(kept: NDArray[np.int32] | None, size: int, material: Material) -> np.ndarray:
    """The most frequent tokens of the documents to train on; what is gone on from keeps its own.

    Prints that it does, and how much of the held-out documents they cover.

    Args:
      kept: int32 ``[Vd]``, the draft vocabulary of what is gone on from; None: of nothing.
      size: ``config.draft_vocab_size``, Vd of a new one; see ``vocabulary.most_frequent``.
      material: what is trained on.

    Returns:
      int32 ``[Vd]``, ascending.
    """
    if kept is None:
        ids = vocabulary.most_frequent(material.documents, size, material.model.vocab_size)
    else:
        ids = kept
        say(
            f"config.start keeps its draft vocabulary of {len(ids)} tokens: "
            f"config.draft_vocab_size={size} is that of a new one"
        )
    vocabulary.tell(material.held_out_documents, ids)
    return ids
