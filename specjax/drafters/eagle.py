"""An EAGLE head as drafter: a chain of k tokens from the target's own features.

EAGLE (arXiv:2401.15077) and EAGLE-3 (arXiv:2503.01840), as chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from specjax import cache as kv
from specjax.cache import KVCache
from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.drafters.chain import Guess, check_entropy, check_prob, draw_chain, measured
from specjax.drafters.prepared import prepared
from specjax.factory import factory
from specjax.heads.eagle import EagleConfig, EagleHead
from specjax.models import attention, rope
from specjax.models.linear import PANEL_ROWS
from specjax.models.transformer import embed_tokens


class EagleParams(NamedTuple):
    """What the drafter is given as ``drafter_params``.

    Attributes:
      head: parameters of ``EagleHead``.
      ids: int32 ``[Vd]``, ascending: the target's ids of the draft vocabulary.
      rows: the target's output matrix at these ids, ``[W, Vd]``, and its panels or None; None for a
        head that has its own.
    """

    head: Any
    ids: Array
    rows: tuple[Array, Array | None] | None = None


def eagle_params(config: EagleConfig, head: Any, ids: ArrayLike, target_params: Any) -> EagleParams:
    """A loaded head (``heads.formats.load``) as the drafter wants it.

    A head without an output matrix of its own gets the target's rows.

    Args:
      config: the head's.
      head: its parameters.
      ids: int ``[Vd]``, its draft vocabulary.
      target_params: the target's parameters, whose dtype it takes.
    """
    return EagleParams(*prepared(head, ids, target_params, wants_rows=not config.own_head))


WAITING = 16  # slots whose features may wait for a silent head


class EagleState(NamedTuple):
    """The head between rounds.

    Attributes:
      cache: its keys and values, one layer.
      output: ``[B, W]``, what it says after the last slot, before the output matrix.
      hidden: ``[B, W]``, what it feeds back from there.
      waiting: ``[B, M, F]``, the target's features of the slots that follow those of the cache,
        that of slot s at ``s % M``.
      skipped: int32 ``[B]``, slots that the cache will never hold.
    """

    cache: KVCache
    output: Array
    hidden: Array
    waiting: Array
    skipped: Array


@factory
def eagle(
    config: EagleConfig,
    k: int = 4,
    *,
    min_prob: float = 0.0,
    max_entropy: float = math.inf,
    embed: Callable[[Any, Array], Array] = embed_tokens,
) -> Drafter:
    """Drafts a chain of k tokens with an EAGLE head.

    State: invariant between rounds: cache and ``waiting`` together hold the slots whose features
    the target has computed, ``length - 1`` of them but for the ``skipped`` ones. The cache's
    entries are *made from those features*: what the head wrote while it fed on its own outputs is
    forgotten after each round. (Keeping it costs 8 to 15% of the accepted length.) ``output`` and
    ``hidden`` are those of the last entry.

    What waits is read when the row is next asked for a draft, in a pass of the head whose output
    gives the draft's first token; each further one costs another pass. A head that nobody asks (see
    ``first_of``, ``adaptive``) so costs nothing. Of a row in which it is silent for long only the
    last slots wait, and it goes on without those between. All this is a row's own affair, whatever
    its neighbours are asked.

    Without any entry (a one-token prompt) there are no features to start from: it drafts nothing.

    Args:
      config: the head's; ``drafter_params`` are its ``EagleParams``.
      k: most draft tokens a round.
      min_prob: 0 to 1; a draft ends where the product of the head's largest probabilities falls
        below it (see ``draw_chain``): a wider pass wouldn't pay. 0: always k tokens.
      max_entropy: in nats; a draft ends where the entropy of a guess is above it (SVIP,
        arXiv:2411.18462). inf: no threshold.
      embed: ``(target's parameters, tokens [B, T]) -> [B, T, Wt]``, the target's embedding.

    Returns:
      The drafter.

    Raises:
      ValueError: for k below 1, or a probability that is none.
    """
    if k < 1:
        raise ValueError(f"eagle: k={k}; it must be at least 1 (drafter=None decodes plainly)")
    check_prob("eagle", min_prob=min_prob)
    check_entropy("eagle", max_entropy)
    model = EagleHead(config)

    def run(
        params: Params, state: EagleState, tokens: Array, hidden: Array
    ) -> tuple[Array, Array, KVCache]:
        """Appends T entries; ``hidden [B, T, W]`` and the tokens that follow give the outputs."""
        embedded, old = embed(params.target, tokens), state.cache
        attended = _Attention(old, tokens.shape[1])
        freq = rope.frequencies(config.rope, config.head_dim)
        cos, sin = rope.cos_sin(attended.positions, freq)
        variables = {"params": params.drafter.head}
        arguments: Any = embedded, hidden, cos, sin, attended
        ran: Any = model.apply(variables, *arguments, method=EagleHead.step)
        output, fed = ran
        return output, fed, attended.cache

    def fuse(params: Params, features: Array) -> Array:
        out: Any = model.apply({"params": params.drafter.head}, features, method=EagleHead.fuse)
        return out

    def logits(params: Params, output: Array) -> Array:
        variables, rows = {"params": params.drafter.head}, params.drafter.rows
        out: Any = model.apply(variables, output[:, None], rows, method=EagleHead.logits)
        return out[:, 0]

    def absorb(
        params: Params,
        state: EagleState,
        piece: Callable[[Array], tuple[Array, Array]],
        count: Array,
        chunk: int,
    ) -> EagleState:
        """Appends ``count [B]`` entries made from true features, ``chunk`` slots a pass.

        ``piece(numbers [chunk])`` gives the tokens that follow those of the new slots, and their
        features.
        """
        start, offset = state.cache.length, jnp.arange(chunk, dtype=jnp.int32)

        def body(carry: tuple[Array, EagleState]) -> tuple[Array, EagleState]:
            done, state = carry
            tokens, features = piece(done + offset)
            done = done + chunk
            ran = run(params, state, tokens, fuse(params, features))
            return done, _settled(state, ran, start + jnp.minimum(count, done))

        carry = jnp.zeros([], jnp.int32), state
        return lax.while_loop(lambda carry: carry[0] < jnp.max(count), body, carry)[1]

    def catch_up(params: Params, state: EagleState, context: Context, asked: Array) -> EagleState:
        """Reads what waits in the rows that are ``asked [B]``."""
        first, waiting = state.cache.length + state.skipped, state.waiting
        count = jnp.where(asked, context.length - 1 - first, 0)

        def piece(numbers: Array) -> tuple[Array, Array]:
            slots = first[:, None] + numbers
            at = (slots % waiting.shape[1])[:, :, None]
            follows = jnp.minimum(slots + 1, context.tokens.shape[1] - 1)  # the rest: not counted
            tokens = jnp.take_along_axis(context.tokens, follows, 1)
            return tokens, jnp.take_along_axis(waiting, at, 1)

        chunk = PANEL_ROWS if jax.default_backend() == "cpu" else 8  # a round brings few
        return absorb(params, state, piece, count, chunk)

    def init(params: Params, prefill: Prefill) -> EagleState:
        if not isinstance(params.drafter, EagleParams):
            what = type(params.drafter).__name__
            raise ValueError(f"eagle: drafter_params is a {what}; give what eagle_params makes")
        batch, features = prefill.tokens.shape[0], cast(Array, prefill.features)
        empty = kv.init(
            layers=1,
            batch=batch,
            kv_heads=config.num_kv_heads,
            capacity=prefill.capacity,
            head_dim=config.head_dim,
            dtype=prefill.dtype,
        )
        zeros = jnp.zeros([batch, config.width], params.drafter.head["qkv"].dtype)
        room = max(WAITING, prefill.num_nodes + 1)
        waiting = jnp.zeros([batch, room, features.shape[-1]], features.dtype)
        none = jnp.zeros([batch], jnp.int32)
        follows = prefill.tokens[:, 1:]

        def piece(numbers: Array) -> tuple[Array, Array]:
            take = partial(jnp.take, indices=numbers, axis=1, mode="fill", fill_value=0)
            return take(follows), take(features)

        state = EagleState(empty, zeros, zeros, waiting, none)
        return absorb(params, state, piece, prefill.length - 1, prefill.chunk)

    def propose(
        params: Params, state: EagleState, context: Context, limit: Array
    ) -> tuple[Draft, EagleState, Any]:
        limit = jnp.where(context.length > 1, limit, 0)
        state = catch_up(params, state, context, limit > 0)

        def guess(logits: Array) -> Guess:
            return measured(logits, params.drafter.ids, min_prob, max_entropy)

        def step(state: EagleState, last: Array) -> tuple[Guess, EagleState]:
            output, hidden, cache = run(params, state, last, state.hidden[:, None])
            state = state._replace(cache=cache, output=output[:, 0], hidden=hidden[:, 0])
            return guess(logits(params, state.output)), state

        first = lax.cond(  # where no row asks, not even the first token is worth its matrix
            jnp.max(limit) > 0,
            lambda: logits(params, state.output),
            lambda: jnp.zeros([limit.shape[0], config.draft_vocab_size], jnp.float32),
        )
        draft, drafted = draw_chain(
            context.draw,
            limit,
            k,
            guess(first),
            state,
            step,
            min_prob=min_prob,
            max_entropy=max_entropy,
        )
        # A row is left where it stood before its draft: a round may commit nothing, and a row that
        # wasn't asked was taken along by those that were.
        cache = kv.rollback(drafted.cache, state.cache.length)
        return draft, state._replace(cache=cache), context.cache

    def update(params: Params, state: EagleState, context: Context, record: Record) -> EagleState:
        # Only what was made from true features stays.
        all_known = context.length - 1 - state.skipped
        known = jnp.minimum(state.cache.length, all_known)
        features, new = cast(Array, record.features), record.length - context.length
        # The newest take the places of the oldest, where there are too many.
        over = jnp.maximum(all_known - known + new - state.waiting.shape[1], 0)
        return state._replace(
            cache=kv.rollback(state.cache, known),
            waiting=_put(state.waiting, features, context.length - 1, new),
            skipped=state.skipped + over,
        )

    name, varies = f"EAGLE-{config.version}", min_prob > 0 or max_entropy < math.inf
    whole = eagle(config, k, embed=embed) if varies else None
    return Drafter(init, propose, update, k, config.layers, name, varies, whole)


class _Attention:
    """Attention through the head's cache: ``Attend`` for T new slots; leaves the cache behind."""

    def __init__(self, cache: KVCache, length: int):
        self.cache, self._length = cache, length
        self.positions = cache.length[:, None] + jnp.arange(length, dtype=jnp.int32)

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        old, length = self.cache, q.shape[1]
        keys = kv.write(old.keys[0], k.swapaxes(1, 2), old.length)
        values = kv.write(old.values[0], v.swapaxes(1, 2), old.length)
        filled = jnp.minimum(jnp.max(old.length) + length, old.capacity)
        visible = attention.visible_slots(old.length, None, length, old.capacity)
        q = attention.grouped(q, k.shape[2]).astype(keys.dtype)
        out = attention.attend(q, keys, values, visible, filled)
        self.cache = KVCache((keys,), (values,), old.length + jnp.int32(length))
        return attention.ungrouped(out, length)


def _put(waiting: Array, features: Array, slot: Array, count: Array) -> Array:
    """Puts ``features[b, :count[b]]`` at the places of the slots from ``slot[b]`` on."""
    room, offset = waiting.shape[1], jnp.arange(features.shape[1], dtype=jnp.int32)
    places = jnp.where(offset < count[:, None], (slot[:, None] + offset) % room, room)
    put = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))
    return put(waiting, places, features.astype(waiting.dtype))


def _settled(state: EagleState, ran: tuple[Array, Array, KVCache], length: Array) -> EagleState:
    """The state with ``length [B]`` entries after a pass; rows without new ones don't change."""
    output, hidden, cache = ran
    gained = jnp.minimum(length - state.cache.length, output.shape[1])
    at = jnp.maximum(gained - 1, 0)[:, None, None]

    def last(new: Array, old: Array) -> Array:
        new = jnp.take_along_axis(new, at, 1)[:, 0].astype(old.dtype)
        return jnp.where(gained[:, None] > 0, new, old)

    return state._replace(
        cache=kv.rollback(cache, length),
        output=last(output, state.output),
        hidden=last(hidden, state.hidden),
    )
