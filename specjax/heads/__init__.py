"""Trainable heads that draft for a frozen target, and their checkpoint formats."""

from specjax.heads.eagle import EagleConfig, EagleHead
from specjax.heads.medusa import MedusaConfig, MedusaHeads

__all__ = ["EagleConfig", "EagleHead", "MedusaConfig", "MedusaHeads"]
