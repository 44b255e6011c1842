"""The toy language: four tokens, sequences of four, so every probability can be written down.

What follows depends on the last token alone (a bigram model). The target's table P and the draft
model's Q are fixed by a seed; of the 256 sequences after the start token the exact probabilities
follow from P, with no sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import cache as kv
from specjax.drafters import draft_model
from specjax.target import Target

VOCAB = 4
LENGTH = 4
START = 0


class Tables(NamedTuple):
    """Probabilities float64 ``[V, V]``, row t being the law of what follows token t."""

    target: np.ndarray
    draft: np.ndarray


@cache
def tables() -> Tables:
    """The two tables: Q is 0.55 P + 0.45 D, so a draft is right often, but not always."""
    setup = np.random.default_rng(2)
    target = setup.dirichlet(np.ones(VOCAB), size=VOCAB)
    other = setup.dirichlet(np.ones(VOCAB), size=VOCAB)
    return Tables(target, 0.55 * target + 0.45 * other)


def log_table(probs: Any) -> Array:
    """Parameters of a bigram model: float32 logits ``[V, V]`` out of probabilities."""
    with np.errstate(divide="ignore"):  # probability 0 is a logit of -inf
        return jnp.asarray(np.log(np.asarray(probs, np.float64)), jnp.float32)


class BigramCache(NamedTuple):
    """What a bigram model must remember of the past: nothing but its length, int32 ``[B]``."""

    length: Array


@cache
def bigram(vocab: int = VOCAB, name: str = "bigram") -> Target:
    """A target whose parameters are a table of logits ``[V, V]`` by the last token."""

    def init_cache(batch: int, capacity: int, dtype: Any) -> BigramCache:
        del capacity, dtype
        return BigramCache(jnp.zeros([batch], jnp.int32))

    def apply(
        params: Array,
        tokens: Array,
        cache: BigramCache,
        *,
        positions: Array | None = None,
        mask: Array | None = None,
        layers: Sequence[int] = (),
    ) -> tuple[Array, None, BigramCache]:
        del positions, mask
        assert not layers, "a bigram model has no features"
        return params[tokens], None, BigramCache(cache.length + tokens.shape[1])

    def keep(cache: BigramCache, start: Array, path: Array) -> BigramCache:
        del start, path
        return cache

    return Target(init_cache, apply, kv.rollback, vocab, keep=keep, name=name)


def arguments(k: int) -> dict[str, Any]:
    """What ``specjax.sample`` needs to draft k tokens a round in the toy language."""
    drafter = draft_model(bigram(), k)
    return {"drafter": drafter, "drafter_params": log_table(tables().draft)}


def joint(probs: np.ndarray, length: int = LENGTH, start: int = START) -> np.ndarray:
    """The exact law of the next tokens of a bigram table, float64 ``[V ** length]``."""
    law, last = np.ones(1), np.array([start])
    for _ in range(length):
        law = (law[:, None] * probs[last]).reshape(-1)
        last = np.tile(np.arange(len(probs)), len(last))
    return law


def outcomes(tokens: Any, vocab: int = VOCAB) -> np.ndarray:
    """The number of each sequence ``[n, length]`` in the order of ``joint``, int ``[n]``."""
    tokens = np.asarray(tokens)
    return tokens @ (vocab ** np.arange(tokens.shape[1])[::-1])


def row_keys(seed: int, first: int, count: int) -> Array:
    """Keys of rows ``first`` to ``first + count``: as if all rows had been one batch."""
    rows = jnp.arange(first, first + count, dtype=jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), rows)
