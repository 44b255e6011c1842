"""Trainable heads that draft for a frozen target, and their checkpoint formats."""

from specjax.heads.eagle import EagleConfig, EagleHead

__all__ = ["EagleConfig", "EagleHead"]
