"""Verifiers: the rules that decide what stays of a draft. All of these keep the target's law."""

from specjax.verify.base import Verifier
from specjax.verify.greedy import greedy
from specjax.verify.match import match
from specjax.verify.token import token

BY_NAME = {verifier.name: verifier for verifier in (greedy, match, token)}

__all__ = ["BY_NAME", "Verifier", "greedy", "match", "token"]
