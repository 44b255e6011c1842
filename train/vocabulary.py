"""The draft vocabulary: the tokens a head can propose, most frequent first chosen.

On a small target a step with the whole vocabulary costs a fifth of the target's pass; EAGLE-3
(arXiv:2503.01840) drafts from the most frequent tokens alone. What it can't draft, it can't speed
up; what comes out is the target's all the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from train.data import Documents
from train.material import say


def most_frequent(documents: Documents, size: int, vocab_size: int) -> NDArray[np.int32]:
    """The ``size`` tokens that the target emitted most often, in ascending order.

    Ties go to the smaller id. Ids that never occurred fill up what is left.

    Args:
      documents: the training data; supervised tokens are counted.
      size: Vd; 0 takes the whole vocabulary.
      vocab_size: V.

    Raises:
      ValueError: a size above V or below 0.
    """
    counts = np.bincount(documents.tokens[documents.mask], minlength=vocab_size)
    order = np.argsort(-counts, kind="stable")[: size_of(size, vocab_size)]
    return np.sort(order).astype(np.int32)


def size_of(size: int, vocab_size: int) -> int:
    """Vd, where 0 stands for all of V.

    Raises:
      ValueError: a size above V or below 0.
    """
    if not 0 <= size <= vocab_size:
        raise ValueError(
            f"config.draft_vocab_size={size}; it must be 1 to {vocab_size}, the target's "
            "vocabulary, or 0 for all of it"
        )
    return size or vocab_size


def coverage(documents: Documents, ids: NDArray[np.int32]) -> float:
    """The share of the supervised tokens that are in a draft vocabulary."""
    return float(np.mean(np.isin(documents.tokens[documents.mask], ids)))


def tell(documents: Documents, ids: NDArray[np.int32]) -> None:
    """Prints the coverage of documents that the vocabulary wasn't chosen from."""
    share = 100 * coverage(documents, ids)
    say(f"the draft vocabulary covers {share:.1f}% of what the target says in held-out text")
