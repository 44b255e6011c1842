"""Coupled verification: match, with a drafter that draws with the target's own noise.

Drafter and target take ``argmax(log prob + g)`` with the *same* Gumbel noise g, keyed by row and
absolute position, and the draft stays while the two are equal. The output is token for token that
of plain sampling with the same key, whatever the drafter, k or batch; and where q is near p the
draft is right far more often than with noise of its own. The acceptance of one token is
``sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)``, at least (1 - TV) / (1 + TV) (Daliri et al. 2024,
"Coupling without Communication and Drafter-Invariant Speculative Decoding").

Shared noise is correct only with "accept while equal", never with a test of p / q.
"""

from __future__ import annotations

from specjax.verify.match import match

coupled = match._replace(name="coupled", coupled=True)
