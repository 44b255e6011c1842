"""What the lossy rules share: a hard test on each draft token, then a token of the target's.

And a warning for who chooses one.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from specjax import keys
from specjax.draft import Draft, Verdict
from specjax.verify.base import Verifier, chain_path, run_length


def keep_while(draft: Draft, p: Array, keep: Array, noise: keys.Noise) -> Verdict:
    """Keeps the draft while a test holds; the token after it is drawn from p there.

    Args:
      draft: a chain.
      p: float32 ``[B, N+1, V]``.
      keep: bool ``[B, N]``, which draft tokens pass.
      noise: the round's noise.

    Returns:
      The verdict.
    """
    accepted = run_length(keep, draft.length)
    last = jnp.take_along_axis(p, accepted[:, None, None], 1)[:, 0]
    token = keys.draw(last, keys.uniforms(noise, 0, keys.RESIDUAL, 2))
    return Verdict(accepted, chain_path(p), token)


def warning(rule: Verifier) -> str | None:
    """A line for who chooses a rule that doesn't keep the target's distribution; None: it does."""
    if rule.lossless:
        return None
    return (
        f"warning: {rule.name} is lossy: what it samples does not follow the target's "
        "distribution, as an A/B against plain decoding would show; for outputs that do, take the "
        "verifier block or token"
    )
