"""Token verification (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

Each token is kept with probability min(1, p(x) / q(x)) until the first refusal.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax import Array

from specjax.verify import law
from specjax.verify.base import Verifier


def rule(tokens: Array, length: Array, p: Array, q: Array | None, given: Array) -> law.Law:
    """The law of token verification for one row (shapes: see ``law.Rule``)."""
    chance = jnp.minimum(law.ratio(tokens, length, p, q, given), 1)
    reached = jnp.cumprod(jnp.pad(chance, (1, 0), constant_values=1))
    stop = reached * (1 - jnp.pad(chance, (0, 1)))
    return law.Law(stop, jnp.ones_like(stop))


token = Verifier(partial(law.verify, rule), "token", uses_q=True)
