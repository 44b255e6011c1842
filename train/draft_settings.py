"""The settings of ``train.draft_model``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from eval import results
from train.features import FINAL
from train.losses import BY_NAME
from train.material import MaterialSettings

STARTS = ("target", "random")


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

    layers: tuple[int, ...]
    draft_vocab_size: int
    start: str
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
    """Settings from a config; its ``loop`` (and ``mesh``, which is in it too) is the loop's own.

    Raises:
      ValueError: a missing or an unknown key, or a value that can't be; names it.
    """
    values = {name: value for name, value in config.items() if name not in ("loop", "mesh")}
    for name in ("layers", "cached_layers"):
        if name in values:
            values[name] = tuple(values[name])
    return results.read(DraftSettings, values)
