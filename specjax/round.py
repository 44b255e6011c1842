"""One round: propose, score, verify, commit, update. The heart of the library.

Between rounds, in every row b: ``tokens[b, :length[b]]`` is the prompt and the output so far; the
target's cache holds exactly ``length[b] - 1`` entries (all but the pending token); the drafter's
state obeys the invariant its own docstring states. A finished row is frozen.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from specjax import keys, scoring, stats, warp
from specjax.draft import Context, Draft, Params, Record, Verdict
from specjax.state import BAD_LOGITS, EOS, LENGTH, RUNNING, Engine, Request, State


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
    scored, cache, width = scoring.score(engine, params.target, request, state, draft, noise)
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
