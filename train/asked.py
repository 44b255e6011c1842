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


class Whole(NamedTuple):
    """What it takes to hold answers against the target's law over its whole vocabulary.

    Attributes:
      matrix: ``[Wt, V]``, its output matrix.
      ids: int32 ``[Vd]``, the draft vocabulary.
    """

    matrix: Array
    ids: Array


class Judged(NamedTuple):
    """What the answers at each slot are worth, ``[B, T]``; 0 where nothing is asked.

    Attributes:
      loss: float32, by the law over the draft vocabulary; 0 where the token is not of it.
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


def judge(asked: Sequence[Asked], loss: str, whole: Whole | None = None) -> list[Judged]:
    """What the answers of all positions are worth, held against the target's laws.

    Args:
      asked: by position, of one target: ``final`` and ``rows`` are the same in all.
      loss: a name in ``losses.BY_NAME``.
      whole: rates are then those of decoding: the target's most probable token may be outside of
        the draft vocabulary, and so may a part of p. Without it, for a fraction of the cost, p is
        the law over the draft vocabulary, at slots whose token is of it: a little too good.
    """
    final = asked[0].final
    # By the slot of the target's answer, all positions share a law.
    known = [back(one.known, one.ahead) for one in asked]
    rated = known if whole is None else [back(one.counts, one.ahead) for one in asked]
    outputs = [back(one.output, one.ahead) for one in asked]
    wanted = jnp.any(jnp.stack(rated), 0)

    def at(slots: Array) -> list[Judged]:
        arrays = final, outputs, known, rated
        here, *each = jax.tree.map(lambda x: rows_at(x, slots), arrays)
        law = _law(_logits(here, asked[0].rows), here, whole)
        return [
            _judged(law, one.matrix, *some, loss) for one, *some in zip(asked, *each, strict=True)
        ]

    found = where_needed(wanted, at)
    return [
        Judged(*(shift(x, one.ahead) for x in each)) for one, each in zip(asked, found, strict=True)
    ]


class _Law(NamedTuple):
    """The target's law at some slots ``[B, C]``.

    Attributes:
      taught: ``[B, C, Vd]``, over the draft vocabulary, which sums to 1: what a loss is of.
      probs: ``[B, C, Vd]``, what rates are of.
      likely: bool ``[B, C, Vd]``, the most probable tokens; none, where they are outside.
    """

    taught: Array
    probs: Array
    likely: Array


def _law(logits: Array, final: Array, whole: Whole | None) -> _Law:
    taught = jax.nn.softmax(logits)
    if whole is None:
        return _Law(taught, taught, taught == jnp.max(taught, -1, keepdims=True))
    everything = _logits(final, whole.matrix)
    inside = everything[..., whole.ids]
    probs = jnp.exp(inside - jax.nn.logsumexp(everything, -1, keepdims=True))
    return _Law(taught, probs, inside == jnp.max(everything, -1, keepdims=True))


def _judged(
    law: _Law, matrix: Array, output: Array, known: Array, rated: Array, loss: str
) -> Judged:
    """One position's answers at some slots ``[B, C]``, by the slot of the target's answer."""
    logits = _logits(output, matrix)
    # An argmax would cost several times as much as this on a CPU.
    best = jnp.max(jnp.where(law.likely, logits, -jnp.inf), -1) == jnp.max(logits, -1)
    each = losses.BY_NAME[loss](law.taught, logits)
    both = lax.stop_gradient(losses.overlap(law.probs, logits))
    return Judged(jnp.where(known, each, 0), rated & best, jnp.where(rated, both, 0))


def objective(
    asked: Sequence[Asked],
    *,
    loss: str,
    decay: float,
    feature_weight: float = 0.0,
    whole: Whole | None = None,
) -> tuple[Array, Sums]:
    """The loss of all positions of a draft, and what to report: ``summed``, of ``judge``."""
    return summed(asked, judge(asked, loss, whole), decay=decay, feature_weight=feature_weight)


def summed(
    asked: Sequence[Asked],
    judged: Sequence[Judged],
    *,
    decay: float,
    feature_weight: float = 0.0,
) -> tuple[Array, Sums]:
    """Sums over slots and positions.

    Tokens outside the draft vocabulary have no answer in it: they don't count in the loss. In the
    rates they count as misses, or, where the target's whole law is known, as what they are.

    Args:
      asked: by position.
      judged: likewise.
      decay: position j, from 0, weighs ``decay**j`` (EAGLE-3's and Medusa's repositories: 0.8).
      feature_weight: weight of the feature regression, where a head has one (EAGLE-1's paper: 1,
        with the classification at 0.1; here the ratio of the two).

    Returns:
      The sum over slots, and sums: ``weight``; for each position j, from 1, ``loss_j`` (not
      decayed), ``top1_j`` (agreement with the target's most probable token), ``overlap_j`` (sum
      min(p, q)), ``loss_j_weight``, ...; ``accept_length``: drafts accepted in a greedy round of
      this many positions, from the agreement of all positions up to each.
    """
    weight = jnp.sum(asked[0].counts, dtype=jnp.float32)
    total, sums = jnp.zeros([], jnp.float32), {"weight": weight}
    alive, length = asked[0].counts, jnp.zeros([], jnp.float32)
    for number, (one, worth) in enumerate(zip(asked, judged, strict=True)):
        each = worth.loss
        if one.regresses:
            apart = losses.smooth_l1(one.output, shift(one.final, one.ahead))
            each = each + feature_weight * jnp.where(one.known, apart, 0)
        here = jnp.sum(each)
        total = total + decay**number * here
        alive = alive & worth.hit
        length = length + jnp.sum(alive, dtype=jnp.float32)
        known, count = (jnp.sum(x, dtype=jnp.float32) for x in (one.known, one.counts))
        hits, both = jnp.sum(worth.hit, dtype=jnp.float32), jnp.sum(worth.overlap)
        for name, value, of in (
            ("loss", here, known),
            ("top1", hits, count),
            ("overlap", both, count),
        ):
            sums |= {f"{name}_{number + 1}": value, f"{name}_{number + 1}_weight": of}
    return total, sums | {"accept_length": length}


def _logits(x: Array, matrix: Array) -> Array:
    return jnp.matmul(x.astype(matrix.dtype), matrix, preferred_element_type=jnp.float32)
