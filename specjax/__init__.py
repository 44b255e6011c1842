"""specjax: exact speculative decoding for JAX."""

from specjax import verify
from specjax.cache import KVCache
from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record, Verdict
from specjax.sample import SampleOutput, decode, finish, sample, start, stream
from specjax.target import Target
from specjax.verify import Verifier
from specjax.warp import Sampling

__all__ = [
    "Context",
    "Draft",
    "Drafter",
    "KVCache",
    "Params",
    "Prefill",
    "Record",
    "SampleOutput",
    "Sampling",
    "Target",
    "Verdict",
    "Verifier",
    "decode",
    "finish",
    "sample",
    "start",
    "stream",
    "verify",
]
