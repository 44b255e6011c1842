"""The training objective of EAGLE heads: what decoding will ask of them, at every slot at once.

At slot s the head reads the target's features f_s and the token x_{s+1}, and is asked for x_{s+2}.
*Training-time test* (EAGLE-3, arXiv:2503.01840, section 3.2) then feeds its output back: in step j
it stands at slot s + j of a draft that began at s, reads its own last output and x_{s+1+j}, and is
asked for x_{s+2+j}; it attends to the true slots up to s and to its own earlier steps. All slots
take step j together, so tokens, labels and mask shift left *together* by one a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.heads.eagle import EagleConfig, EagleHead
from specjax.models import rope
from specjax.models.transformer import embed_tokens
from train import losses
from train.features import visible

Sums = dict[str, Array]


class Slots(NamedTuple):
    """What the objective knows of each slot of packed rows.

    Attributes:
      tokens: int32 ``[B, T]``.
      mask: bool ``[B, T]``, tokens that count when they are predicted.
      segment: int32 ``[B, T]``, 0 in the padding.
      position: int32 ``[B, T]``.
      known: bool ``[B, T]``, tokens of the draft vocabulary.
      features: ``[B, T, F]``, what the head reads.
      embedded: ``[B, T, Wt]``, the target's embedding of the tokens.
      final: ``[B, T, Wt]``, the target's stream after the final norm.
    """

    tokens: Array
    mask: Array
    segment: Array
    position: Array
    known: Array
    features: Array
    embedded: Array
    final: Array


def slots_of(
    config: EagleConfig, embed: Array, known: Array, rows: Mapping[str, Array], streams: Array
) -> Slots:
    """The slots of packed rows.

    Args:
      config: the head's.
      embed: ``[V, Wt]``, the target's embedding, whose dtype they take.
      known: bool ``[V]``, the tokens of the draft vocabulary.
      rows: ``tokens``, ``mask``, ``segment`` and ``position`` ``[B, T]``.
      streams: ``[B, T, F + Wt]``: the head's layers, and ``features.FINAL``.
    """
    read, final = jnp.split(streams.astype(embed.dtype), [config.feature_width], -1)
    tokens = rows["tokens"]
    return Slots(
        tokens=tokens,
        mask=rows["mask"],
        segment=rows["segment"],
        position=rows["position"],
        known=known[tokens],
        features=read,
        embedded=embed_tokens({"embed": embed}, tokens),
        final=final,
    )


class Asked(NamedTuple):
    """One step's questions and answers.

    Attributes:
      counts: bool ``[B, T]``: the token asked for is supervised and of the same document.
      known: bool ``[B, T]``: and of the draft vocabulary.
      probs: float32 ``[B, T, Vd]``, the target's over the draft vocabulary.
      logits: float32 ``[B, T, Vd]``, the head's.
      output: ``[B, T, W]``, the head's output.
      wanted: ``[B, T, Wt]``, the target's stream after the final norm that output stands for.
    """

    counts: Array
    known: Array
    probs: Array
    logits: Array
    output: Array
    wanted: Array


def shift(x: Array, by: int) -> Array:
    """``x[:, s + by]`` at slot s; zeros where the row ends."""
    pad = ((0, 0), (0, by)) + ((0, 0),) * (x.ndim - 2)
    return jnp.pad(x, pad)[:, by:]


def unroll(config: EagleConfig, params: Any, rows: Array, slots: Slots, steps: int) -> list[Asked]:
    """Runs the head over ``steps`` steps of training-time test.

    Args:
      config: the head's.
      params: its parameters.
      rows: ``[Wt, Vd]``, the target's output matrix at the draft vocabulary.
      slots: the packed rows.
      steps: draft steps, at least 1.

    Returns:
      One entry a step.
    """
    model, variables = EagleHead(config), {"params": params}
    freq = rope.frequencies(config.rope, config.head_dim)
    probs = jax.nn.softmax((slots.final @ rows).astype(jnp.float32))
    hidden: Any = model.apply(variables, slots.features, method=EagleHead.fuse)
    attention, out = _Attention(visible(slots.segment)), []
    for step in range(steps):
        with jax.named_scope(f"draft_step_{step + 1}"):
            cos, sin = rope.cos_sin(slots.position + jnp.int32(step), freq)
            arguments: Any = shift(slots.embedded, 1 + step), hidden, cos, sin, attention
            ran: Any = model.apply(variables, *arguments, method=EagleHead.step)
            output, hidden = ran
            logits: Any = model.apply(variables, output, (rows, None), method=EagleHead.logits)
        ahead = 2 + step  # the token asked for
        same = (shift(slots.segment, ahead) == slots.segment) & (slots.segment > 0)
        counts = shift(slots.mask, ahead) & same
        known = counts & shift(slots.known, ahead)
        wanted = shift(slots.final, 1 + step)
        out.append(Asked(counts, known, shift(probs, 1 + step), logits, output, wanted))
    return out


class _Attention:
    """``Attend`` for the steps in turn: causal over the first, and each slot's own later steps."""

    def __init__(self, mask: Array):
        self._mask = mask[:, None]  # [B, 1, T, T]
        self._first: tuple[Array, Array] | None = None
        self._later: list[tuple[Array, Array]] = []

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        group = q.shape[2] // k.shape[2]
        k, v = jnp.repeat(k, group, 2), jnp.repeat(v, group, 2)  # [B, T, H, D]
        if self._first is None:
            self._first = k, v
        else:
            self._later.append((k, v))
        first_k, first_v = self._first
        scores = jnp.einsum("bqhd,bshd->bhqs", q, first_k)
        scores = [jnp.where(self._mask, scores, jnp.finfo(scores.dtype).min)]
        scores += [jnp.einsum("bqhd,bqhd->bhq", q, k)[..., None] for k, _ in self._later]
        weights = jax.nn.softmax(jnp.concatenate(scores, -1))
        length = q.shape[1]
        out = jnp.einsum("bhqs,bshd->bqhd", weights[..., :length], first_v)
        for number, (_, later_v) in enumerate(self._later):
            own = weights[..., length + number].swapaxes(1, 2)  # [B, T, H]
            out = out + own[..., None] * later_v
        return out


def objective(
    config: EagleConfig,
    asked: list[Asked],
    *,
    loss: str,
    decay: float,
    feature_weight: float,
) -> tuple[Array, Sums]:
    """The loss of all steps, and what to report.

    Positions whose token is outside the draft vocabulary have no answer in it: they don't count in
    the loss, and count as misses in the rates.

    Args:
      config: the head's.
      asked: of ``unroll``.
      loss: a name in ``losses.BY_NAME``.
      decay: step j weighs ``decay**j`` (EAGLE-3's repository: 0.8).
      feature_weight: weight of the feature regression of version 1 (its paper: 1, with the
        classification at 0.1; here the ratio of the two).

    Returns:
      The sum over positions, and sums: ``weight``; for each step j ``top1_j`` (agreement with the
      target's most probable token), ``overlap_j`` (sum min(p, q)), ``top1_j_weight``, ...;
      ``accept_length``: drafts accepted in a greedy round of this many steps, from the agreement of
      all steps up to each.
    """
    weight = jnp.sum(asked[0].counts, dtype=jnp.float32)
    total, sums = jnp.zeros([], jnp.float32), {"weight": weight}
    alive, length = asked[0].counts, jnp.zeros([], jnp.float32)
    for number, one in enumerate(asked):
        each = losses.BY_NAME[loss](one.probs, one.logits)
        if config.version == 1:
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
