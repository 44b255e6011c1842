"""Models: one transformer for the Llama family, and loading it."""

from specjax.models.config import ModelConfig, RopeConfig
from specjax.models.linear import drop_panels
from specjax.models.loading import load
from specjax.models.transformer import init_params, transformer_target

__all__ = ["ModelConfig", "RopeConfig", "drop_panels", "init_params", "load", "transformer_target"]
