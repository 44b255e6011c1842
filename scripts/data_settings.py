"""The settings of ``scripts.generate_data``: what its config holds, and the checks on it."""

from __future__ import annotations

import dataclasses
import math

from eval import results
from eval.settings import DTYPES
from specjax import Sampling, validate

FILTERS = ("top_k", "top_p", "min_p")
SMOKE_COUNT, SMOKE_NEW_TOKENS, SMOKE_BATCH = 8, 24, 4


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run depends on.

    Attributes:
      target: a folder, a hub id, or "smollm2", the default model.
      prompts: a file, or a data set on the hub ("owner/name[:split]"); "": the built-in source.
      responses: a file of ready answers, which are tokenised and no more; "": the target answers.
      count: conversations to take; 0: all (the built-in source needs a number).
      temperatures: conversation i is answered at the one of number i modulo their count; 0 takes
        the most probable token.
      top_k: of the answers above temperature 0, as in ``specjax.Sampling``; None: no filter.
      top_p: likewise.
      min_p: likewise.
      max_new_tokens: most tokens of an answer.
      max_length: slots of a row. A turn whose prompt leaves no room for an answer is left out.
      batch: rows decoded at a time.
      rounds: most rounds between two looks at what is finished.
      shard_tokens: tokens a shard holds.
      seed: of the noise, and of the built-in prompts.
      dtype: of the weights; "": the device's.
      smoke: a run of seconds that does everything once: a few conversations, short answers.
    """

    target: str
    prompts: str
    responses: str
    count: int
    temperatures: tuple[float, ...]
    top_k: int | None
    top_p: float | None
    min_p: float | None
    max_new_tokens: int
    max_length: int
    batch: int
    rounds: int
    shard_tokens: int
    seed: int
    dtype: str
    smoke: bool

    def temperature(self, number: int) -> float:
        """Of the answers in a conversation."""
        return self.temperatures[number % len(self.temperatures)]

    def sampling(self, temperature: float) -> Sampling:
        """How answers of a temperature are sampled; greedy ones have nothing to filter."""
        if not temperature:
            return Sampling()
        return Sampling(temperature, **{name: getattr(self, name) for name in FILTERS})

    def shortened(self) -> Settings:
        """The settings of a smoke run."""
        return dataclasses.replace(
            self,
            count=min(self.count or SMOKE_COUNT, SMOKE_COUNT),
            max_new_tokens=min(self.max_new_tokens, SMOKE_NEW_TOKENS),
            batch=min(self.batch, SMOKE_BATCH),
        )

    def check(self) -> None:
        """What can be said without the target.

        Raises:
          ValueError: a value that can't be; names it and what is allowed.
        """
        least = {name: getattr(self, name) for name in ("max_new_tokens", "batch", "rounds")}
        results.at_least(1, **least, shard_tokens=self.shard_tokens)
        results.at_least(0, count=self.count, seed=self.seed)
        results.at_least(self.max_new_tokens + 1, max_length=self.max_length)
        self._check_sampling()
        if self.dtype not in DTYPES:
            allowed = ", ".join(DTYPES[1:])
            raise ValueError(f"config.dtype={self.dtype!r}; choose from {allowed}, or ''")
        if self.prompts and self.responses:
            raise ValueError("config.prompts and config.responses are both given; drop one of them")
        if not self.prompts and not self.responses and not self.count:
            raise ValueError("config.count=0; the built-in prompts have no end: say how many")

    def _check_sampling(self) -> None:
        if not self.temperatures:
            raise ValueError("config.temperatures is empty; give one or more, such as (0.0, 0.8)")
        for one in self.temperatures:
            if not (one >= 0 and math.isfinite(one)):
                raise ValueError(f"config.temperatures holds {one}; 0 (greedy) or more, finite")
        filters = {name: getattr(self, name) for name in FILTERS}
        for one in [one for one in self.temperatures if one] or [0.0]:
            try:
                validate.sampling(Sampling(one, **filters), 1)
            except ValueError as error:
                raise ValueError(f"config.{error}") from None
