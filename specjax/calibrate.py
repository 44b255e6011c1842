"""Measuring what a round costs on the device at hand: ``calibrate``."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from specjax import costs, validate
from specjax.costs import CostTable
from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.loop import cache_dtype, prepare
from specjax.machine import cache_folder
from specjax.round import advance, propose
from specjax.sample import start
from specjax.state import RUNNING, Engine, Request, State
from specjax.target import Target
from specjax.verify import Verifier
from specjax.warp import Sampling

_SECONDS = 0.1  # what is timed at a time takes about as long, or three rounds
_REPEATS = 4
_MOST = 30  # rounds at a time
_REVISION = 2  # of what is timed: a new one makes the tables on disk forgotten


def calibrate(
    target: Target,
    params: Any,
    drafter: Drafter | None = None,
    drafter_params: Any = None,
    *,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] = (128, 1024),
    sampling: Sampling | None = None,
    verifier: Verifier | None = None,
    widths: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    folder: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    progress: Callable[[str], Any] = lambda what: None,
) -> CostTable:
    """Times the parts of a round: the target's side by tokens, the drafter's by draft length.

    Whole rounds run back to back in one compiled loop, as in decoding; what the drafter takes is
    the difference to rounds in which nobody works for the draft, timed in turn. (Timed alone, a
    small head would stay in a processor's cache, and seem cheaper than it is.) A batch size takes
    two compilations of the loop. The table is kept on disk by what it was measured on.

    Args:
      target: the model.
      params: its parameters.
      drafter: what guesses; None: only the target's side at one token.
      drafter_params: its parameters.
      batches: ascending batch sizes.
      contexts: ascending numbers of filled slots, at least 2.
      sampling: how to sample, for what verification costs; greedy by default.
      verifier: the rule, as for ``sample``.
      widths: numbers of tokens a target pass may take, as for ``sample``.
      dtype: of the caches.
      folder: where tables are kept; specjax's cache folder by default.
      fresh: measure, even if there is a table of these parts.
      progress: called with a few words before each batch size.

    Returns:
      The table.

    Raises:
      ValueError: for bad arguments, a folder that can't be written, or a target's cache whose
        length can't be set.
    """
    batches = validate.ascending("batches", batches, 1)
    contexts = validate.ascending("contexts", contexts, 2)
    validate.parts(target, drafter, verifier)
    dtype = jnp.dtype(cache_dtype(params) if dtype is None else validate.floating(dtype))
    key = jax.random.key(0)
    engine, _ = prepare(
        target, drafter, drafter_params, sampling, verifier, key, widths, batches[0]
    )
    rule = engine.verifier.name
    origin = costs.origin_of(target, params, drafter, drafter_params, dtype, rule)
    shape = tuple(batches), tuple(contexts), engine.widths
    filters = [
        name
        for name, value in zip(Sampling._fields, sampling or (), strict=False)
        if value is not None
    ]
    digest = hashlib.sha256(repr((_REVISION, origin, shape, filters)).encode()).hexdigest()[:16]
    path = pathlib.Path(folder or cache_folder() / "costs") / f"{digest}.json"
    if path.exists() and not fresh:
        with contextlib.suppress(ValueError):  # a file that is none: measured again
            table = costs.load(path)
            table.check(origin)
            if (table.batches, table.contexts, table.widths) == shape:
                return table

    _make_room(path.parent)
    few = {width - 1 for width in engine.widths} | {0, 1, 2, 4}
    drafts = tuple(sorted(n for n in few if n <= engine.num_nodes))
    target_s = np.zeros([len(batches), len(contexts), len(engine.widths)])
    draft_s = np.zeros([len(batches), len(drafts)])
    for index, batch in enumerate(batches):
        progress(f"batch {batch}")
        clocks = _Clocks(
            engine, Params(params, drafter_params), batch, contexts, dtype=dtype,
            sampling=sampling or Sampling(), key=key,
        )  # fmt: skip
        target_s[index], draft_s[index] = clocks.measure(drafts)
    table = CostTable(origin, *shape, drafts, target_s, draft_s)
    table.save(path)
    return table


def _make_room(folder: pathlib.Path) -> None:
    """Makes the folder of the tables: better now than after the measurement.

    Raises:
      ValueError: it can't be written; names it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"folder={str(folder)!r} can't be made ({error}); name another") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"folder={str(folder)!r} can't be written; name another")


class _Clocks:
    """Rounds of a batch, with the drafter and with a stand-in that does no work."""

    def __init__(
        self,
        engine: Engine,
        params: Params,
        batch: int,
        contexts: Sequence[int],
        *,
        dtype: Any,
        sampling: Sampling,
        key: Array,
    ) -> None:
        real = engine.drafter
        if real is not None and real.whole is not None:  # its drafts would end at once here
            engine = engine._replace(drafter=real.whole)
        nodes, vocab = engine.num_nodes, engine.target.vocab_size
        prompts = (np.arange(contexts[0]) + 17 * np.arange(batch)[:, None]) % vocab
        run = start(
            engine.target, params.target, prompts, drafter=engine.drafter,
            drafter_params=params.drafter, max_new_tokens=1, sampling=sampling,
            verifier=engine.verifier, widths=engine.widths, dtype=dtype, key=key,
            max_length=contexts[-1] + (_MOST + 2) * (nodes + 1),
        )  # fmt: skip
        self._contexts, self._params, self._request = contexts, params, run.request
        self._engine = self._idle = run.engine
        self._state, self._fresh = run.state, jax.tree.map(jnp.copy, run.state.drafter)
        if run.engine.drafter is not None:
            drawn = _drawn(run)
            stand_in = _stand_in(nodes, run.engine.drafter.layers, drawn)
            self._idle = run.engine._replace(drafter=stand_in)
            self._q = jnp.full([batch, nodes + 1, vocab], 1 / vocab) if drawn else ()

    def measure(self, drafts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Seconds ``[contexts, widths]`` of the target's side, ``[drafts]`` of the drafter's."""
        widths, contexts = self._idle.widths, self._contexts
        self._pairs(contexts[0], (0,), 3)  # compiles
        count = int(np.clip(_SECONDS / self._target(contexts[0], 0, 3), 3, _MOST))
        target_s = np.zeros([_REPEATS, len(contexts), len(widths)])
        draft_s = np.zeros([_REPEATS, len(drafts)])
        for repeat in range(_REPEATS):
            first, draft_s[repeat] = self._pairs(contexts[0], drafts, count)
            target_s[repeat, 0] = [first[width - 1] for width in widths]
            for i, context in enumerate(contexts[1:], start=1):
                target_s[repeat, i] = [self._target(context, w - 1, count) for w in widths]
        # No narrower pass costs more than a wider one, nor a shorter draft than a longer one.
        target, draft = np.median(target_s, 0), np.maximum(np.median(draft_s, 0), 0)
        return np.stack([_ascending(by_width) for by_width in target]), _ascending(draft)

    def _pairs(
        self, context: int, drafts: Sequence[int], count: int
    ) -> tuple[dict[int, float], list[float]]:
        """Seconds of the target's side by draft length, and of the drafter's, timed in turn."""
        first, mine = {}, []
        for drafted in drafts:
            first[drafted] = idle = self._target(context, drafted, count)
            whole = idle if self._engine.drafter is None else self._whole(drafted, count)
            mine.append(whole - idle)
        return first, mine

    def _target(self, context: int, drafted: int, count: int) -> float:
        drafter = () if self._engine.drafter is None else self._q
        return self._time(self._idle, drafter, context, drafted, count)

    def _whole(self, drafted: int, count: int) -> float:
        fresh = jax.tree.map(jnp.copy, self._fresh)
        return self._time(self._engine, fresh, self._contexts[0], drafted, count)

    def _time(self, engine: Engine, drafter: Any, context: int, drafted: int, count: int) -> float:
        """Seconds a round, from ``context`` slots on."""
        at = jnp.full(self._state.length.shape, context, jnp.int32)
        cache = _at_length(self._state.cache, at - 1)
        state = self._state._replace(length=at, cache=cache, drafter=drafter)
        # One round first: what is in the processor's caches, and what waits for a head to read it.
        state = _rounds(engine, self._params, self._request, state, *_numbers(drafted, 1))
        jax.block_until_ready(state)
        numbers, begun = _numbers(drafted, count), time.perf_counter()
        state = _rounds(engine, self._params, self._request, state, *numbers)
        jax.block_until_ready(state)
        seconds = (time.perf_counter() - begun) / count
        if engine is self._idle and self._engine.drafter is not None:
            self._q = state.drafter
        self._state = state._replace(drafter=())
        return seconds


def _ascending(values: np.ndarray) -> np.ndarray:
    """The nearest values (least squares) that never fall: noise must not make drafts seem free."""
    from scipy.optimize import isotonic_regression  # slow to import, and only needed here

    return np.asarray(isotonic_regression(values).x)


def _numbers(*values: int) -> tuple[Array, ...]:
    return tuple(jnp.asarray(value, jnp.int32) for value in values)


@partial(jax.jit, static_argnums=(0,), donate_argnums=(3,))
def _rounds(
    engine: Engine, params: Params, request: Request, state: State, drafted: Array, count: Array
) -> State:
    """Rounds that never end a row, each of ``drafted`` tokens, whatever was found."""

    def one(_: Array, state: State) -> State:
        state = state._replace(reason=jnp.full_like(state.reason, RUNNING))
        now = request._replace(end=state.length + drafted + 1)
        draft, state = propose(engine, params, now, state)
        draft = draft._replace(length=jnp.full_like(draft.length, drafted))
        return advance(engine, params, now, state, draft)

    return jax.lax.fori_loop(0, count, one, state)


@cache
def _stand_in(k: int, layers: tuple[int, ...], drawn: bool) -> Drafter:
    """Drafts zeros, and does nothing for it; its state is what it would have drawn them from."""

    def init(params: Params, prefill: Prefill) -> Any:
        raise NotImplementedError("made by the one who times")

    def propose(params: Params, state: Any, context: Context, limit: Array) -> tuple:
        del params
        tokens = jnp.zeros([limit.shape[0], k], jnp.int32)
        return Draft(tokens, limit, state if drawn else None), state, context.cache

    def update(params: Params, state: Any, context: Context, record: Record) -> Any:
        del params, context, record
        return state

    return Drafter(init, propose, update, k, layers, "nobody")


def _drawn(run: Any) -> bool:
    """Whether the drafter's tokens come with the q they were drawn from."""
    made = jax.eval_shape(partial(propose, run.engine), run.params, run.request, run.state)
    return made[0].probs is not None


def _at_length(kv: Any, length: Array) -> Any:
    """The cache as if it held ``length [B]`` entries; what they are takes no time."""
    if not hasattr(kv, "_replace") or not hasattr(kv, "length"):
        raise ValueError(
            f"calibrate can't set the length of a {type(kv).__name__}; the target's cache must be "
            "a NamedTuple with a field of that name"
        )
    return kv._replace(length=length)
