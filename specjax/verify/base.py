"""The contract of a verifier, and the walk that target-first rules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.draft import Draft, Verdict


class Verifier(NamedTuple):
    """A rule that decides how much of a draft stays, and the token that follows.

    Attributes:
      verify: ``(draft, logits [B, N+1, V], sampling, noise) -> Verdict``.
      name: for tables and the command line.
      greedy: decides on logits alone; no temperature, no noise.
      uses_q: reads ``Draft.probs``; otherwise drafters need not keep them.
      coupled: drafters draw with the target's noise.
      lossless: the output follows the target's distribution exactly.
    """

    verify: Callable[..., Verdict]
    name: str
    greedy: bool = False
    uses_q: bool = False
    coupled: bool = False
    lossless: bool = True


def walk(draft: Draft, drawn: Array) -> Verdict:
    """Target-first verification: follow the draft while it equals the target's own tokens.

    Lossless for any draft that does not depend on the noise ``drawn`` came from.

    Args:
      draft: a chain.
      drawn: int32 ``[B, N+1]``, the target's token after each node.

    Returns:
      The longest run of equal tokens, and the target's token after it.
    """
    accepted = run_length(draft.tokens == drawn[:, :-1], draft.length)
    token = jnp.take_along_axis(drawn, accepted[:, None], 1)[:, 0]
    return Verdict(accepted, chain_path(drawn), token)


def run_length(keep: Array, length: Array) -> Array:
    """How many tokens pass before the first that fails or the draft ends.

    Args:
      keep: bool ``[B, N]``, which draft tokens pass.
      length: int32 ``[B]``, of the drafts.

    Returns:
      int32 ``[B]``.
    """
    keep = keep & (jnp.arange(keep.shape[1], dtype=jnp.int32) < length[:, None])
    return jnp.sum(jnp.cumprod(keep.astype(jnp.int32), 1), 1, dtype=jnp.int32)


def chain_path(nodes: Array) -> Array:
    """The path of a chain, int32 ``[B, N+1]``: every node after the one before it."""
    return jnp.broadcast_to(jnp.arange(nodes.shape[1], dtype=jnp.int32), nodes.shape[:2])
