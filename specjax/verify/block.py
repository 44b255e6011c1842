"""Block verification (Sun et al. 2025, "Block Verification Accelerates Speculative Decoding").

Judges the draft as a whole: as exact as token verification, and in expectation it never accepts
fewer tokens.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax import Array, lax

from specjax.verify import law
from specjax.verify.base import Verifier


def rule(tokens: Array, length: Array, p: Array, q: Array | None, given: Array) -> law.Law:
    """The law of block verification for one row (algorithm 2; shapes: see ``law.Rule``).

    With ``w_0 = 1`` and ``w_i = min(1, w_{i-1} p(x_i) / q(x_i))``, the last accepted node is the
    largest i with ``u_i < h_i``: every node is judged, it is not a left-to-right stop. Here
    ``h_0 = 1`` and ``h_i = s_i / (s_i + 1 - w_i)`` with ``s_i = sum_x relu(w_i p_i(x) - q_i(x))``,
    p_i and q_i being the laws of what follows node i. Where the draft ends q is zero, so ``h = w``.
    A given token is a q with all its mass on that token.
    """
    node = jnp.arange(p.shape[0], dtype=jnp.int32)
    one = jnp.ones([1], p.dtype)
    ratio = law.ratio(tokens, length, p, q, given)
    weight = jnp.concatenate([one, lax.scan(_run, one[0], ratio)[1]]) if len(ratio) else one
    scaled = weight[:, None] * p
    left = jnp.sum(scaled if q is None else jnp.maximum(scaled - q, 0), 1)
    refused = jnp.where(given & (node[1:] <= length), law.drafted(scaled, tokens), 0)
    left = jnp.maximum(left - jnp.pad(refused, (0, 1)), 0)
    total = left + (1 - weight)  # 1 - weight first: at weight 1 the rest must be left / left
    accept = jnp.where(total > 0, left / jnp.where(total > 0, total, 1), 1)
    accept = jnp.where(node == 0, 1, jnp.where(node <= length, accept, 0))
    none_later = jnp.append(jnp.cumprod(1 - accept[::-1])[::-1][1:], one)
    return law.Law(accept * none_later, weight)


def _run(weight: Array, ratio: Array) -> tuple[Array, Array]:
    weight = jnp.minimum(weight * ratio, 1)
    return weight, weight


block = Verifier(partial(law.verify, rule), "block", uses_q=True)
