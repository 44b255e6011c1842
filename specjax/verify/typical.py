"""Typical acceptance (Cai et al. 2024, "Medusa", section 3.3.1). Lossy: not the target's law.

A token stays when the target finds it likely enough, ``p(x) > min(epsilon, delta exp(-H(p)))``: the
less certain the target is, the less is asked of a draft.
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
def typical(epsilon: float = 0.09, delta: float = 0.3) -> Verifier:
    """The typical-acceptance rule.

    Args:
      epsilon: no token at least this probable is refused; in (0, 1].
      delta: scale of the entropy-dependent threshold; above 0. Medusa takes sqrt(epsilon).

    Returns:
      The verifier, marked as lossy.

    Raises:
      ValueError: for values out of range.
    """
    if not 0 < epsilon <= 1:
        raise ValueError(f"typical: epsilon={epsilon}; it must be in (0, 1]")
    if not delta > 0:
        raise ValueError(f"typical: delta={delta}; it must be above 0")

    def verify(draft: Draft, logits: Array, sampling: warp.Sampling, noise: keys.Noise) -> Verdict:
        p = warp.apply(sampling, logits)
        entropy = -jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0), -1)
        threshold = jnp.minimum(epsilon, delta * jnp.exp(-entropy))
        p_x = jax.vmap(law.drafted)(p, draft.tokens)
        return keep_while(draft, p, p_x > threshold[:, :-1], noise)

    return Verifier(verify, f"typical(epsilon={epsilon}, delta={delta})", lossless=False)
