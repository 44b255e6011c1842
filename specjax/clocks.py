"""Rounds of a batch, timed: what ``calibrate`` makes its tables of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.drafters import several
from specjax.round import advance, propose
from specjax.sample import start
from specjax.state import RUNNING, Engine, Request, State
from specjax.warp import Sampling

_SECONDS = 0.1  # what is timed at a time takes about as long, or three rounds
_REPEATS = 4
_MOST = 30  # rounds at a time


class Plan(NamedTuple):
    """What is timed for a drafter: numbers of tokens of a pass, and draft lengths."""

    widths: tuple[int, ...]
    drafts: tuple[int, ...]

    @classmethod
    def of(cls, nodes: int, widths: Sequence[int]) -> Plan:
        """Of drafts of up to so many tokens, in passes of these widths."""
        own = (*(width for width in widths if width <= nodes), nodes + 1)
        few = {width - 1 for width in own} | {0, 1, 2, 4}
        return cls(own, tuple(sorted(n for n in few if n <= nodes)))


class Clocks:
    """Rounds of a batch, with the drafters and with a stand-in that does no work."""

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

    def measure(self, plans: Sequence[Plan]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Seconds by drafter: of the target's side ``[contexts, widths]``, its own ``[drafts]``."""
        self._repeat(plans, 3, self._contexts[:1])  # compiles
        count = int(np.clip(_SECONDS / self._target(self._contexts[0], 0, 3), 3, _MOST))
        repeats = [self._repeat(plans, count, self._contexts) for _ in range(_REPEATS)]
        passes = {at: float(np.median([one[at] for one, _ in repeats])) for at in repeats[0][0]}
        out = []
        for i, plan in enumerate(plans):
            by_width = [
                np.array([passes[context, width - 1] for width in plan.widths])
                for context in self._contexts
            ]
            own = np.median([times[i] for _, times in repeats], 0)
            out.append((np.stack([_ascending(one) for one in by_width]), _drafts(own)))
        return out

    def _repeat(
        self, plans: Sequence[Plan], count: int, contexts: Sequence[int]
    ) -> tuple[dict[tuple[int, int], float], list[list[float]]]:
        """Seconds of the target's side by context and draft length; each drafter's by draft length.

        Timed in turn at the first context: a machine's pace moves within minutes.
        """
        passed = sorted({width - 1 for plan in plans for width in plan.widths})
        lengths = sorted({*passed, *(n for plan in plans for n in plan.drafts)} - {0})
        first = contexts[0]
        passes = {(first, 0): self._target(first, 0, count)}
        silent = 0.0  # of all of them together
        if self._engine.drafter is not None:
            silent = self._whole(0, 0, count) - passes[first, 0]
        mine = silent / len(plans)
        own = [[mine] for _ in plans]
        for drafted in lengths:
            idle = passes[first, drafted] = self._target(first, drafted, count)
            for i, plan in enumerate(plans):
                if drafted in plan.drafts:
                    took = self._whole(i, drafted, count) - idle
                    own[i].append(took - silent + mine)
        for context in contexts[1:]:
            passes |= {(context, n): self._target(context, n, count) for n in passed}
        return passes, own

    def _target(self, context: int, drafted: int, count: int) -> float:
        drafter = () if self._engine.drafter is None else self._q
        return self._time(self._idle, drafter, context, drafted, count)

    def _whole(self, number: int, drafted: int, count: int) -> float:
        states, old = jax.tree.map(jnp.copy, self._fresh)
        fresh = _OneOf(states, jnp.full_like(old, number))
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


def _drafts(own: np.ndarray) -> np.ndarray:
    """A drafter's seconds by draft length, 0 first: ascending, and what silence takes as it is."""
    silent, asked = max(own[0], 0.0), own[1:]
    return np.array([silent, *np.maximum(_ascending(asked), silent)]) if asked.size else own * 0


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


class _OneOf(NamedTuple):
    """Drafters' states, and the number of the one that is asked, int32 ``[B]``."""

    states: tuple
    number: Array


@cache
def one_of(drafters: tuple[Drafter, ...]) -> Drafter:
    """Asks the one that the state names, for whole drafts; the others keep their states fresh."""
    # Their drafts would end at once here, if they have a threshold.
    parts = tuple(drafter.whole or drafter for drafter in drafters)

    def init(params: Params, prefill: Prefill) -> _OneOf:
        states = several.init("calibrate", parts, params, prefill)
        return _OneOf(states, jnp.zeros_like(prefill.length))

    def propose(params: Params, state: _OneOf, context: Context, limit: Array) -> tuple:
        mine = state.number[:, None] == jnp.arange(len(parts), dtype=jnp.int32)
        limits = jnp.where(mine, limit[:, None], 0)
        turns = several.in_turn(parts, params, state.states, context, limits)
        return turns.draft, state._replace(states=turns.states), turns.cache

    def update(params: Params, state: _OneOf, context: Context, record: Record) -> _OneOf:
        states = several.update(parts, params, state.states, context, record)
        return state._replace(states=states)

    return Drafter(
        init, propose, update, max(drafter.num_nodes for drafter in parts), several.layers(parts),
        " / ".join(drafter.name for drafter in parts), any(drafter.varies for drafter in drafters),
        reads_logits=any(drafter.reads_logits for drafter in parts),
    )  # fmt: skip


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
