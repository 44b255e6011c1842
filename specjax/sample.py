"""Decoding: ``sample`` and ``stream``, and the ``start`` / ``decode`` pair they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from specjax import validate
from specjax.draft import Drafter, Params
from specjax.loop import (
    buffer_slots,
    cache_dtype,
    chunk_size,
    decode_state,
    learned_params,
    prefilled,
    prepare,
)
from specjax.state import Engine, FinishReason, Request, State
from specjax.stats import Stats
from specjax.target import Target
from specjax.verify import Verifier
from specjax.warp import Sampling


class SampleOutput(NamedTuple):
    """What decoding gives.

    Attributes:
      tokens: int32 ``[B, max_new_tokens]``, ``pad_id`` after each row's end.
      lengths: int32 ``[B]``, tokens emitted; an EOS counts.
      finish_reason: int32 ``[B]``, of ``FinishReason``.
      stats: counters.
      drafter_params: those to give the next run: of a drafter that learns (``adaptive``) with what
        it has learned, else as they were. The next run needs a key of its own: under token and
        block verification what was learned depends on the noise, and output is biased where draft
        lengths depend on the very noise they are verified with.
    """

    tokens: Array
    lengths: Array
    finish_reason: Array
    stats: Stats
    drafter_params: Any = None


class Run(NamedTuple):
    """A decoding run between two calls of ``decode``.

    Attributes:
      engine: the static half.
      params: parameters of target and drafter.
      request: what was asked for.
      state: where it stands; ``decode`` uses it up.
    """

    engine: Engine
    params: Params
    request: Request
    state: State


def sample(
    target: Target,
    params: Any,
    prompts: ArrayLike | Sequence[Sequence[int]],
    *,
    prompt_lengths: ArrayLike | None = None,
    drafter: Drafter | None = None,
    drafter_params: Any = None,
    max_new_tokens: int,
    max_length: int | None = None,
    sampling: Sampling | None = None,
    verifier: Verifier | None = None,
    eos_ids: Sequence[int] = (),
    pad_id: int = 0,
    key: Array | None = None,
    widths: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
) -> SampleOutput:
    """Decodes a batch of prompts speculatively: the target's own output, in fewer passes.

    Args:
      target: the model.
      params: its parameters; new values never recompile.
      prompts: int ``[B, P]``, right-padded, or a list of lists of ids.
      prompt_lengths: int ``[B]``; all of P by default.
      drafter: what guesses; None decodes plainly, in the same loop.
      drafter_params: the drafter's parameters.
      max_new_tokens: the budget of each row; a new value recompiles only with the buffer.
      max_length: slots of the buffers; by default what prompt and budget need, rounded up so that
        similar requests share a compiled program.
      sampling: how to sample; greedy by default.
      verifier: the rule; greedy decoding takes ``verify.greedy``, sampling ``verify.block``.
      eos_ids: ids that end a row (emitted as its last token).
      pad_id: fills the output after each row's end.
      key: one typed key or ``[B]`` of them; needed for sampling only.
      widths: numbers of tokens a target pass may take; the last must be N + 1. By default chosen
        by the platform.
      dtype: of the caches; by default that of the parameters.

    Returns:
      The output.

    Raises:
      ValueError: for bad arguments, or when the model returns logits with NaN, +inf or nothing
        finite.
    """
    run = start(
        target,
        params,
        prompts,
        prompt_lengths=prompt_lengths,
        drafter=drafter,
        drafter_params=drafter_params,
        max_new_tokens=max_new_tokens,
        max_length=max_length,
        sampling=sampling,
        verifier=verifier,
        eos_ids=eos_ids,
        key=key,
        widths=widths,
        dtype=dtype,
    )
    return finish(decode(run), max_new_tokens=max_new_tokens, pad_id=pad_id)


def stream(
    target: Target, params: Any, prompts: ArrayLike | Sequence[Sequence[int]], **arguments: Any
) -> Iterator[list[list[int]]]:
    """Decodes like ``sample`` and yields each round's new tokens as they come.

    Args:
      target: the model.
      params: its parameters.
      prompts: as for ``sample``.
      **arguments: as for ``sample`` (``pad_id`` has no use here).

    Yields:
      A list a row of the tokens the round emitted; empty for finished rows.
    """
    run = start(target, params, prompts, **arguments)
    while not np.all(run.state.done):
        before = np.asarray(run.state.length)
        run = decode(run, rounds=1)
        check_logits(run)
        tokens, after = jax.device_get((run.state.tokens, run.state.length))
        yield [row[i:j].tolist() for row, i, j in zip(tokens, before, after, strict=True)]


def start(
    target: Target,
    params: Any,
    prompts: ArrayLike | Sequence[Sequence[int]],
    *,
    prompt_lengths: ArrayLike | None = None,
    drafter: Drafter | None = None,
    drafter_params: Any = None,
    max_new_tokens: int,
    max_length: int | None = None,
    sampling: Sampling | None = None,
    verifier: Verifier | None = None,
    eos_ids: Sequence[int] = (),
    key: Array | None = None,
    widths: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
) -> Run:
    """Checks the arguments (those of ``sample``), prefills, and returns a run ready to decode."""
    validate.parts(target, drafter, verifier)  # before the prompts, which need a real target
    tokens, lengths = validate.prompts(prompts, prompt_lengths, target.vocab_size)
    batch = len(lengths)
    max_new_tokens = validate.count("max_new_tokens", max_new_tokens)
    engine, sampling = prepare(
        target, drafter, drafter_params, sampling, verifier, key, widths, batch
    )
    capacity = buffer_slots(int(lengths.max()), max_new_tokens, engine.num_nodes, max_length)

    request = Request(
        start=jnp.asarray(lengths),
        end=jnp.asarray(lengths + max_new_tokens),
        keys=validate.row_keys(key, batch),
        sampling=sampling,
        eos_ids=jnp.asarray(validate.ids(eos_ids, target.vocab_size)),
    )
    both = Params(params, drafter_params)
    buffer = np.zeros((batch, capacity), np.int32)
    buffer[:, : min(tokens.shape[1], capacity)] = tokens[:, :capacity]
    dtype = jnp.dtype(cache_dtype(params) if dtype is None else validate.floating(dtype))
    state = prefilled(engine, chunk_size(capacity), dtype, both, buffer, request.start)
    return Run(engine, both, request, state)


def decode(run: Run, rounds: int | None = None) -> Run:
    """Runs rounds until every row is finished, or at most ``rounds`` of them.

    The state of ``run`` is donated: use the run that comes back.
    """
    rounds = np.iinfo(np.int32).max if rounds is None else validate.count("rounds", rounds, least=0)
    most = jnp.asarray(rounds, jnp.int32)
    return run._replace(state=decode_state(run.engine, run.params, run.request, run.state, most))


def finish(run: Run, *, max_new_tokens: int, pad_id: int = 0) -> SampleOutput:
    """The output of a run (finished or not), as ``sample`` returns it.

    ``lengths`` counts what was emitted, also where ``max_new_tokens`` here shows less of it.
    """
    check_logits(run)
    tokens, length, first = jax.device_get((run.state.tokens, run.state.length, run.request.start))
    slots = first[:, None] + np.arange(max_new_tokens)
    emitted = np.take_along_axis(tokens, np.minimum(slots, tokens.shape[1] - 1), 1)
    return SampleOutput(
        tokens=jnp.asarray(np.where(slots < length[:, None], emitted, np.int32(pad_id))),
        lengths=jnp.asarray(length - first),
        # Copies: the state itself is used up when the run is decoded further.
        finish_reason=jnp.copy(run.state.reason),
        stats=jax.tree.map(jnp.copy, run.state.stats),
        drafter_params=learned(run),
    )


def learned(run: Run) -> Any:
    """The drafter's parameters for the next run; see ``SampleOutput``."""
    rows = np.ones(run.state.length.shape, bool)
    return learned_params(run.engine, run.params, run.state.drafter, rows)


def check_logits(run: Run) -> None:
    """Raises ValueError when a row stopped on logits that are no distribution."""
    reason, length = jax.device_get((run.state.reason, run.state.length))
    rows = np.flatnonzero(reason == FinishReason.BAD_LOGITS)
    if rows.size:
        raise ValueError(
            f"the target's logits hold NaN, +inf or nothing finite in row {rows[0]} after "
            f"{length[rows[0]]} tokens; check its parameters and dtype"
        )
