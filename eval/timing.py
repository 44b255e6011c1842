"""What things take: a decoding, a stream, a target pass, a draft; and whether anything compiled.

All times are of the host's clock, in seconds, with the device's work done (block_until_ready).
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from eval.modes import Mode
from specjax import decode, start, stream
from specjax.draft import Context, Params, Record, Verdict
from specjax.round import propose
from specjax.sample import check_logits, learned
from specjax.state import Engine, Request, State
from specjax.stats import Stats
from specjax.target import Cache, Target
from specjax.verify.base import chain_path


class Decoding(NamedTuple):
    """One measured decoding of one prompt.

    Attributes:
      tokens: what came out.
      decode_s: the rounds; prefill is not in it.
      ttft_s: from the call to the end of the first round: prefill, and the first tokens.
      stats: the run's counters, as numpy arrays.
      widths: tokens of a target pass, one an entry of ``stats.widths``.
      drafter_params: those for the next prompt, with what the drafter has learned.
    """

    tokens: list[int]
    decode_s: float
    ttft_s: float
    stats: Stats
    widths: tuple[int, ...]
    drafter_params: Any = None

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over decoding time."""
        return len(self.tokens) / self.decode_s

    @property
    def rounds(self) -> int:
        """Rounds, which are target passes."""
        return int(self.stats.rounds[0])


def run_once(
    target: Target, params: Any, mode: Mode, prompt: Sequence[int], key: Any, **arguments: Any
) -> Decoding:
    """Decodes a prompt in one mode and times it.

    Args:
      target: the target.
      params: its parameters.
      mode: the way to decode.
      prompt: its ids.
      key: of the noise.
      **arguments: ``max_new_tokens``, ``max_length`` and ``eos_ids`` of ``specjax.sample``.
    """
    begun = time.perf_counter()
    run = start(target, params, [list(prompt)], **mode.arguments(key), **arguments)
    jax.block_until_ready(run.state)
    filled = time.perf_counter()
    # The same compiled loop, left after one round: that is the first token's time.
    run = decode(run, rounds=1)
    jax.block_until_ready(run.state)
    first = time.perf_counter()
    run = decode(run)
    jax.block_until_ready(run.state)
    ended = time.perf_counter()
    check_logits(run)
    # Not finish(): it pads to the budget, which is another program for every budget.
    tokens, length, stats = jax.device_get((run.state.tokens, run.state.length, run.state.stats))
    tokens = tokens[0, len(prompt) : length[0]].tolist()
    times = ended - filled, first - begun
    return Decoding(tokens, *times, stats, run.engine.widths, learned(run))


def stream_once(
    target: Target, params: Any, mode: Mode, prompt: Sequence[int], key: Any, **arguments: Any
) -> tuple[list[int], list[float]]:
    """Streams a prompt's answer and notes when its tokens arrive.

    A round's tokens arrive together, so what a reader waits for is the next *burst*.

    Returns:
      Tokens of each burst, and the pause before each burst but the first.
    """
    sizes, times = [], []
    for rows in stream(target, params, [list(prompt)], **mode.arguments(key), **arguments):
        sizes.append(len(rows[0]))
        times.append(time.perf_counter())
    return sizes, np.diff(times).tolist()


class PassClock:
    """Times a model's passes at given widths, without the loop around them.

    A few passes run back to back in one compiled loop, at one place of the cache, as in decoding.
    """

    def __init__(self, target: Target, params: Any, widths: Sequence[int], capacity: int):
        self._target, self._params, self.widths = target, params, tuple(sorted(set(widths)))
        self._most = capacity - self.widths[-1]
        # Plain decoding's prefill, which is compiled already. What the entries are takes no time.
        zeros = [[0] * (capacity - 1)]
        run = start(target, params, zeros, max_new_tokens=1, max_length=capacity)
        self._cache = run.state.cache
        self._count = 3
        self(self._most // 2)  # compiles
        seconds = max(self(self._most // 2).values())
        self._count = int(np.clip(0.05 / seconds, 3, 50))

    def __call__(self, filled: float) -> dict[int, float]:
        """Seconds of one pass by width, with ``filled`` entries in the cache."""
        at = jnp.full([1], min(round(filled), self._most), jnp.int32)
        return {width: self._seconds(width, at) for width in self.widths}

    def _seconds(self, width: int, at: Array) -> float:
        # The call itself takes its time too. What else a machine does only ever adds to a time, so
        # of a few empty calls the shortest is nearest to it; one alone that was interrupted would
        # make the passes seem free, or less. Where all were, they took what a clock can just tell.
        call = min(self._call(width, at, 0) for _ in range(_EMPTY_CALLS))
        return max(self._call(width, at, self._count) - call, _LEAST_S) / self._count

    def _call(self, width: int, at: Array, count: int) -> float:
        passes = jnp.asarray(count, jnp.int32)
        begun = time.perf_counter()
        out, self._cache = _passes(self._target, width, self._params, self._cache, at, passes)
        jax.block_until_ready(out)
        return time.perf_counter() - begun


_EMPTY_CALLS = 3
_LEAST_S = 1e-9


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(3,))
def _passes(
    target: Target, width: int, params: Any, cache: Cache, filled: Array, count: Array
) -> tuple[Array, Cache]:
    tokens = jnp.zeros([1, width], jnp.int32)

    def one(_: Array, carry: tuple[Array, Cache]) -> tuple[Array, Cache]:
        logits, _, cache = target.apply(params, tokens, target.rollback(carry[1], filled))
        return logits, cache

    # The logits are carried, or the compiler would leave out all but the last.
    shape = jax.eval_shape(lambda cache: one(count, (tokens, cache))[0], cache)
    out, after = jax.lax.fori_loop(0, count, one, (jnp.zeros(shape.shape, shape.dtype), cache))
    # As full as before: a rollback never lengthens, and the next call may ask for more entries.
    return out, after._replace(length=cache.length)


class DraftTime(NamedTuple):
    """Seconds of what a drafter does in a round, propose and update.

    Attributes:
      first: in a round of one draft token. A head reads what it has missed before it.
      whole: in a round of k draft tokens.
    """

    first: float
    whole: float

    def of(self, guesses: float, k: int) -> float:
        """Seconds of a round of so many guesses, 0 to k; of a fraction below 1, an average's."""
        if guesses <= 1:
            return guesses * self.first
        return self.first + (self.whole - self.first) * (guesses - 1) / (k - 1)


class DraftClock:
    """Times what a drafter does in a round, propose and update, without the target's pass.

    Before each round a large array is read, as a pass reads the target's weights: a small head
    would stay in a processor's cache, and seem cheaper than it is. Reading alone is timed too, and
    taken off.
    """

    def __init__(
        self, target: Target, params: Any, mode: Mode, prompt: Sequence[int], **arguments: Any
    ):
        """Of one part of a mode, ``mode`` is the mode with that drafter."""
        key = jax.random.key(0)
        arguments |= mode.arguments(key)
        if mode.drafter and mode.drafter.whole:  # an unsure one would end its drafts at once here
            arguments["drafter"] = mode.drafter.whole
        self._run = start(target, params, [list(prompt)], **arguments)
        size = min(sum(leaf.nbytes for leaf in jax.tree.leaves(params)), _OTHER_BYTES)
        self._other = jnp.ones(size // 4, jnp.float32)
        self._k, self._count = mode.k, 1
        self._seconds(self._k)  # compiles
        self._count = int(np.clip(0.03 / max(self._seconds(self._k), 1e-6), 3, _MOST_ROUNDS))

    def __call__(self) -> DraftTime:
        """Seconds a round."""
        first = self._seconds(1)
        return DraftTime(first, max(self._seconds(self._k), first) if self._k > 1 else first)

    def _seconds(self, drafted: int) -> float:
        """Seconds a round of so many draft tokens."""
        run, count = self._run, jnp.asarray(self._count, jnp.int32)
        limit = jnp.asarray(drafted, jnp.int32)
        begun = time.perf_counter()
        jax.block_until_ready(_reads(self._other, count))
        read = time.perf_counter()
        state = _drafts(run.engine, run.params, run.request, run.state, self._other, limit, count)
        jax.block_until_ready(state)
        ended = time.perf_counter()
        self._run = run._replace(state=state)
        return max(ended - read - (read - begun), 0.0) / self._count


def draft_slots(k: int) -> int:
    """Tokens that must fit behind the prompt of a ``DraftClock``."""
    return _MOST_ROUNDS + k + 1


_OTHER_BYTES = 2**27  # more than processors keep
_MOST_ROUNDS = 20


def _read(other: Array, number: Array) -> Array:
    return jnp.sum(other * number.astype(other.dtype))  # another sum each time, or it is kept


@jax.jit
def _reads(other: Array, count: Array) -> Array:
    zero = jnp.zeros([], other.dtype)
    return jax.lax.fori_loop(0, count, lambda number, _: _read(other, number), zero)


@partial(jax.jit, static_argnums=(0,), donate_argnums=(3,))
def _drafts(
    engine: Engine,
    params: Params,
    request: Request,
    state: State,
    other: Array,
    limit: Array,
    count: Array,
) -> State:
    drafter, target = engine.drafter, engine.target
    assert drafter is not None
    length = state.length

    def apply(tokens: Array, cache: Cache) -> tuple[Array, Array | None]:
        logits, features, _ = target.apply(params.target, tokens, cache, layers=drafter.layers)
        return logits[:, :, : target.vocab_size].astype(jnp.float32), features

    def one(number: Array, state: State) -> State:
        huge = _read(other, number) > 1e30  # never, but who reads must be waited for
        state = state._replace(tokens=state.tokens + huge.astype(jnp.int32))
        now = request._replace(end=state.length + limit + 1)  # room for as many draft tokens
        draft, state = propose(engine, params, now, state)
        tokens = jnp.pad(draft.tokens, ((0, 0), (1, 0)))
        shapes = jax.eval_shape(apply, tokens, state.cache)
        logits, features = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        verdict = Verdict(jnp.zeros_like(draft.length), chain_path(tokens), draft.tokens[:, 0])
        # As if one token had been committed.
        record = Record(draft, logits, features, verdict, state.length + 1)
        context = Context(state.tokens, state.length, state.done, state.cache, draw=None)
        after = drafter.update(params, state.drafter, context, record)
        # A round needs the last one's tokens, or the compiler would take it out of the loop.
        tokens = state.tokens.at[:, 0].set(verdict.token)
        return state._replace(drafter=after, tokens=tokens, length=state.length + 1)

    # From the old length again; what the drafter knows past it is forgotten in its first update.
    return jax.lax.fori_loop(0, count, one, state)._replace(length=length)


class CompileLog:
    """Names of the programs that jax compiles (or reads from its cache on disk)."""

    def __init__(self) -> None:
        self.programs: list[str] = []
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, seconds: float, **about: Any) -> None:
        del seconds
        if event.endswith("/backend_compile_duration"):
            self.programs.append(str(about.get("fun_name", "unnamed")))


def peak_mb() -> float:
    """The most memory the process has used so far, in MB: the device's, or on CPU the host's."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3  # bytes there, KiB elsewhere
