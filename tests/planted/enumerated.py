"""Faults of rules in law form, by enumeration: no sampling, no noise, no loop."""

from __future__ import annotations

import jax
import numpy as np

from specjax.verify import law
from tests.enumeration import KINDS, Instance, emitted_law, iid, make, target_law
from tests.planted import laws

IID = iid(laws.P, laws.Q, laws.K)
CASES = {"iid": IID} | {kind: make(0, laws.VOCAB, laws.K, **KINDS[kind]) for kind in KINDS}


def deviation(rule: law.Rule, case: Instance) -> float:
    """The largest error in the probability of any k + 1 tokens."""

    def fresh(*row: jax.Array) -> law.Law:  # a program of its own, traced with what is patched now
        return rule(*row)

    with jax.enable_x64(True):
        return float(np.max(np.abs(emitted_law(fresh, case)[0] - target_law(case))))
