"""Greedy verification: accept while the draft is the target's argmax."""

from __future__ import annotations

from jax import Array

from specjax import keys
from specjax.draft import Draft, Verdict
from specjax.verify.base import Verifier, walk
from specjax.warp import Sampling


def _verify(draft: Draft, logits: Array, sampling: Sampling, noise: keys.Noise) -> Verdict:
    del sampling, noise  # argmax of the logits: no softmax, no randomness
    return walk(draft, keys.argmax(logits))


greedy = Verifier(_verify, "greedy", greedy=True)
