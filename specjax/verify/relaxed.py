"""Relaxed acceptance (as TensorRT-LLM has it for reasoning models). Lossy: not the target's law.

A token stays when it is among the target's ``top_n`` most probable ones and its probability lies
within ``margin`` of the most probable one's.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from specjax import keys, warp
from specjax.draft import Draft, Verdict
from specjax.factory import factory
from specjax.verify import law
from specjax.verify.base import Verifier
from specjax.verify.lossy import keep_while


@factory
def relaxed(top_n: int = 5, margin: float = 0.3) -> Verifier:
    """The relaxed-acceptance rule.

    Args:
      top_n: ranks that are acceptable; at least 1.
      margin: most that the token's probability may lack to the most probable one's; in [0, 1].

    Returns:
      The verifier, marked as lossy.

    Raises:
      ValueError: for values out of range.
    """
    if top_n < 1:
        raise ValueError(f"relaxed: top_n={top_n}; it must be at least 1")
    if not 0 <= margin <= 1:
        raise ValueError(f"relaxed: margin={margin}; it must be in [0, 1]")

    def verify(draft: Draft, logits: Array, sampling: warp.Sampling, noise: keys.Noise) -> Verdict:
        p = warp.apply(sampling, logits)
        p_x = jax.vmap(law.drafted)(p, draft.tokens)
        above = jnp.sum(p[:, :-1] > p_x[:, :, None], -1, dtype=jnp.int32)
        near = p_x >= jnp.max(p[:, :-1], -1) - margin
        return keep_while(draft, p, (above < top_n) & near & (p_x > 0), noise)

    return Verifier(verify, f"relaxed(top_n={top_n}, margin={margin})", lossless=False)
