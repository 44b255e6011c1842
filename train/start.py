"""Going on from a head that is on disk."""

from __future__ import annotations

from typing import Any

import numpy as np

from specjax.heads import formats
from train import vocabulary
from train.material import Material


def parameters(folder: str, config: formats.HeadConfig) -> Any:
    """The parameters of a head, float32.

    Args:
      folder: of the head.
      config: of the head to train.

    Raises:
      ValueError: a folder that holds another kind of head.
    """
    loaded, head, _ = _load(folder)
    if loaded != config:
        raise ValueError(f"config.start={folder!r} holds {loaded}; this run trains {config}")
    return head


def draft_vocabulary(folder: str, size: int, material: Material) -> np.ndarray:
    """The most frequent tokens of the data; a head that is trained on keeps its own.

    Prints how much of the data they cover.

    Args:
      folder: of the head to go on from; "": of none.
      size: Vd of a new head; see ``vocabulary.most_frequent``.
      material: what is trained on.

    Returns:
      int32 ``[Vd]``, ascending.
    """
    documents = material.documents
    if folder:
        ids = _load(folder)[2]
    else:
        ids = vocabulary.most_frequent(documents, size, material.model.vocab_size)
    vocabulary.tell(documents, ids)
    return ids


def _load(folder: str) -> formats.Loaded:
    try:
        return formats.load(folder)
    except ValueError as error:
        raise ValueError(f"config.start={folder!r} is no head to go on from: {error}") from error
