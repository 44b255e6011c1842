"""Timing-only verification: drafts are accepted at a fixed rate, whatever their tokens are.

It answers "how fast would a drafter of this acceptance be here?" before there is one. The output is
not the target's: ``lossless`` is False, and every row of a table says so.
"""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp

from specjax import keys, warp
from specjax.draft import Draft, Verdict
from specjax.verify import Verifier
from specjax.verify.base import chain_path, run_length
from specjax.verify.lossy import keep_while


@cache
def synthetic(alpha: float, greedy: bool = True) -> Verifier:
    """A verifier that accepts each judged draft token with probability ``alpha``.

    The token after the accepted run is the target's own, so that a round's work resembles that of
    the rule it stands for: an argmax of each node, or warping and a draw.

    Args:
      alpha: the acceptance rate, 0 to 1.
      greedy: stand for greedy verification, or for token verification.

    Returns:
      The verifier; equal arguments give the same object.

    Raises:
      ValueError: for an ``alpha`` out of range.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"synthetic: alpha={alpha}; it must be 0 to 1")

    def verify(draft: Draft, logits, sampling: warp.Sampling, noise: keys.Noise) -> Verdict:
        lucky = keys.uniforms(noise, 0, keys.ACCEPT, draft.tokens.shape[1]) < alpha
        if not greedy:
            return keep_while(draft, warp.apply(sampling, logits), lucky, noise)
        accepted = run_length(lucky, draft.length)
        token = jnp.take_along_axis(keys.argmax(logits), accepted[:, None], 1)[:, 0]
        return Verdict(accepted, chain_path(logits), token)

    name = f"synthetic {alpha:g}"
    return Verifier(verify, name, greedy=greedy, uses_q=not greedy, lossless=False)
