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
from train.asked import Asked, shift, supervised
from train.features import visible


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
        # Two on from the slot is the token that the first step is asked for.
        where = supervised(slots.mask, slots.segment, slots.known, 2 + step)
        # Version 1 is to predict the features themselves as well.
        features = (output, shift(slots.final, 1 + step)) if config.version == 1 else ()
        out.append(Asked(*where, shift(probs, 1 + step), logits, *features))
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
