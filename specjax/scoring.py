"""Scoring a draft: the target's pass at the smallest width that holds it, and the verdict on it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax import keys
from specjax.draft import Draft, Verdict
from specjax.state import Engine, Request, State


class Scored(NamedTuple):
    """A draft as the target and the verifier see it.

    Attributes:
      verdict: the verifier's.
      no_law: bool ``[B, N+1]``, nodes whose logits are no distribution. A draft that nobody accepts
        may lead there (past an EOS, say): rules see zeros, and it only counts if a committed token
        was drawn from it.
      features: ``[B, N+1, F]`` of the drafter's layers, or None; zeros past the width.
      logits: float32 ``[B, N+1, V]``, likewise, for a drafter that reads them; else None.
    """

    verdict: Verdict
    no_law: Array
    features: Array | None
    logits: Array | None


def score(
    engine: Engine, params: Any, request: Request, state: State, draft: Draft, noise: keys.Noise
) -> tuple[Scored, Any, Array]:
    """Runs the target once over ``[pending, draft...]``, and asks the verifier.

    The pass takes the smallest of the engine's widths that holds the longest draft, and the
    verifier sees no more nodes than that: warping and rules go over the vocabulary at each. Each
    width is a loop of zero or one trips: a ``lax.switch`` would copy the whole cache twice a round.
    Logits stay in their trip, for a buffer of them for N + 1 nodes takes longer to fill than small
    passes take.

    Returns:
      What came of it, the target's cache with the pass's entries appended, and the index of the
      width used, int32 ``[]``.
    """
    apply, layers = engine.target.apply, engine.drafter.layers if engine.drafter else ()
    wanted = engine.drafter is not None and engine.drafter.reads_logits
    pending = jnp.take_along_axis(state.tokens, state.length[:, None] - 1, 1)
    tokens = jnp.concatenate([pending, draft.tokens], 1)

    def run(width: int, cache: Any) -> tuple[Scored, Any]:
        logits, features, cache = apply(params, tokens[:, :width], cache, layers=layers)
        logits = logits[:, :, : engine.target.vocab_size].astype(jnp.float32)
        no_law = _no_law(logits)
        logits = jnp.where(no_law[:, :, None], 0, logits)
        part, own = _cut(draft, noise, width)
        verdict = engine.verifier.verify(part, logits, request.sampling, own)
        return Scored(verdict, no_law, features, logits if wanted else None), cache

    if len(engine.widths) == 1:
        return *run(engine.widths[0], state.cache), jnp.zeros([], jnp.int32)

    shapes = jax.eval_shape(lambda cache: run(engine.widths[-1], cache)[0], state.cache)
    out = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    needed = jnp.max(draft.length) + 1
    chosen = jnp.sum(needed > jnp.array(engine.widths, jnp.int32), dtype=jnp.int32)

    cache = state.cache
    for index, width in enumerate(engine.widths):

        def trip(carry: tuple, width: int = width) -> tuple:
            _, out, cache = carry
            new, cache = run(width, cache)
            out = jax.tree.map(_put_first, out, new)
            return jnp.zeros([], bool), out, cache

        _, out, cache = lax.while_loop(lambda carry: carry[0], trip, (chosen == index, out, cache))
    return out, cache, chosen


def _cut(draft: Draft, noise: keys.Noise, width: int) -> tuple[Draft, keys.Noise]:
    """The draft and the noise as far as a pass over ``width`` tokens goes."""

    def cut(x: Array | None, count: int) -> Array | None:
        return None if x is None else x[:, :count]

    tokens, given = draft.tokens[:, : width - 1], cut(draft.given, width - 1)
    part = Draft(tokens, draft.length, cut(draft.probs, width), given)
    return part, noise._replace(gumbel=cut(noise.gumbel, width))


def _put_first(whole: Array, part: Array) -> Array:
    """``part`` where it reaches along the nodes, which are the second axis if there is one."""
    return part if part.ndim < 2 else whole.at[:, : part.shape[1]].set(part)


def _no_law(logits: Array) -> Array:
    """Bool ``[B, N+1]``: a node has NaN, +inf or nothing finite (-inf is legal padding)."""
    # The maximum of a row says it all: NaN wins it, +inf wins it, -inf only if there is no other.
    return ~jnp.isfinite(jnp.max(logits, -1))
