"""The settings of ``train.eagle_head``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from eval import results
from specjax.heads.eagle import EagleConfig
from specjax.models import ModelConfig
from train.losses import BY_NAME

FEATURES = ("online", "cached")
STARTS = ("target", "random")


@dataclasses.dataclass(frozen=True)
class EagleSettings:
    """What is trained, on what.

    Attributes:
      target: a folder, a hub id, or "smollm2", the default model.
      data: folder of token shards (scripts/generate_data.py).
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
      features: "online": the target runs inside the train step; "cached": once, into a file.
      feature_store: the folder of the cache; "": in the workdir.
      length: tokens a packed row.
      batch: rows a step.
      held_out: fraction of the documents that is only evaluated on.
      held_out_rows: most rows of them that are.
      steps: training-time-test steps.
      eval_steps: the same in evaluation.
      loss: a name in ``losses.BY_NAME``.
      decay: weight of each further step's loss.
      feature_weight: version 1's weight of the feature regression.
      seed: of the split and of the order.
      smoke: a run of seconds that does everything once.
    """

    target: str
    data: str
    version: int
    layers: tuple[int, ...]
    draft_vocab_size: int
    own_head: bool
    ffn_width: int
    norm_features: bool
    norm_output: bool
    norm_before_residual: bool
    start: str
    features: str
    feature_store: str
    length: int
    batch: int
    held_out: float
    held_out_rows: int
    steps: int
    eval_steps: int
    loss: str
    decay: float
    feature_weight: float
    seed: int
    smoke: bool

    def __post_init__(self) -> None:
        for name in ("length", "batch", "held_out_rows", "steps", "eval_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"config.{name}={getattr(self, name)}; it must be at least 1")
        if not 0 < self.held_out < 1:
            raise ValueError(f"config.held_out={self.held_out}; it is a fraction between 0 and 1")
        if self.loss not in BY_NAME:
            known = ", ".join(BY_NAME)
            raise ValueError(f"config.loss={self.loss!r}; it must be one of {known}")
        if self.features not in FEATURES:
            raise ValueError(f"config.features={self.features!r}; it must be one of {FEATURES}")


def read(config: Mapping[str, Any]) -> EagleSettings:
    """Settings from a config; its ``loop`` (and ``mesh``, which is in it too) is the loop's own.

    Raises:
      ValueError: a missing or an unknown key, or a value that can't be; names it.
    """
    values = {name: value for name, value in config.items() if name not in ("loop", "mesh")}
    return results.read(EagleSettings, {**values, "layers": tuple(values.get("layers", ()))})


def head_config(s: EagleSettings, model: ModelConfig, vocab: int) -> EagleConfig:
    """The head for a target: its block has the target's sizes.

    Raises:
      ValueError: layers the target does not have.
    """
    for layer in s.layers:
        if not -1 <= layer <= model.num_layers:
            raise ValueError(
                f"config.layers={s.layers} holds {layer}; the target has streams 0 to "
                f"{model.num_layers}, and -1"
            )
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
