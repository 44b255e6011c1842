"""Prompt lookup: propose what followed the last tokens when they occurred before.

Needs no model; pays where the output copies from the prompt or from itself (Saxena 2023, "Prompt
Lookup Decoding"; Yang et al. 2023, "LLMA").
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.drafters.matching import last_tokens, matched_lengths, only_text
from specjax.factory import factory

MATCHES = ("recent", "first")


@factory
def ngram(
    k: int = 10,
    *,
    n_max: int = 3,
    n_min: int = 1,
    k_short: int | None = None,
    match: str = "recent",
) -> Drafter:
    """The n-gram drafter. Its state is empty: every draft is found in the tokens themselves.

    The longest match of the last n tokens wins, n from ``n_max`` down to ``n_min``; where nothing
    matches, nothing is drafted. A match whose continuation reaches the end of the text goes on
    through the draft itself, as if the text were periodic.

    Args:
      k: most tokens a draft holds.
      n_max: longest match that is looked for.
      n_min: shortest match that is trusted.
      k_short: tokens drafted after a match of fewer than ``n_max`` tokens; None: k. A long match
        is a better predictor, and a short draft costs a narrower pass.
      match: "recent" or "first", which of several equally long matches to follow.

    Returns:
      The drafter.

    Raises:
      ValueError: for values out of range.
    """
    if k < 1:
        raise ValueError(f"ngram: k={k}; it must be at least 1 (drafter=None decodes plainly)")
    if not 1 <= n_min <= n_max:
        raise ValueError(f"ngram: n_min={n_min}, n_max={n_max}; they must be 1 <= n_min <= n_max")
    if k_short is not None and not 1 <= k_short <= k:
        raise ValueError(f"ngram: k_short={k_short}; it must be 1 to k={k}, or None")
    if match not in MATCHES:
        raise ValueError(f"ngram: match={match!r}; it must be one of {MATCHES}")

    def init(params: Params, prefill: Prefill) -> tuple[()]:
        del params, prefill
        return ()

    def propose(
        params: Params, state: tuple[()], context: Context, limit: Array
    ) -> tuple[Draft, tuple[()], Any]:
        del params
        matched, source = _longest_match(context.tokens, context.length, n_max, match == "recent")
        period = jnp.maximum(context.length - source, 1)
        offset = jnp.arange(k, dtype=jnp.int32)
        slots = source[:, None] + offset % period[:, None]
        tokens = jnp.take_along_axis(context.tokens, slots, 1)
        wanted = jnp.where(matched == n_max, k, k_short or k)
        length = jnp.where(matched >= n_min, jnp.minimum(wanted, limit), 0)
        return Draft(tokens, length), state, context.cache

    def update(params: Params, state: tuple[()], context: Context, record: Record) -> tuple[()]:
        del params, context, record
        return state

    name = "prompt lookup" if n_max > 1 else "one-token lookup"
    settings = f"n_max={n_max}, n_min={n_min}, k_short={k_short}, match={match}"
    return Drafter(init, propose, update, num_nodes=k, name=name, settings=settings)


def _longest_match(tokens: Array, length: Array, n_max: int, recent: bool) -> tuple[Array, Array]:
    """Where the last tokens occurred before.

    Args:
      tokens: int32 ``[B, S]``.
      length: int32 ``[B]``.
      n_max: the longest match that counts.
      recent: prefer the last of equally long matches, else the first.

    Returns:
      The match's length ``[B]`` (0: none), and the slot ``[B]`` that follows it.
    """
    slot = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    last = last_tokens(tokens, length, n_max)
    matched = matched_lengths(only_text(tokens, length), last)
    best = jnp.max(matched, 1)
    is_best = matched == best[:, None]
    if recent:
        source = jnp.max(jnp.where(is_best, slot, 0), 1)
    else:
        source = jnp.min(jnp.where(is_best, slot, tokens.shape[1] - 1), 1)
    return best, source
