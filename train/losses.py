"""Divergences between the target's p and the drafter's q over the draft vocabulary.

Each takes ``p [..., Vd]``, the target's probabilities, and ``logits [..., Vd]``, the drafter's, and
gives float32 ``[...]``. What matters in use is the acceptance rate, sum min(p, q) when sampling
(Leviathan et al. 2023, arXiv:2211.17192, eq. 3) and the top-1 agreement when greedy.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

_TINY = 1e-9


def cross_entropy(p: Array, logits: Array) -> Array:
    """-sum p log q: EAGLE's classification loss (arXiv:2401.15077, section 3.2)."""
    return jax.nn.logsumexp(logits, -1) - jnp.sum(p * logits, -1)  # p sums to 1


def forward_kl(p: Array, logits: Array) -> Array:
    """Sum p log(p / q): cross entropy less the part that no drafter can help."""
    return cross_entropy(p, logits) + jnp.sum(p * jnp.log(p + _TINY), -1)


def reverse_kl(p: Array, logits: Array) -> Array:
    """Sum q log(q / p): seeks one mode (DistillSpec, arXiv:2310.08461)."""
    log_q = jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(log_q) * (log_q - jnp.log(p + _TINY)), -1)


def total_variation(p: Array, logits: Array) -> Array:
    """1 - sum min(p, q): the rejection rate itself (DistillSpec)."""
    return 1.0 - overlap(p, logits)


def lk(p: Array, logits: Array) -> Array:
    """-log sum min(p, q): the rejection rate's surrogate that SpecForge calls LK."""
    return -jnp.log(overlap(p, logits) + _TINY)


def lk_hybrid(p: Array, logits: Array) -> Array:
    """Forward KL where little is accepted, total variation where much is.

    ``a * TV + (1 - a) * KL`` with a = sum min(p, q) held constant: KL has a gradient everywhere, TV
    the one that counts.
    """
    rate = jax.lax.stop_gradient(overlap(p, logits))
    return rate * total_variation(p, logits) + (1.0 - rate) * forward_kl(p, logits)


def overlap(p: Array, logits: Array) -> Array:
    """Sum min(p, q): the rate at which a drawn draft token is accepted."""
    return jnp.sum(jnp.minimum(p, jax.nn.softmax(logits)), -1)


def smooth_l1(x: Array, y: Array) -> Array:
    """Huber's loss with threshold 1, averaged over the last axis: EAGLE-1's feature regression."""
    gap = jnp.abs((x - y).astype(jnp.float32))
    return jnp.mean(jnp.where(gap < 1, 0.5 * gap**2, gap - 0.5), -1)


BY_NAME = {
    "ce": cross_entropy,
    "kl": forward_kl,
    "reverse_kl": reverse_kl,
    "tv": total_variation,
    "lk": lk,
    "lk_hybrid": lk_hybrid,
}
