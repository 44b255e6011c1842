"""The wrong example: token verification whose correction is drawn from plain p.

The mistake everyone makes once. The token after a rejection must come from what the draft left
over, ``relu(p - q)``; drawn from p itself, tokens that the drafter underrates come out too rarely.
It has no place in the library: it shows that the evaluations notice.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax import keys, warp
from specjax.draft import Draft, Verdict
from specjax.verify import Verifier, law
from specjax.verify.base import chain_path
from specjax.verify.token import rule


def _verify(draft: Draft, logits: jax.Array, sampling: warp.Sampling, noise: keys.Noise) -> Verdict:
    p = warp.apply(sampling, logits)
    q, given = law.drafted_from(draft)
    stop, _ = jax.vmap(rule, (0, 0, 0, None if q is None else 0, 0))(
        draft.tokens, draft.length, p, q, given
    )
    node = keys.first_above(stop, keys.uniforms(noise, 0, keys.ACCEPT, 1)[:, 0])
    plain = jnp.take_along_axis(p, node[:, None, None], 1)[:, 0]  # the mistake
    following = keys.draw(plain, keys.uniforms(noise, 0, keys.RESIDUAL, 2))
    return Verdict(node, chain_path(logits), following)


wrong = Verifier(_verify, "wrong", uses_q=True, lossless=False)
