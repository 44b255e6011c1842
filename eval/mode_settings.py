"""The settings of single modes of ``eval.speedup``, each with the checks on its own values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from eval import results
from eval.models import HEADS


@dataclasses.dataclass(frozen=True)
class NgramSettings:
    """Prompt lookup; see ``specjax.drafters.ngram``.

    Attributes:
      k: most tokens a draft holds.
      n_max: longest match that is looked for.
      n_min: shortest match that is trusted.
      k_short: tokens drafted after a match of fewer than n_max tokens.
      match: "recent" or "first".
    """

    k: int
    n_max: int
    n_min: int
    k_short: int
    match: str

    def check(self, name: str) -> None:
        """Raises ValueError where a value of ``config.{name}`` is out of range."""
        _at_least(self, name, k=1, n_min=1, n_max=self.n_min, k_short=1)
        if self.k_short > self.k:
            raise ValueError(
                f"config.{name}.k_short={self.k_short} is above config.{name}.k={self.k}; lower it"
            )
        if self.match not in ("recent", "first"):
            raise ValueError(f"config.{name}.match={self.match!r}; it must be recent or first")


@dataclasses.dataclass(frozen=True)
class HeadSettings:
    """A draft head; see ``specjax.drafters.eagle`` and ``specjax.drafters.medusa``.

    Attributes:
      folder: of the head (``specjax.heads.formats``); "": there is none, and no such mode.
      k: most draft tokens a round.
      min_prob: how probable a draft must stay to go on; 0: no such threshold.
      max_entropy: how unsure the head may be to go on, in nats; 0: no such threshold.
    """

    folder: str
    k: int
    min_prob: float
    max_entropy: float

    def check(self, name: str) -> None:
        """Raises ValueError where a value of ``config.{name}`` is out of range."""
        _at_least(self, name, k=1)
        _shares(self, name, "min_prob")
        if not 0 <= self.max_entropy < math.inf:
            raise ValueError(
                f"config.{name}.max_entropy={self.max_entropy}; it must be 0 (no threshold) or "
                "more, finite"
            )


@dataclasses.dataclass(frozen=True)
class CorpusSettings:
    """A corpus table; see ``specjax.drafters.corpus``.

    Attributes:
      folder: of the table (``scripts.build_corpus``); "": there is none, and no such mode.
      k: most draft tokens a round.
      min_prob: how probable a draft must stay to go on.
      min_first: how probable its first token must be; ``first_of`` has a value of its own.
      min_count: contexts whose best continuation was seen less often are as good as unknown.
      sampled: draw from the counts, above temperature 0; else drafts are given.
    """

    folder: str
    k: int
    min_prob: float
    min_first: float
    min_count: int
    sampled: bool

    def check(self, name: str) -> None:
        """Raises ValueError where a value of ``config.{name}`` is out of range."""
        _at_least(self, name, k=1, min_count=1)
        _shares(self, name, "min_prob", "min_first")


@dataclasses.dataclass(frozen=True)
class SuffixSettings:
    """Suffix decoding; see ``specjax.drafters.suffix``. It knows the outputs of earlier prompts.

    Attributes:
      k: most draft tokens a round.
      n_max: longest match that is looked for.
      n_min: shortest match that is trusted.
      growth: tokens drafted per matched token; 0: always k.
      min_prob: share of the places that must agree with a draft.
      capacity: tokens of past outputs.
    """

    k: int
    n_max: int
    n_min: int
    growth: int
    min_prob: float
    capacity: int

    def check(self, name: str) -> None:
        """Raises ValueError where a value of ``config.{name}`` is out of range."""
        _at_least(self, name, k=1, n_min=1, n_max=self.n_min, growth=0, capacity=3)
        _shares(self, name, "min_prob")


@dataclasses.dataclass(frozen=True)
class FirstOfSettings:
    """Drafters in turn; see ``specjax.drafters.first_of``.

    The mode "lookups" is those of them that run no network, each with the thresholds it has alone.

    Attributes:
      modes: the drafting modes asked, in this order.
      n_min: what prompt lookup trusts here, where something better than nothing follows it.
      min_first: how probable the corpus' first token must be, likewise.
    """

    modes: tuple[str, ...]
    n_min: int
    min_first: float

    @property
    def lookups(self) -> tuple[str, ...]:
        """Those that run no network."""
        return tuple(name for name in self.modes if name not in (*HEADS, "draft_model"))

    def check(self, name: str) -> None:
        """Raises ValueError where a value of ``config.{name}`` is out of range."""
        _at_least(self, name, n_min=1)
        _shares(self, name, "min_first")


@dataclasses.dataclass(frozen=True)
class AdaptiveSettings:
    """Drafting by measured cost; see ``specjax.adapt``.

    Attributes:
      modes: the drafting modes it asks in turn, each for as much as pays (drafters in turn, one by
        one). The mode "heuristic" asks the same, by another schedule
        (``specjax.policies.heuristic``).
      acceptance: what it expects of a draft token before it has seen any.
      fresh: calibrate anew, also where there is a table of these parts on disk.
    """

    modes: tuple[str, ...]
    acceptance: float
    fresh: bool

    def check(self, name: str) -> None:
        """Raises ValueError where a value of ``config.{name}`` is out of range."""
        _shares(self, name, "acceptance")
        if not isinstance(self.fresh, bool):
            raise ValueError(f"config.{name}.fresh={self.fresh!r}; it must be True or False")


def _at_least(own: Any, name: str, **least: int) -> None:
    for key, value in least.items():
        results.at_least(value, **{f"{name}.{key}": getattr(own, key)})


def _shares(own: Any, name: str, *keys: str) -> None:
    results.share(**{f"{name}.{key}": getattr(own, key) for key in keys})
