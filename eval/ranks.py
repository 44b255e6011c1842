"""How often a target's token was among a head's best guesses, by position in the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval.chat import Chat
from eval.models import Head
from specjax.heads import EagleConfig
from specjax.heads.formats import HeadConfig
from specjax.models.transformer import output_rows
from train import eagle, features, medusa
from train.asked import Asked, shift

RANKS = 5


def count(
    chat: Chat, head: Head, k: int, tokens: Sequence[int], start: int
) -> tuple[np.ndarray, np.ndarray]:
    """Reads a prompt with its answer again, and asks the head at every slot.

    Args:
      chat: the target.
      head: the head.
      k: positions of a draft.
      tokens: prompt and answer.
      start: the prompt's length.

    Returns:
      int ``[2, k, RANKS]``, how often the answer's token was among the head's 1, 2, ... best: where
      all earlier guesses were right, and anywhere; int ``[2, k]``, how often it was asked.
    """
    length = -(-len(tokens) // 256) * 256
    pad = length - len(tokens)
    padded = np.pad(np.array(tokens, np.int32), (0, pad))[None]
    segment = np.pad(np.ones(len(tokens), np.int32), (0, pad))[None]
    mask = (np.arange(length) >= start)[None] & (segment > 0)
    position = np.arange(length, dtype=np.int32)[None]
    rows = {"tokens": padded, "segment": segment, "position": position, "mask": mask}
    ids = jnp.asarray(head.ids)
    hits, asked = _hits(chat.target, head.config, k, chat.params, head.weights, ids, rows)
    return np.asarray(hits), np.asarray(asked)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _hits(
    target: Any,
    config: HeadConfig,
    k: int,
    target_params: Any,
    head: Any,
    ids: jax.Array,
    rows: Mapping[str, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Reads a document once: ``count``, on the device."""
    layers = (*config.layers, features.FINAL)
    streams = features.compute(target, layers, target_params, rows)
    alive, hits, asked = jnp.ones(rows["mask"].shape, bool), [], []
    for number, one in enumerate(_asked(config, k, target_params, head, ids, rows, streams)):
        alive = alive & one.counts
        best = ids[jax.lax.top_k(one.logits, RANKS)[1]]  # [1, T, RANKS]
        right = best == shift(rows["tokens"], 2 + number)[..., None]
        within = jnp.cumsum(right, -1) > 0
        where = jnp.stack([alive, one.counts])
        hits.append(jnp.sum(within & where[..., None], (1, 2)))
        asked.append(jnp.sum(where, (1, 2)))
        alive = alive & right[..., 0]
    return jnp.stack(hits, 1), jnp.stack(asked, 1)


def _asked(
    config: HeadConfig,
    k: int,
    target_params: Any,
    head: Any,
    ids: jax.Array,
    rows: Mapping[str, jax.Array],
    streams: jax.Array,
) -> list[Asked]:
    """The head's answers for the k positions of drafts from every slot."""
    matrix = output_rows(target_params, ids)
    table = target_params["embed"]
    known = jnp.zeros([table.shape[0]], bool).at[ids].set(True)
    if isinstance(config, EagleConfig):
        return eagle.unroll(
            config, head, matrix, eagle.slots_of(config, table, known, rows, streams), k
        )
    slots = medusa.slots_of(config, known, rows, streams)
    return medusa.unroll(config, head, matrix, slots)[:k]
