"""The training objective of EAGLE heads: what decoding will ask of them, at every slot at once.

At slot s the head reads the target's features f_s and the token x_{s+1}, and is asked for x_{s+2}.
*Training-time test* (EAGLE-3, arXiv:2503.01840, section 3.2) then feeds its output back: in step j
it stands at slot s + j of a draft that began at s, reads its own last output and x_{s+1+j}, and is
asked for x_{s+2+j}; it attends to the true slots up to s and to its own earlier steps. All slots
take step j together, so tokens, labels and mask shift left *together* by one a step. Slots whose
later answers nobody needs (those of prompts, say) take the first step alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.heads.eagle import Attend, EagleConfig, EagleHead
from specjax.models import rope
from specjax.models.transformer import embed_tokens
from train.asked import Asked, rows_at, shift, supervised, where_needed
from train.features import visible

_QUERIES = 128  # slots that attend at a time


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
    block = _Block(config, params)
    first = _First(visible(slots.segment))
    matrix = params["head"] if config.own_head else rows
    # Two on from the slot is the token that the first step is asked for.
    where = [supervised(slots.mask, slots.segment, slots.known, 2 + step) for step in range(steps)]
    with jax.named_scope("draft_step_1"):
        output, hidden = block(slots, None, 0, block.fuse(slots.features), first)
    outputs = [output]
    if steps > 1:
        needed = jnp.any(jnp.stack([known for _, known in where[1:]]), 0)

        def later(chosen: Array) -> list[Array]:
            attend, fed, out = _Later(first, chosen), rows_at(hidden, chosen), []
            for step in range(1, steps):
                with jax.named_scope(f"draft_step_{step + 1}"):
                    output, fed = block(slots, chosen, step, fed, attend)
                out.append(output)
            return out

        outputs += where_needed(needed, later)
    return [
        Asked(*one, output, matrix, slots.final, rows, 1 + step, regresses=config.version == 1)
        for step, (one, output) in enumerate(zip(where, outputs, strict=True))
    ]


class _Block:
    """The head's block over slots, at a step of the draft."""

    def __init__(self, config: EagleConfig, params: Any):
        self._model, self._variables = EagleHead(config), {"params": params}
        self._freq = rope.frequencies(config.rope, config.head_dim)

    def fuse(self, features: Array) -> Array:
        out: Any = self._model.apply(self._variables, features, method=EagleHead.fuse)
        return out

    def __call__(
        self, slots: Slots, chosen: Array | None, step: int, hidden: Array, attend: Attend
    ) -> tuple[Array, Array]:
        """Output and what is fed back, ``[B, C, W]``; of all slots where none are ``chosen``."""
        position, embedded = slots.position, shift(slots.embedded, 1 + step)
        if chosen is not None:
            position, embedded = rows_at(position, chosen), rows_at(embedded, chosen)
        cos, sin = rope.cos_sin(position + jnp.int32(step), self._freq)
        arguments: Any = embedded, hidden, cos, sin, attend
        out: Any = self._model.apply(self._variables, *arguments, method=EagleHead.step)
        return out


class _First:
    """Attention of the first step, over the slots up to each in its document."""

    def __init__(self, mask: Array):
        self.mask = mask  # [B, T, T]
        self.keys = self.values = jnp.zeros([])

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        self.keys, self.values = _for_heads(q, k), _for_heads(q, v)
        out = []
        for start in range(0, q.shape[1], _QUERIES):  # none sees the slots behind it
            end = min(start + _QUERIES, q.shape[1])
            seen = self.keys[:, :end], self.values[:, :end], self.mask[:, start:end, :end]
            out.append(_attended(q[:, start:end], *seen, []))
        return jnp.concatenate(out, 1)


class _Later:
    """Attention of further steps: what the first one saw, and each slot's own steps since."""

    def __init__(self, first: _First, chosen: Array):
        self._first, self._mask = first, rows_at(first.mask, chosen)
        self._own: list[tuple[Array, Array]] = []

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        self._own.append((_for_heads(q, k), _for_heads(q, v)))
        return _attended(q, self._first.keys, self._first.values, self._mask, self._own)


def _for_heads(q: Array, x: Array) -> Array:
    """Keys or values ``[B, T, K, D]`` once for each query head."""
    return jnp.repeat(x, q.shape[2] // x.shape[2], 2)


def _attended(
    q: Array, keys: Array, values: Array, mask: Array, own: Sequence[tuple[Array, Array]]
) -> Array:
    """Softmax attention over slots and over each query's own pairs: ``[B, C, H, D]``.

    Args:
      q: ``[B, C, H, D]``, scaled.
      keys: ``[B, S, H, D]``.
      values: the same.
      mask: bool ``[B, C, S]``.
      own: keys and values ``[B, C, H, D]`` that only the query in their place sees.
    """
    scores = jnp.einsum("bqhd,bshd->bhqs", q, keys)
    scores = [jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)]
    scores += [jnp.einsum("bqhd,bqhd->bhq", q, k)[..., None] for k, _ in own]
    weights = jax.nn.softmax(jnp.concatenate(scores, -1))
    slots = keys.shape[1]
    out = jnp.einsum("bhqs,bshd->bqhd", weights[..., :slots], values)
    for number, (_, v) in enumerate(own):
        out = out + weights[..., slots + number].swapaxes(1, 2)[..., None] * v
    return out
