"""specjax: exact speculative decoding for JAX."""

from specjax import drafters, policies, verify
from specjax.adapt import adapt, adaptive_params
from specjax.adaptive import AdaptiveParams, adaptive
from specjax.cache import KVCache
from specjax.calibrate import calibrate, calibrate_all
from specjax.draft import Params
from specjax.generate import generate_many
from specjax.sample import SampleOutput, decode, finish, sample, start, stream
from specjax.state import FinishReason
from specjax.target import Target
from specjax.warp import Sampling

__all__ = [
    "AdaptiveParams",
    "FinishReason",
    "KVCache",
    "Params",
    "SampleOutput",
    "Sampling",
    "Target",
    "adapt",
    "adaptive",
    "adaptive_params",
    "calibrate",
    "calibrate_all",
    "decode",
    "drafters",
    "finish",
    "generate_many",
    "policies",
    "sample",
    "start",
    "stream",
    "verify",
]
