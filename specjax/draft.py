"""What the parts of a round hand to each other: drafts, verdicts, records, and drafters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array


class Params(NamedTuple):
    """Parameters of both sides; a drafter may read the target's (embedding, head, layers)."""

    target: Any
    drafter: Any


class Draft(NamedTuple):
    """The tokens proposed in one round, as a chain: node n follows node n - 1, node 0 is pending.

    Attributes:
      tokens: int32 ``[B, N]``; node n is ``tokens[:, n - 1]``.
      length: int32 ``[B]``, how many of them are real (0 to N).
      probs: float32 ``[B, N+1, V]`` or None. ``probs[:, n]`` is the very array that node n + 1 was
        drawn from; None when every token was given (chosen without drawing). Rows from ``length``
        on may hold anything.
      given: bool ``[B, N]`` or None, the nodes of a mixed draft that were chosen without drawing.
      part: int32 ``[B]`` or None: of a drafter made of several, the index in ``Drafter.parts`` of
        the one whose draft this is, or that was asked last if none had one; -1: nobody was asked.
    """

    tokens: Array
    length: Array
    probs: Array | None = None
    given: Array | None = None
    part: Array | None = None


class Verdict(NamedTuple):
    """What stays of a draft.

    Attributes:
      accepted: int32 ``[B]``, draft tokens kept.
      path: int32 ``[B, N+1]``, nodes by depth: the pending token, then the accepted ones (further
        entries mean nothing).
      token: int32 ``[B]``, the correction or bonus that follows.
    """

    accepted: Array
    path: Array
    token: Array


class Record(NamedTuple):
    """What a drafter learns from a finished round.

    Attributes:
      draft: the draft that was verified.
      logits: float32 ``[B, N+1, V]`` of the target at each node (nodes past ``draft.length``: zeros
        or leftovers); None unless the drafter ``reads_logits``.
      features: ``[B, N+1, F]`` of the drafter's ``layers``, or None.
      verdict: what was kept.
      length: int32 ``[B]``, the rows' lengths after the commit (a cut at EOS or the budget can
        leave fewer tokens than the verdict).
    """

    draft: Draft
    logits: Array | None
    features: Array | None
    verdict: Verdict
    length: Array


class Prefill(NamedTuple):
    """What a drafter starts from.

    Attributes:
      tokens: int32 ``[B, S]``, the prompts.
      length: int32 ``[B]``, their lengths.
      features: ``[B, S, F]`` of the drafter's ``layers`` at ``tokens[:, :length - 1]``, or None.
      capacity: S, the slots a cache needs.
      chunk: tokens a prefill pass takes.
      dtype: the dtype of the target's cache.
      num_nodes: most draft tokens of a round, whoever drafts them.
    """

    tokens: Array
    length: Array
    features: Array | None
    capacity: int
    chunk: int
    dtype: Any
    num_nodes: int


class Context(NamedTuple):
    """What a drafter may look at while it proposes.

    Attributes:
      tokens: int32 ``[B, S]``, prompt and output so far.
      length: int32 ``[B]``.
      done: bool ``[B]``, finished rows (their drafts are not used).
      cache: the target's cache, for drafters that share it.
      draw: ``(logits [B, Vd], node, ids=None) -> (token [B], probs [B, V] | None)``: draws node
        ``node`` (1 to N) under the active settings, with its own noise. The probs are what
        ``Draft.probs`` wants; None when the verifier does not need them. Vd may differ from V
        (padding); with ``ids [Vd]``, or ``[B, Vd]``, the logits are of these ids of the target, and
        no others.
    """

    tokens: Array
    length: Array
    done: Array
    cache: Any
    draw: Callable[..., tuple[Array, Array | None]]


class Drafter(NamedTuple):
    """Anything that guesses. Make it in a factory that returns the same object for equal arguments.

    Attributes:
      init: ``(params: Params, prefill: Prefill) -> state``.
      propose: ``(params, state, context, limit [B]) -> (Draft, state, cache)``; a row drafts at
        most ``limit`` tokens (its budget). The cache is the target's, untouched below its length.
      update: ``(params, state, context, record) -> state``, restores the state's invariant; the
        context is the one the draft was made in. The record's draft may be another drafter's, and
        longer than its own ones (``drafters.first_of``, ``adaptive``).
      num_nodes: N, static.
      layers: target features it wants (see ``Target.apply``).
      name: for tables.
      varies: whether its drafts end anywhere, often after one token, so that narrow passes pay.
      whole: the same drafter without the threshold that ends its drafts early, if it has one: what
        is timed.
      reads_logits: whether its update asks for the target's logits, ``Record.logits``.
      learned: ``(params, state, rows) -> drafter_params``, those of the next run, with what it has
        learned in these rows (bool ``[B]``) of this one; of the same structure, shapes and dtypes.
        Called outside of compiled code, so that what isn't learned is handed on and not copied.
        None: it learns nothing that outlasts a run.
      parts: the drafters it is made of, if it is made of several.
      settings: what else its work depends on: cost tables of two drafters that differ in nothing
        else must not be taken for each other.
    """

    init: Callable[..., Any]
    propose: Callable[..., Any]
    update: Callable[..., Any]
    num_nodes: int
    layers: tuple[int, ...] = ()
    name: str = "drafter"
    varies: bool = False
    whole: Drafter | None = None
    reads_logits: bool = False
    learned: Callable[..., Any] | None = None
    parts: tuple[Drafter, ...] = ()
    settings: str = ""
