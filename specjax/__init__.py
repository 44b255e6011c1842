"""specjax: exact speculative decoding for JAX."""

from specjax import drafters, verify
from specjax.cache import KVCache
from specjax.draft import Params
from specjax.generate import generate_many
from specjax.round import FinishReason
from specjax.sample import SampleOutput, decode, finish, sample, start, stream
from specjax.target import Target
from specjax.warp import Sampling

__all__ = [
    "FinishReason",
    "KVCache",
    "Params",
    "SampleOutput",
    "Sampling",
    "Target",
    "decode",
    "drafters",
    "finish",
    "generate_many",
    "sample",
    "start",
    "stream",
    "verify",
]
