"""One round: propose, score, verify, commit, update. The heart of the library.

Between rounds, in every row b: ``tokens[b, :length[b]]`` is the prompt and the output so far; the
target's cache holds exactly ``length[b] - 1`` entries (all but the pending token); the drafter's
state obeys the invariant its own docstring states. A finished row is frozen.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax import keys, stats, warp
from specjax.draft import Context, Draft, Drafter, Params, Record, Verdict
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


def run_round(engine: Engine, params: Params, request: Request, state: State) -> State:
    """One whole round."""
    noise = _noise(engine, request, state)
    draft, state = propose(engine, params, request, state, noise)
    return advance(engine, params, request, state, draft, noise)


def propose(
    engine: Engine, params: Params, request: Request, state: State, noise: keys.Noise | None = None
) -> tuple[Draft, State]:
    """Asks the drafter for this round's draft, at most what a row's budget leaves room for."""
    if engine.drafter is None:
        nothing = jnp.zeros([state.tokens.shape[0]], jnp.int32)
        return Draft(jnp.zeros([state.tokens.shape[0], 0], jnp.int32), nothing), state
    room = jnp.clip(request.end - state.length - 1, 0, engine.num_nodes)  # one more token follows
    limit = jnp.where(state.done, 0, room)
    context = _context(engine, request, state, noise or _noise(engine, request, state))
    draft, drafter, cache = engine.drafter.propose(params, state.drafter, context, limit)
    return draft, state._replace(drafter=drafter, cache=cache)


def advance(
    engine: Engine,
    params: Params,
    request: Request,
    state: State,
    draft: Draft,
    noise: keys.Noise | None = None,
) -> State:
    """The round from a draft on: score, verify, commit, update.

    Args:
      engine: the static half.
      params: parameters of target and drafter.
      request: what the run was asked for.
      state: the state the draft was made in.
      draft: the draft; finished rows' drafts are ignored.
      noise: the round's, if it was made already.

    Returns:
      The state after the round.
    """
    active = ~state.done
    drafted = jnp.clip(draft.length, 0, engine.num_nodes)  # whatever a drafter claims
    draft = draft._replace(length=jnp.where(active, drafted, 0))
    noise = noise or _noise(engine, request, state)
    scored, cache, width = score(engine, params.target, request, state, draft, noise)
    verdict, no_law, features, logits = scored
    committed, count, ended = _committed(request, state.length, draft, verdict)
    on_path = jnp.take_along_axis(no_law, verdict.path, 1)
    bad = jnp.any(on_path & (jnp.arange(on_path.shape[1], dtype=jnp.int32) < count[:, None]), 1)
    count = jnp.where(active & ~bad, count, 0)
    length = state.length + count
    reason = jnp.where(ended, EOS, jnp.where(length >= request.end, LENGTH, RUNNING))
    reason = jnp.where(bad, BAD_LOGITS, reason)
    after = state._replace(
        tokens=_write_rows(state.tokens, committed, state.length, count),
        length=length,
        reason=jnp.where(active, reason, state.reason),
        cache=engine.target.rollback(cache, length - 1),
        stats=stats.count(
            state.stats,
            active=active,
            drafted=draft.length,
            accepted=verdict.accepted,
            emitted=count,
            part=draft.part,
            width=width,
        ),
    )
    if engine.drafter is None:
        return after
    record = Record(draft, logits, features, verdict, length)
    update = engine.drafter.update
    return after._replace(
        drafter=update(params, after.drafter, _context(engine, request, state, noise), record)
    )


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


def _noise(engine: Engine, request: Request, state: State) -> keys.Noise:
    """The round's noise; where drafter and target share some, that is made once and for both."""
    noise = keys.Noise(request.keys, state.length)
    if not (engine.verifier.coupled and engine.drafter):
        return noise
    depths = jnp.arange(engine.num_nodes + 1, dtype=jnp.int32)
    return noise._replace(gumbel=keys.target_gumbel(noise, depths, engine.target.vocab_size))


def _context(engine: Engine, request: Request, state: State, noise: keys.Noise) -> Context:
    vocab = engine.target.vocab_size

    def draw(
        logits: Array, node: Array | int, ids: Array | None = None
    ) -> tuple[Array, Array | None]:
        if ids is None:
            return _drawn(_fit(logits, vocab), node, None)
        ids = jnp.broadcast_to(ids, logits.shape)
        token, probs = _drawn(logits, node, ids)
        if probs is not None:
            # Added, not set: of an id that is named twice both shares count.
            probs = jax.vmap(lambda q, i: jnp.zeros([vocab], q.dtype).at[i].add(q))(probs, ids)
        return jnp.take_along_axis(ids, token[:, None], 1)[:, 0], probs

    def _drawn(logits: Array, node: Array | int, ids: Array | None) -> tuple[Array, Array | None]:
        if engine.verifier.greedy:
            return keys.argmax(logits), None
        probs = warp.apply(request.sampling, logits[:, None])[:, 0]
        if engine.verifier.coupled:
            depth = jnp.asarray(node, jnp.int32)[None] - 1  # it follows the node before it
            gumbel = keys.target_gumbel(noise, depth, vocab)[:, 0]  # by the target's ids
            gumbel = gumbel if ids is None else jnp.take_along_axis(gumbel, ids, 1)
            return keys.argmax(jnp.log(probs) + gumbel), None
        token = keys.draw(probs, keys.uniforms(noise, node, keys.DRAFT, 2))
        return token, probs if engine.verifier.uses_q else None

    return Context(state.tokens, state.length, state.done, state.cache, draw)


def _fit(logits: Array, vocab: int) -> Array:
    """A drafter's logits ``[B, Vd]`` in the target's vocabulary: ids it lacks can't be drawn."""
    missing = max(vocab - logits.shape[1], 0)
    return jnp.pad(logits[:, :vocab], ((0, 0), (0, missing)), constant_values=-jnp.inf)


def _no_law(logits: Array) -> Array:
    """Bool ``[B, N+1]``: a node has NaN, +inf or nothing finite (-inf is legal padding)."""
    # The maximum of a row says it all: NaN wins it, +inf wins it, -inf only if there is no other.
    return ~jnp.isfinite(jnp.max(logits, -1))


def _committed(
    request: Request, length: Array, draft: Draft, verdict: Verdict
) -> tuple[Array, Array, Array]:
    """The round's tokens, cut at the first EOS and at the budget.

    Returns:
      tokens int32 ``[B, N+1]``, how many of them count, and whether the last one is an EOS.
    """
    accepted = verdict.accepted[:, None]
    depth = jnp.arange(verdict.path.shape[1], dtype=jnp.int32)
    tokens = jnp.broadcast_to(verdict.token[:, None], verdict.path.shape)
    if draft.tokens.shape[1]:
        drafted = jnp.take_along_axis(draft.tokens, jnp.maximum(verdict.path[:, 1:] - 1, 0), 1)
        drafted = jnp.pad(drafted, ((0, 0), (0, 1)))
        tokens = jnp.where(depth < accepted, drafted, tokens)
    room = jnp.minimum(verdict.accepted + 1, request.end - length)
    is_eos = jnp.any(tokens[:, :, None] == request.eos_ids, -1)
    first = jnp.min(jnp.where(is_eos, depth + 1, depth.shape[0] + 1), 1)
    return tokens, jnp.minimum(room, first), first <= room


def _write_rows(buffer: Array, new: Array, start: Array, count: Array) -> Array:
    """Writes ``new[b, :count[b]]`` at ``buffer[b, start[b]:]``; nothing else changes."""
    offset = jnp.arange(new.shape[1], dtype=jnp.int32)
    slots = jnp.where(offset < count[:, None], start[:, None] + offset, buffer.shape[1])
    return jax.vmap(lambda row, at, values: row.at[at].set(values, mode="drop"))(buffer, slots, new)
