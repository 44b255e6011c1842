"""The loop of drafters that draw one token after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from specjax.draft import Context, Draft

Step = Callable[[Any, Array], tuple[Array, Any]]


def draw_chain(
    context: Context,
    limit: Array,
    k: int,
    logits: Array,
    state: Any,
    step: Step,
    ids: Array | None = None,
) -> tuple[Draft, Any]:
    """Draws up to k tokens, each from logits that saw the one before.

    Args:
      context: draws, under the active settings.
      limit: int32 ``[B]``, tokens of each row's draft, at most k.
      k: tokens a draft can hold.
      logits: ``[B, Vd]`` of the first token.
      state: what ``step`` carries on.
      step: ``(state, last [B, 1]) -> (logits [B, Vd] of the next token, state)``.
      ids: int32 ``[Vd]``, the target's ids of the logits; None: the logits are by them.

    Returns:
      The draft, and the state after the longest row's last step (its last token is not seen).
    """
    token, probs = context.draw(logits, 1, ids)
    tokens = jnp.zeros([token.shape[0], k], jnp.int32).at[:, 0].set(token)
    if probs is not None:
        shape = probs.shape[0], k + 1, probs.shape[1]
        probs = jnp.zeros(shape, probs.dtype).at[:, 0].set(probs)

    def body(carry: tuple) -> tuple:
        node, tokens, probs, state = carry
        logits, state = step(state, lax.dynamic_slice_in_dim(tokens, node - 1, 1, 1))
        token, q = context.draw(logits, node + 1, ids)
        tokens = tokens.at[:, node].set(token)
        return node + 1, tokens, None if q is None else probs.at[:, node].set(q), state

    carry = jnp.ones([], jnp.int32), tokens, probs, state
    carry = lax.while_loop(lambda carry: carry[0] < jnp.max(limit), body, carry)
    _, tokens, probs, state = carry
    return Draft(tokens, limit, probs), state
