"""Verifiers: the rules that decide what stays of a draft.

All keep the target's law but ``typical`` and ``relaxed``, which say so (``Verifier.lossless``).
"""

from specjax.verify.base import Verifier
from specjax.verify.block import block
from specjax.verify.coupled import coupled
from specjax.verify.greedy import greedy
from specjax.verify.match import match
from specjax.verify.relaxed import relaxed
from specjax.verify.token import token
from specjax.verify.typical import typical

# As the command line has them; who chooses a lossy one is told (``lossy.warning``).
BY_NAME = {
    **{rule.name: rule for rule in (greedy, match, coupled, token, block)},
    "typical": typical(),
}

__all__ = [
    "BY_NAME",
    "Verifier",
    "block",
    "coupled",
    "greedy",
    "match",
    "relaxed",
    "token",
    "typical",
]
