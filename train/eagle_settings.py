"""The settings of ``train.eagle_head``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from specjax.heads.eagle import EagleConfig
from specjax.models import ModelConfig
from train.losses import BY_NAME
from train.material import MaterialSettings, not_negative, read_settings

TARGET = "target"


@dataclasses.dataclass(frozen=True)
class EagleSettings(MaterialSettings):
    """What is trained, and how; on what: see ``MaterialSettings``.

    Attributes:
      version: 1 or 3.
      layers: streams of the target the head reads (i enters block i); version 1 reads (-1,).
      draft_vocab_size: the most frequent tokens the head drafts from; 0: all.
      own_head: train an output matrix; else use the target's rows, which are not shipped.
      ffn_width: hidden size of the head's feed-forward block; 0: the target's.
      norm_features: see ``EagleConfig``.
      norm_output: likewise.
      norm_before_residual: likewise.
      start: "target": from the target's last block, final norm and output rows; "random"; or the
        folder of a head to go on from.
      steps: training-time-test steps.
      eval_steps: the same in evaluation.
      loss: a name in ``losses.BY_NAME``.
      decay: weight of each further step's loss.
      feature_weight: version 1's weight of the feature regression, above 0; version 3 has none.
    """

    STARTS: ClassVar[tuple[str, ...]] = (TARGET, "random")

    version: int
    layers: tuple[int, ...]
    draft_vocab_size: int
    own_head: bool
    ffn_width: int
    norm_features: bool
    norm_output: bool
    norm_before_residual: bool
    steps: int
    eval_steps: int
    loss: str
    decay: float
    feature_weight: float

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "eval_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"config.{name}={getattr(self, name)}; it must be at least 1")
        not_negative(decay=self.decay, feature_weight=self.feature_weight)
        if self.version == 1 and self.feature_weight == 0:
            raise ValueError(
                f"config.feature_weight={self.feature_weight} with config.version=1, whose heads "
                "are trained to give the target's features; give it a weight, such as 1.0"
            )
        if self.loss not in BY_NAME:
            known = ", ".join(BY_NAME)
            raise ValueError(f"config.loss={self.loss!r}; it must be one of {known}")


def read(config: Mapping[str, Any]) -> EagleSettings:
    """Settings from a config; see ``material.read_settings``."""
    return read_settings(EagleSettings, config, layers=tuple)


def head_config(s: EagleSettings, model: ModelConfig, vocab: int) -> EagleConfig:
    """The head for a target: its block has the target's sizes."""
    return EagleConfig(
        version=s.version,
        target_width=model.width,
        layers=s.layers,
        draft_vocab_size=vocab,
        width=model.width,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        ffn_width=s.ffn_width or model.ffn_width,
        norm_eps=model.norm_eps,
        rope=model.rope,
        own_head=s.own_head,
        norm_features=s.norm_features,
        norm_output=s.norm_output,
        norm_before_residual=s.norm_before_residual,
    )
