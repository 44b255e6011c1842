"""The compiled loop and what it is prepared with: shared by ``sample`` and ``generate_many``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from specjax import stats, validate
from specjax.draft import Drafter, Params, Prefill
from specjax.prefill import prefill
from specjax.round import run_round
from specjax.state import Engine, Request, State
from specjax.target import Target
from specjax.verify import Verifier, block, greedy
from specjax.warp import Sampling

CHEAP_WIDTH = 5  # tokens of a pass that reads each weight once, on a CPU with AVX-512


def prepare(
    target: Target,
    drafter: Drafter | None,
    drafter_params: Any,
    sampling: Sampling | None,
    verifier: Verifier | None,
    key: Array | None,
    widths: Sequence[int] | None,
    batch: int,
) -> tuple[Engine, Sampling]:
    """What is decoded with, and how it samples: checked, with defaults, settings as ``[B]``."""
    validate.parts(target, drafter, verifier)
    sampling = validate.sampling(sampling or Sampling(), batch)
    is_greedy = sampling.temperature is None
    verifier = verifier or (greedy if is_greedy else block)
    validate.pairing(verifier, is_greedy, key, drafter, drafter_params)
    chosen = chosen_widths(widths, drafter)
    return Engine(target, drafter, verifier, chosen), sampling


@partial(jax.jit, static_argnums=(0, 1, 2))
def prefilled(
    engine: Engine, chunk: int, dtype: Any, params: Params, tokens: Array, length: Array
) -> State:
    """The state of a batch after its prompts: int32 ``[B, S]`` tokens and ``[B]`` lengths."""
    batch, capacity = tokens.shape
    target, drafter = engine.target, engine.drafter
    layers = drafter.layers if drafter else ()
    cache = target.init_cache(batch, capacity, dtype)
    cache, features = prefill(
        target, params.target, tokens, length, cache, chunk=chunk, layers=layers
    )
    given = Prefill(tokens, length, features, capacity, chunk, dtype, engine.num_nodes)
    return State(
        tokens=tokens,
        length=length,
        reason=jnp.zeros([batch], jnp.int32),
        cache=cache,
        drafter=drafter.init(params, given) if drafter else (),
        stats=stats.init(batch, engine.num_nodes, engine.num_parts, len(engine.widths)),
    )


@partial(jax.jit, static_argnums=(0,), donate_argnums=(3,))
def decode_state(
    engine: Engine,
    params: Params,
    request: Request,
    state: State,
    rounds: Array,
    enough: Array | None = None,
) -> State:
    """Runs at most ``rounds`` rounds, until ``enough`` rows (all by default) are finished."""

    def running(carry: tuple[Array, State]) -> Array:
        done = carry[1].done
        stop = jnp.all(done) if enough is None else jnp.sum(done, dtype=jnp.int32) >= enough
        return (carry[0] < rounds) & ~stop

    def body(carry: tuple[Array, State]) -> tuple[Array, State]:
        return carry[0] + 1, run_round(engine, params, request, carry[1])

    return lax.while_loop(running, body, (jnp.zeros([], jnp.int32), state))[1]


def learned_params(engine: Engine, params: Params, state: Any, rows: ArrayLike) -> Any:
    """The drafter's parameters with what it has learned in ``rows [B]``: ``Drafter.learned``."""
    if engine.drafter is None or engine.drafter.learned is None:
        return params.drafter
    # Not compiled as a whole, or what isn't learned would be copied.
    return engine.drafter.learned(params, state, jnp.asarray(rows))


def buffer_slots(prompt: int, budget: int, nodes: int, max_length: int | None) -> int:
    """Slots the buffers need: prompt, budget and scratch for a draft; powers of two by default."""
    needed = prompt + budget + nodes
    if max_length is None:
        return max(128, 1 << (needed - 1).bit_length())
    if max_length < needed:
        raise ValueError(
            f"max_length={max_length} can't hold {prompt} prompt tokens, {budget} new tokens and "
            f"{nodes} draft slots; it must be at least {needed}"
        )
    return max_length


def chosen_widths(widths: Sequence[int] | None, drafter: Drafter | None) -> tuple[int, ...]:
    """The widths of a target pass: those asked for, or what suits platform and drafter.

    Accelerators take one, and where drafts vary, down to none, a second for rounds without any.
    On a CPU with AVX-512, in a batch of one, this library's models take up to 5 tokens at a fifth
    to a quarter more than the cost of one, and the sixth costs two thirds of a pass
    (``models.linear``, whose ``PANEL_ROWS`` this is). Two tokens cost a twelfth more, which pays
    where single guesses are common. With AVX2 alone two cost two fifths more, five four
    fifths.
    """
    nodes = drafter.num_nodes if drafter else 0
    if widths is None:
        varies = drafter is not None and drafter.varies
        several: tuple[int, ...] = (1,) if varies else ()
        if jax.default_backend() == "cpu":
            several = (1, 2, CHEAP_WIDTH) if varies else (1, CHEAP_WIDTH)
        return (*(width for width in several if width <= nodes), nodes + 1)
    chosen = validate.ascending("widths", widths, 1)
    if chosen[-1] != nodes + 1:
        raise ValueError(
            f"widths={widths}; they must ascend from at least 1 to N + 1 = {nodes + 1}"
        )
    return tuple(chosen)


def chunk_size(capacity: int) -> int:
    """Tokens a prefill pass takes: enough to be compute-bound, not much more."""
    return min(capacity, 64 if jax.default_backend() == "cpu" else 512)


def cache_dtype(params: Any) -> DTypeLike:
    """The dtype of the largest parameter of floating point: that of the matrices.

    Numbers of 8 bits and fewer are quantised weights, which say nothing of the cache.
    """
    leaves = [leaf for leaf in jax.tree.leaves(params) if _is_float(leaf)]
    return max(leaves, key=lambda leaf: leaf.size).dtype if leaves else jnp.float32


def _is_float(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize > 1
