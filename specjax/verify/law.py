"""Rules as laws: a rule says where to stop and with which weight, and this file draws from it.

For one row, a rule is two vectors over the nodes 0..N: ``stop``, the distribution of the last
accepted node, and ``weight``. Given that node n was the last one, the next token follows

    normalise(relu(weight[n] * p[n] - q[n]))

with q a zero row where the draft ends (so the bonus token is the same expression) and where node
n + 1 was given; a refused given token has probability 0. Rules in this form can be enumerated to
1e-12 without drawing anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax import keys, warp
from specjax.draft import Draft, Verdict
from specjax.verify.base import chain_path


class Law(NamedTuple):
    """What a rule decides for one row.

    Attributes:
      stop: ``[N+1]``, the probability that node n is the last accepted one.
      weight: ``[N+1]``, the weight of p against q after it.
    """

    stop: Array
    weight: Array


# (tokens [N], length [], p [N+1, V], q [N+1, V] | None, given [N]) -> Law. q is zero in the rows of
# given nodes and from ``length`` on; None when every token was given.
Rule = Callable[[Array, Array, Array, Array | None, Array], Law]


def verify(
    rule: Rule, draft: Draft, logits: Array, sampling: warp.Sampling, noise: keys.Noise
) -> Verdict:
    """Draws a verdict from a rule's law.

    Args:
      rule: the rule.
      draft: a chain.
      logits: float32 ``[B, N+1, V]``.
      sampling: the active settings.
      noise: the round's noise.

    Returns:
      The verdict.
    """
    p = warp.apply(sampling, logits)
    q, given = drafted_from(draft)
    law = jax.vmap(rule, (0, 0, 0, None if q is None else 0, 0))(
        draft.tokens, draft.length, p, q, given
    )
    node = keys.first_above(law.stop, keys.uniforms(noise, 0, keys.ACCEPT, 1)[:, 0])
    follow = jax.vmap(residual, (0, 0, 0, 0, None if q is None else 0, 0, 0))
    weights = follow(node, law.weight, draft.tokens, p, q, given, draft.length)
    token = keys.draw(weights, keys.uniforms(noise, 0, keys.RESIDUAL, 2))
    return Verdict(node, chain_path(logits), token)


def drafted_from(draft: Draft) -> tuple[Array | None, Array]:
    """The q that rules see, and which nodes were given.

    A row that holds NaN or infinity (a drafter's logits can) is no law that a token could have been
    drawn from: it becomes zero, so that the token is refused and the target's p follows.

    Returns:
      ``q [B, N+1, V]`` with zero rows where nothing was drawn, or None; ``given`` bool ``[B, N]``.
    """
    if draft.probs is None:
        return None, jnp.ones(draft.tokens.shape, bool)
    nodes = draft.tokens.shape[1]
    given = jnp.zeros(draft.tokens.shape, bool) if draft.given is None else draft.given
    drawn = (jnp.arange(nodes, dtype=jnp.int32) < draft.length[:, None]) & ~given
    drawn = jnp.pad(drawn, ((0, 0), (0, 1)))  # nothing follows the last node
    drawn = drawn & jnp.isfinite(jnp.sum(draft.probs, -1))
    return jnp.where(drawn[:, :, None], draft.probs, 0), given


def ratio(tokens: Array, length: Array, p: Array, q: Array | None, given: Array) -> Array:
    """p(x) / q(x) of each draft token x; p(x) where it was given, 0 past ``length``.

    A drawn token can't have q(x) = 0, nor an id outside the vocabulary; such tokens get ratio 0.

    Returns:
      ``[N]``.
    """
    out = p_x = drafted(p, tokens)
    if q is not None:
        q_x = drafted(q, tokens)
        out = jnp.where(q_x > 0, p_x / jnp.where(q_x > 0, q_x, 1), 0)
        out = jnp.where(given, p_x, out)
    return jnp.where(jnp.arange(tokens.shape[0], dtype=jnp.int32) < length, out, 0)


def drafted(probs: Array, tokens: Array) -> Array:
    """The probability ``[N]`` that ``probs [N+1, V]`` gives each draft token; 0 outside the ids."""
    at = probs.at[jnp.arange(tokens.shape[0], dtype=jnp.int32), tokens]
    return at.get(mode="fill", fill_value=0, wrap_negative_indices=False)


def residual(
    node: Array,
    weight: Array,
    tokens: Array,
    p: Array,
    q: Array | None,
    given: Array,
    length: Array,
) -> Array:
    """Unnormalised weights of the token after the last accepted node, for one row.

    Where rounding leaves nothing (p and q equal to the last bit), the target's own p.

    Returns:
      ``[V]``.
    """
    p_node = p[node]
    last = tokens.shape[0]
    follower = jnp.minimum(node, last - 1)
    refused = (node < length) & given[follower] if last else jnp.zeros([], bool)
    rest = p_node if q is None else jnp.maximum(weight[node] * p_node - q[node], 0)
    if last:
        ids = jnp.arange(p.shape[1], dtype=jnp.int32)
        rest = jnp.where(refused & (ids == tokens[follower]), 0, rest)
    return jnp.where(jnp.any(rest > 0), rest, p_node)
