"""What rounds work on: the engine, what was asked of it, and where each row stands."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from jax import Array

from specjax import stats, warp
from specjax.draft import Drafter
from specjax.target import Target
from specjax.verify import Verifier


class FinishReason(enum.IntEnum):
    """Why a row is finished, if it is."""

    RUNNING = 0
    EOS = 1
    LENGTH = 2
    BAD_LOGITS = 3


RUNNING, EOS, LENGTH, BAD_LOGITS = map(int, FinishReason)  # plain numbers for array code


class Engine(NamedTuple):
    """The static half of decoding: what programs are compiled for.

    Attributes:
      target: the model.
      drafter: what guesses, or None for plain decoding in the same loop.
      verifier: the rule.
      widths: ascending numbers of tokens a target pass may take; the last one is N + 1.
    """

    target: Target
    drafter: Drafter | None
    verifier: Verifier
    widths: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        """N, the most a row drafts in a round."""
        return self.drafter.num_nodes if self.drafter else 0

    @property
    def num_parts(self) -> int:
        """P, the drafters that the drafter is made of."""
        return max(len(self.drafter.parts), 1) if self.drafter else 0


class Request(NamedTuple):
    """What a run was asked for; constant through it.

    Attributes:
      start: int32 ``[B]``, the prompt's length: where the output starts.
      end: int32 ``[B]``, the length at which the row's budget is spent.
      keys: typed keys ``[B]``.
      sampling: the settings, ``[B]`` arrays or None.
      eos_ids: int32 ``[E]``, ids that end a row.
    """

    start: Array
    end: Array
    keys: Array
    sampling: warp.Sampling
    eos_ids: Array


class State(NamedTuple):
    """The carry of the loop.

    Attributes:
      tokens: int32 ``[B, S]``, prompt and output.
      length: int32 ``[B]``.
      reason: int32 ``[B]``, RUNNING, or why the row is finished.
      cache: the target's.
      drafter: the drafter's own state.
      stats: counters.
    """

    tokens: Array
    length: Array
    reason: Array
    cache: Any
    drafter: Any
    stats: stats.Stats

    @property
    def done(self) -> Array:
        """Bool ``[B]``, the finished rows."""
        return self.reason != RUNNING
