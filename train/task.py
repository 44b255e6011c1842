"""What a head brings to the loop, and what the loop gives back."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

Sums = dict[str, jax.Array]


class NonFiniteError(RuntimeError):
    """The loss or a gradient is NaN or infinite."""


class Task(NamedTuple):
    """What a head brings to the loop.

    Attributes:
      init: key -> trainable parameters, a pytree of float32 arrays.
      loss: ``(params, frozen, batch, key) -> (sum of losses over supervised units, sums)``, the
        sums being scalars: ``weight``, the count of these units, and others to report, such as
        hits. All are reported divided by the weight, or by ``NAME_weight`` where there is one.
      frozen: a pytree of arrays that never change (the target, vocabulary maps).
      batch: step -> a pytree of numpy arrays [size, ...], always of the same shapes, and a pure
        function of the step. Called in a thread. Where it is a dict with ``ids``, those are named
        when the loss becomes non-finite.
      evaluate: ``(params, frozen, held-out batch) -> sums``, with ``loss`` and ``weight``; jitted.
      held_out: the held-out batches; equal shapes compile once.
      fingerprint: names of what is trained on what (target, data, sizes); a checkpoint whose
        fingerprint differs is refused.
      tokens_per_batch: tokens a step's batch holds, to report a rate.
      export: ``(params, folder)``, writes the finished head into an empty folder; its parameters
        are numpy arrays.
      score: which of evaluate's means is best when it is highest.
      name: what the chart is called.
    """

    init: Callable[[jax.Array], Any]
    loss: Callable[[Any, Any, Any, jax.Array], tuple[jax.Array, Sums]]
    frozen: Any
    batch: Callable[[int], Any]
    evaluate: Callable[[Any, Any, Any], Sums]
    held_out: Sequence[Any]
    fingerprint: Mapping[str, Any]
    tokens_per_batch: int
    export: Callable[[Any, pathlib.Path], None]
    score: str = "accept_length"
    name: str = ""


class Summary(NamedTuple):
    """How a run ended.

    Attributes:
      params: of the last step, numpy.
      best_params: of the best held-out score, numpy; those of the last step if none was measured.
      step: finished steps.
      stopped: "" when all steps are done; else "SIGTERM", "SIGINT" or "max_seconds".
      best_step: the step of best_params.
      best_score: the held-out score there; None if none was measured.
      seconds: of training, in all processes that worked on this run one after the other.
      records: the lines of metrics.jsonl.
    """

    params: Any
    best_params: Any
    step: int
    stopped: str
    best_step: int
    best_score: float | None
    seconds: float
    records: list[dict[str, Any]]


def check(params: Any, sums: Any, loss: Any) -> None:
    """Checks what a task's functions give.

    Args:
      params: from ``init``.
      sums: from ``loss``; abstract.
      loss: likewise.

    Raises:
      ValueError: parameters that aren't float32, a loss that's no scalar, no weight.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != "float32":
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ValueError(
                f"parameter {name} is {leaf.dtype}; trainable parameters must be float32 (the "
                "loop casts them to loop.dtype for the loss)"
            )
    if loss.shape or "weight" not in sums or any(x.shape for x in sums.values()):
        given = {name: x.shape for name, x in sums.items()}
        raise ValueError(
            f"the task's loss has shape {loss.shape} and gives sums of shapes {given}; all of "
            "them must be scalars, and the sums must hold 'weight'"
        )
