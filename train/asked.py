"""What heads are asked in training, slot by slot, and what their answers are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from train import losses

Sums = dict[str, Array]


class Asked(NamedTuple):
    """The questions and answers of one position of a draft.

    Attributes:
      counts: bool ``[B, T]``: the token asked for is supervised and of the same document.
      known: bool ``[B, T]``: and of the draft vocabulary.
      probs: float32 ``[B, T, Vd]``, the target's over the draft vocabulary.
      logits: float32 ``[B, T, Vd]``, the head's.
      output: ``[B, T, W]``, the output of a head that is to predict features too, or None.
      wanted: ``[B, T, W]``, the features that output stands for, or None.
    """

    counts: Array
    known: Array
    probs: Array
    logits: Array
    output: Array | None = None
    wanted: Array | None = None


def shift(x: Array, by: int) -> Array:
    """``x[:, s + by]`` at slot s; zeros where the row ends."""
    pad = ((0, 0), (0, by)) + ((0, 0),) * (x.ndim - 2)
    return jnp.pad(x, pad)[:, by:]


def supervised(mask: Array, segment: Array, known: Array, ahead: int) -> tuple[Array, Array]:
    """Where the token ``ahead`` slots on may be asked for.

    Args:
      mask: bool ``[B, T]``, tokens that count when they are predicted.
      segment: int32 ``[B, T]``, 0 in the padding.
      known: bool ``[B, T]``, tokens of the draft vocabulary.
      ahead: how many slots on.

    Returns:
      ``counts`` and ``known`` of ``Asked``.
    """
    same = (shift(segment, ahead) == segment) & (segment > 0)
    counts = shift(mask, ahead) & same
    return counts, counts & shift(known, ahead)


def objective(
    asked: Sequence[Asked], *, loss: str, decay: float, feature_weight: float = 0.0
) -> tuple[Array, Sums]:
    """The loss of all positions of a draft, and what to report.

    Tokens outside the draft vocabulary have no answer in it: they don't count in the loss, and
    count as misses in the rates.

    Args:
      asked: by position.
      loss: a name in ``losses.BY_NAME``.
      decay: position j, from 0, weighs ``decay**j`` (EAGLE-3's and Medusa's repositories: 0.8).
      feature_weight: weight of the feature regression, where a head has one (EAGLE-1's paper: 1,
        with the classification at 0.1; here the ratio of the two).

    Returns:
      The sum over slots, and sums: ``weight``; for each position j, from 1, ``top1_j`` (agreement
      with the target's most probable token), ``overlap_j`` (sum min(p, q)), ``top1_j_weight``, ...;
      ``accept_length``: drafts accepted in a greedy round of this many positions, from the
      agreement of all positions up to each.
    """
    weight = jnp.sum(asked[0].counts, dtype=jnp.float32)
    total, sums = jnp.zeros([], jnp.float32), {"weight": weight}
    alive, length = asked[0].counts, jnp.zeros([], jnp.float32)
    for number, one in enumerate(asked):
        each = losses.BY_NAME[loss](one.probs, one.logits)
        if one.output is not None and one.wanted is not None:
            each = each + feature_weight * losses.smooth_l1(one.output, one.wanted)
        total = total + decay**number * jnp.sum(jnp.where(one.known, each, 0.0))
        hit = one.known & (jnp.argmax(one.logits, -1) == jnp.argmax(one.probs, -1))
        alive = alive & hit
        length = length + jnp.sum(alive, dtype=jnp.float32)
        count = jnp.sum(one.counts, dtype=jnp.float32)
        both = jnp.where(one.known, losses.overlap(one.probs, one.logits), 0.0)
        for name, value in (("top1", jnp.sum(hit, dtype=jnp.float32)), ("overlap", jnp.sum(both))):
            sums |= {f"{name}_{number + 1}": value, f"{name}_{number + 1}_weight": count}
    return total, sums | {"accept_length": length}
