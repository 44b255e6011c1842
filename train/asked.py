"""What heads are asked in training, slot by slot, and what their answers are worth.

Logits are the dearest part of a step: a head's and the target's, for every slot, over the draft
vocabulary. They exist only for slots whose answer counts, some slots at a time, and the target's
once for all positions of a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from train import losses

Sums = dict[str, Array]

_SLOTS = 128  # of each row, judged at a time


class Asked(NamedTuple):
    """The questions and answers of one position of a draft.

    Attributes:
      counts: bool ``[B, T]``: the token asked for is supervised and of the same document.
      known: bool ``[B, T]``: and of the draft vocabulary.
      output: ``[B, T, W]``, what the head says at a slot, before its output matrix.
      matrix: ``[W, Vd]``, that matrix.
      final: ``[B, T, Wt]``, the target's stream after the final norm, by its own slots.
      rows: ``[Wt, Vd]``, its output matrix at the draft vocabulary.
      ahead: from a slot to the one where the target gives the answer.
      regresses: the output itself is to be the target's stream there (EAGLE-1).
    """

    counts: Array
    known: Array
    output: Array
    matrix: Array
    final: Array
    rows: Array
    ahead: int
    regresses: bool = False

    @property
    def logits(self) -> Array:
        """float32 ``[B, T, Vd]``, the head's."""
        return _logits(self.output, self.matrix)

    @property
    def probs(self) -> Array:
        """float32 ``[B, T, Vd]``, the target's where it gives the answer."""
        return shift(jax.nn.softmax(_logits(self.final, self.rows)), self.ahead)


class Judged(NamedTuple):
    """What the answers at each slot are worth, ``[B, T]``; 0 where there is no known answer.

    Attributes:
      loss: float32.
      hit: bool: the target's most probable token is the head's.
      overlap: float32, sum min(p, q).
    """

    loss: Array
    hit: Array
    overlap: Array


def shift(x: Array, by: int) -> Array:
    """``x[:, s + by]`` at slot s; zeros where the row ends."""
    pad = ((0, 0), (0, by)) + ((0, 0),) * (x.ndim - 2)
    return jnp.pad(x, pad)[:, by:]


def back(x: Array, by: int) -> Array:
    """``x[:, s - by]`` at slot s; zeros where the row begins."""
    pad = ((0, 0), (by, 0)) + ((0, 0),) * (x.ndim - 2)
    return jnp.pad(x, pad)[:, : x.shape[1]]


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


def rows_at(x: Array, slots: Array) -> Array:
    """``x[b, slots[b, c]]`` for each row b: ``[B, C, ...]``."""
    return jnp.take_along_axis(x, slots.reshape(*slots.shape, *[1] * (x.ndim - 2)), 1)


def where_needed(needed: Array, function: Callable[[Array], Any]) -> Any:
    """Computes something slot by slot, some at a time, and not at all where nobody needs it.

    Args:
      needed: bool ``[B, T]``.
      function: slots int32 ``[B, C]`` -> a pytree of arrays ``[B, C, ...]``.

    Returns:
      The same with ``[B, T, ...]``. Slots that aren't needed hold what the function gives there, or
      zeros.
    """
    order = jnp.argsort(~needed, axis=1, stable=True)  # what is needed comes first, row by row
    pieces = []
    for start in range(0, needed.shape[1], _SLOTS):
        slots = order[:, start : start + _SLOTS]
        nothing = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, slots)
        )
        some = jnp.any(rows_at(needed, slots))
        pieces.append(lax.cond(some, function, lambda _, n=nothing: n, slots))
    undone = jnp.argsort(order, axis=1)
    return jax.tree.map(lambda *x: rows_at(jnp.concatenate(x, 1), undone), *pieces)


def judge(asked: Sequence[Asked], loss: str) -> list[Judged]:
    """What the answers of all positions are worth, held against the target's laws.

    Args:
      asked: by position, of one target: ``final`` and ``rows`` are the same in all.
      loss: a name in ``losses.BY_NAME``.
    """
    final = asked[0].final
    # By the slot of the target's answer, all positions share a law.
    known = [back(one.known, one.ahead) for one in asked]
    outputs = [back(one.output, one.ahead) for one in asked]
    wanted = jnp.any(jnp.stack(known), 0)

    def at(slots: Array) -> list[Judged]:
        here, outputs_, known_ = jax.tree.map(lambda x: rows_at(x, slots), (final, outputs, known))
        return _judged(asked, here, outputs_, known_, loss)

    whole = where_needed(wanted, at)
    return [
        Judged(*(shift(x, one.ahead) for x in each)) for one, each in zip(asked, whole, strict=True)
    ]


def _judged(
    asked: Sequence[Asked], final: Array, outputs: list[Array], known: list[Array], loss: str
) -> list[Judged]:
    """``judge`` at some slots ``[B, C]``, by the slot of the target's answer."""
    probs = jax.nn.softmax(_logits(final, asked[0].rows))
    likely = probs == jnp.max(probs, -1, keepdims=True)
    out = []
    for one, output, counts in zip(asked, outputs, known, strict=True):
        logits = _logits(output, one.matrix)
        # An argmax would cost several times as much as this on a CPU.
        best = jnp.max(jnp.where(likely, logits, -jnp.inf), -1) == jnp.max(logits, -1)
        each = losses.BY_NAME[loss](probs, logits)
        both = lax.stop_gradient(losses.overlap(probs, logits))
        out.append(Judged(jnp.where(counts, each, 0), counts & best, jnp.where(counts, both, 0)))
    return out


def objective(
    asked: Sequence[Asked], *, loss: str, decay: float, feature_weight: float = 0.0
) -> tuple[Array, Sums]:
    """The loss of all positions of a draft, and what to report: ``summed``, of a named loss."""
    return summed(asked, judge(asked, loss), decay=decay, feature_weight=feature_weight)


def summed(
    asked: Sequence[Asked],
    judged: Sequence[Judged],
    *,
    decay: float,
    feature_weight: float = 0.0,
) -> tuple[Array, Sums]:
    """Sums over slots and positions.

    Tokens outside the draft vocabulary have no answer in it: they don't count in the loss, and
    count as misses in the rates.

    Args:
      asked: by position.
      judged: likewise.
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
    for number, (one, worth) in enumerate(zip(asked, judged, strict=True)):
        each = worth.loss
        if one.regresses:
            apart = losses.smooth_l1(one.output, shift(one.final, one.ahead))
            each = each + feature_weight * jnp.where(one.known, apart, 0)
        total = total + decay**number * jnp.sum(each)
        alive = alive & worth.hit
        length = length + jnp.sum(alive, dtype=jnp.float32)
        count = jnp.sum(one.counts, dtype=jnp.float32)
        hits, both = jnp.sum(worth.hit, dtype=jnp.float32), jnp.sum(worth.overlap)
        for name, value in (("top1", hits), ("overlap", both)):
            sums |= {f"{name}_{number + 1}": value, f"{name}_{number + 1}_weight": count}
    return total, sums | {"accept_length": length}


def _logits(x: Array, matrix: Array) -> Array:
    return jnp.matmul(x.astype(matrix.dtype), matrix, preferred_element_type=jnp.float32)
