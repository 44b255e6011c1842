"""The training objective of Medusa heads: what decoding will ask of them, at every slot at once.

At slot s all heads read the target's stream after the final norm, which has seen the tokens up to
s. The target's own output there is the token at s + 1; head i, from 1, is asked for the one at
s + 1 + i, and its answer held against the target's law at slot s + i. Tokens, laws and mask shift
left *together* by one a head. (Cai et al. 2024, arXiv:2401.10774, section 3.2, Medusa-1, with the
target's law in place of the token itself.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jax import Array

from specjax.heads.medusa import MedusaConfig, MedusaHeads, projection_names
from train.asked import Asked, supervised


class Slots(NamedTuple):
    """What the objective knows of each slot of packed rows.

    Attributes:
      mask: bool ``[B, T]``, tokens that count when they are predicted.
      segment: int32 ``[B, T]``, 0 in the padding.
      known: bool ``[B, T]``, tokens of the draft vocabulary.
      final: ``[B, T, W]``, the target's stream after the final norm.
    """

    mask: Array
    segment: Array
    known: Array
    final: Array


def slots_of(
    config: MedusaConfig, known: Array, rows: Mapping[str, Array], streams: Array
) -> Slots:
    """The slots of packed rows.

    Args:
      config: the heads'.
      known: bool ``[V]``, the tokens of the draft vocabulary.
      rows: ``tokens``, ``mask`` and ``segment`` ``[B, T]``.
      streams: ``[B, T, F]``, of which the last one is ``features.FINAL``.
    """
    final = streams[..., -config.target_width :]
    return Slots(rows["mask"], rows["segment"], known[rows["tokens"]], final)


def unroll(config: MedusaConfig, params: Any, rows: Array, slots: Slots) -> list[Asked]:
    """Asks every head at every slot.

    Args:
      config: the heads'.
      params: their parameters.
      rows: ``[W, Vd]``, the target's output matrix at the draft vocabulary.
      slots: the packed rows.

    Returns:
      One entry a head.
    """
    final = slots.final.astype(rows.dtype)
    variables: Any = {"params": params}
    streams: Any = MedusaHeads(config).apply(variables, final, method=MedusaHeads.streams)
    names = projection_names(config) or [None]
    out = []
    for head, stream in enumerate(streams):
        # Two on from the slot is the token that the first head is asked for.
        where = supervised(slots.mask, slots.segment, slots.known, 2 + head)
        name = names[head % len(names)]  # an own matrix, or one for all
        matrix = rows if name is None else params[name]
        out.append(Asked(*where, stream, matrix, final, rows, ahead=1 + head))
    return out
