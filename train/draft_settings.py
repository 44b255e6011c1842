"""The settings of ``train.draft_model``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from eval import results
from train.features import FINAL
from train.losses import BY_NAME
from train.material import MaterialSettings, read_settings


@dataclasses.dataclass(frozen=True)
class DraftSettings(MaterialSettings):
    """What is trained, and how; on what: see ``MaterialSettings``.

    Attributes:
      layers: the target's blocks that the draft model begins as, by number from 0.
      draft_vocab_size: the most frequent tokens it drafts from; 0: all.
      start: "target": those blocks and the final norm; "random": as many new ones; or the folder of
        a draft model to go on from, which keeps its vocabulary.
      cached_layers: the streams in the feature cache, the last of them -1, which is read; more than
        that one to use the cache of another head, such as (10, 20, 29, -1).
      loss: a name in ``losses.BY_NAME``.
      positions: tokens of the drafts that ``accept_length`` is about.
    """

    STARTS: ClassVar[tuple[str, ...]] = ("target", "random")

    layers: tuple[int, ...]
    draft_vocab_size: int
    cached_layers: tuple[int, ...]
    loss: str
    positions: int

    def __post_init__(self) -> None:
        super().__post_init__()
        results.at_least(1, positions=self.positions)
        if self.loss not in BY_NAME:
            known = ", ".join(BY_NAME)
            raise ValueError(f"config.loss={self.loss!r}; it must be one of {known}")
        if self.cached_layers[-1:] != (FINAL,):
            raise ValueError(
                f"config.cached_layers={self.cached_layers}; the last one must be {FINAL}, the "
                "stream after the final norm, which gives the target's distribution"
            )

    @property
    def streams(self) -> tuple[int, ...]:
        """The streams of the target to compute, or to find in the cache."""
        return self.cached_layers if self.cached else (FINAL,)


def read(config: Mapping[str, Any]) -> DraftSettings:
    """Settings from a config; see ``material.read_settings``."""
    return read_settings(DraftSettings, config, layers=tuple, cached_layers=tuple)
