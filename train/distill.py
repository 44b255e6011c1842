"""The objective of a draft model: to say at every slot what its target says there.

Distillation on text that the target wrote, against the target's whole distribution at each slot
(DistillSpec, arXiv:2310.08461, section 3, with data of the target): at slot s both models have read
x_0 ... x_s, and are asked for x_{s+1}. So tokens, labels and mask shift by one, together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.target import Target
from train import asked
from train.asked import Asked, Sums, Whole, shift
from train.features import FINAL, visible


def ask(
    model: Target,
    params: Any,
    rows: Array,
    known: Array,
    batch: Mapping[str, Array],
    final: Array,
) -> Asked:
    """Runs the draft model over packed rows; documents don't see each other.

    Args:
      model: the draft model.
      params: its parameters, borrowed ones included.
      rows: ``[W, Vd]``, the target's output matrix at the draft vocabulary.
      known: bool ``[V]``, the tokens of the draft vocabulary.
      batch: ``tokens``, ``mask``, ``segment`` and ``position`` ``[B, T]``.
      final: ``[B, T, W]``, the target's stream after the final norm.
    """
    tokens, segment = batch["tokens"], batch["segment"]
    cache = model.init_cache(*tokens.shape, params["embed"].dtype)
    _, output, _ = model.apply(
        params,
        tokens,
        cache,
        positions=batch["position"],
        mask=visible(segment),
        layers=(FINAL,),
    )
    assert output is not None
    where = asked.supervised(batch["mask"], segment, known[tokens], 1)
    return Asked(*where, output, rows, final, rows, ahead=0)


def objective(
    said: Asked, segment: Array, *, loss: str, positions: int, whole: Whole | None = None
) -> tuple[Array, Sums]:
    """The loss, and what to report.

    Args:
      said: of ``ask``.
      segment: int32 ``[B, T]``, the document a slot is of.
      loss: a name in ``losses.BY_NAME``.
      positions: k, tokens of a draft.
      whole: see ``asked.judge``.

    Returns:
      As ``asked.objective`` of one position; but ``accept_length`` is what a greedy draft of k
      tokens that begins at a slot would have accepted, from the agreement at that slot and at those
      after it. (The text is the target's own: up to the first miss it is what the draft model would
      have read in decoding, so one pass answers for every position.)
    """
    judged = asked.judge([said], loss, whole)
    total, sums = asked.summed([said], judged, decay=1.0)
    alive = hit = judged[0].hit
    length = jnp.zeros([], jnp.float32)
    for ahead in range(positions):
        alive = alive & shift(hit, ahead) & (shift(segment, ahead) == segment)
        length = length + jnp.sum(alive, dtype=jnp.float32)
    return total, sums | {"accept_length": length}
