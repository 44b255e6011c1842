"""Match verification: draw the target's own token at every node, accept while the draft equals it.

Exact for every draft, however it was made, and without q. The noise is keyed by absolute position,
so the output is token for token that of plain decoding with ``verifier=match`` and the same key.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from specjax import keys, warp
from specjax.draft import Draft, Verdict
from specjax.verify.base import Verifier, walk


def _verify(draft: Draft, logits: Array, sampling: warp.Sampling, noise: keys.Noise) -> Verdict:
    probs = warp.apply(sampling, logits)
    depths = jnp.arange(logits.shape[1], dtype=jnp.int32)
    gumbel = keys.target_gumbel(noise, depths, logits.shape[2])
    return walk(draft, keys.argmax(jnp.log(probs) + gumbel))


match = Verifier(_verify, "match")
