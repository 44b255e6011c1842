"""A smaller language model as drafter (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.drafters.chain import Guess, check_entropy, check_prob, draw_chain, measured
from specjax.factory import factory
from specjax.prefill import prefill as run_prefill
from specjax.target import Cache, Target

_FEW, _MANY = 2, 16  # tokens of a pass that catches up


class DraftModelParams(NamedTuple):
    """What the drafter is given as ``drafter_params`` for a model of a draft vocabulary.

    Attributes:
      model: the model's parameters.
      ids: int32 ``[Vd]``, the target's ids of its logits; None: they are by the target's ids.
    """

    model: Any
    ids: Array | None = None


class DraftModelState(NamedTuple):
    """The model between rounds.

    Attributes:
      cache: its own.
      drafted: int32 ``[B, k]``, what it drafted in this round.
      length: int32 ``[B]``, how many of them.
    """

    cache: Cache
    drafted: Array
    length: Array


@factory
def draft_model(
    model: Target, k: int = 5, *, min_prob: float = 0.0, max_entropy: float = math.inf
) -> Drafter:
    """Drafts a chain of k tokens with a model of its own.

    State: invariant between rounds: the model's cache holds ``length - 1`` true entries, or fewer
    where it has not seen what was accepted: the last token of its own draft, or another drafter's
    draft (``first_of``, ``adaptive``). A round begins with passes that catch up: a single one, over
    two tokens, after drafts of its own.

    Args:
      model: any Target with the target's tokenizer (``check_same_tokenizer`` checks that; a Target
        knows no tokens); its padded vocabulary may differ.
      k: most draft tokens a round.
      min_prob: 0 to 1; a draft ends where the product of the model's largest probabilities falls
        below it (see ``draw_chain``). 0: always k tokens.
      max_entropy: in nats; a draft ends where the entropy of a guess is above it (SVIP,
        arXiv:2411.18462). inf: no threshold.

    Returns:
      The drafter; ``drafter_params`` are the model's parameters, or ``DraftModelParams`` for a
      model whose logits are of some of the target's ids (``models.students.load``). Tokens go into
      it by the target's ids in any case.

    Raises:
      ValueError: for k below 1, a probability that is none, or a model that can't roll back.
    """
    if k < 1:
        raise ValueError(
            f"draft_model: k={k}; it must be at least 1 (drafter=None decodes plainly)"
        )
    check_prob("draft_model", min_prob=min_prob)
    check_entropy("draft_model", max_entropy)
    if not callable(model.rollback):
        raise ValueError(f"draft_model: {model.name!r} has no rollback; its cache must forget")

    def init(params: Params, prefill: Prefill) -> DraftModelState:
        if params.drafter is None:
            raise ValueError("draft_model: drafter_params is None; give the model's parameters")
        own, ids = _parts(params)
        if ids is not None and ids.shape != (model.vocab_size,):
            raise ValueError(
                f"draft_model: ids has shape {ids.shape}; the model has logits of "
                f"{model.vocab_size} ids"
            )
        batch = prefill.tokens.shape[0]
        empty = model.init_cache(batch, prefill.capacity, prefill.dtype)
        arguments = model, own, prefill.tokens, prefill.length, empty
        filled, _ = run_prefill(*arguments, chunk=prefill.chunk)
        nothing = jnp.zeros([batch, k], jnp.int32), jnp.zeros([batch], jnp.int32)
        return DraftModelState(filled, *nothing)

    def propose(
        params: Params, state: DraftModelState, context: Context, limit: Array
    ) -> tuple[Draft, DraftModelState, Any]:
        own, ids = _parts(params)

        def guess(logits: Array) -> Guess:
            return measured(logits, ids, min_prob, max_entropy)

        def step(cache: Cache, last: Array) -> tuple[Guess, Cache]:
            logits, _, cache = model.apply(own, last, cache)
            return guess(logits[:, 0]), cache

        asked = jnp.max(limit) > 0  # else another drafter speaks: what it says can wait
        first, cache = _catch_up(model, own, state.cache, context, asked)
        draft, cache = draw_chain(
            context.draw,
            limit,
            k,
            guess(first),
            cache,
            step,
            min_prob=min_prob,
            max_entropy=max_entropy,
        )
        return draft, DraftModelState(cache, draft.tokens, draft.length), context.cache

    def update(
        params: Params, state: DraftModelState, context: Context, record: Record
    ) -> DraftModelState:
        del params
        # The model has seen the pending token and all tokens of its draft but the last. By the
        # row's own draft length: what a row computes next must not depend on its neighbours.
        same = (state.drafted == record.draft.tokens[:, :k]).astype(jnp.int32)
        run = jnp.sum(jnp.cumprod(same, 1, dtype=jnp.int32), 1, dtype=jnp.int32)
        true = jnp.minimum(record.verdict.accepted, run)
        seen = jnp.minimum(true, jnp.maximum(state.length - 1, 0))
        length = jnp.minimum(context.length + seen, record.length - 1)
        return state._replace(cache=model.rollback(state.cache, length))

    name, varies = f"draft model ({model.name})", min_prob > 0 or max_entropy < math.inf
    whole = draft_model(model, k) if varies else None
    return Drafter(init, propose, update, k, name=name, varies=varies, whole=whole)


def _parts(params: Params) -> tuple[Any, Array | None]:
    """The model's parameters and the ids of its logits."""
    given = params.drafter
    if not isinstance(given, DraftModelParams):
        return given, None
    return given.model, None if given.ids is None else jnp.asarray(given.ids, jnp.int32)


def _catch_up(
    model: Target, params: Any, cache: Cache, context: Context, asked: Array
) -> tuple[Array, Cache]:
    """Feeds the tokens the model has not seen; the logits after the pending token.

    Two a pass, which is what its own drafts leave; sixteen where it was silent for long, as long as
    no row is so near its end that a cache would have no room for them.

    Returns:
      logits ``[B, V']``, and the cache with ``length`` entries; unless ``asked``, zeros, and the
      cache as it was.
    """
    end = context.length
    cache = model.rollback(cache, end - 1)  # the pending token is fed in any case

    def feed(tokens: int, cache: Cache, logits: Array | None) -> tuple[Cache, Array]:
        unseen, offset = end - cache.length, jnp.arange(tokens, dtype=jnp.int32)
        slots = jnp.minimum(cache.length[:, None] + offset, end[:, None] - 1)  # the rest: not read
        new, _, fed = model.apply(params, jnp.take_along_axis(context.tokens, slots, 1), cache)
        new = jnp.take_along_axis(new, jnp.clip(unseen - 1, 0, tokens - 1)[:, None, None], 1)[:, 0]
        if logits is not None:
            new = jnp.where(unseen[:, None] > 0, new, logits)
        return model.rollback(fed, jnp.minimum(cache.length + tokens, end)), new

    def behind(carry: tuple[Cache, Array]) -> Array:
        return asked & jnp.any(carry[0].length < end)

    def far_behind(carry: tuple[Cache, Array]) -> Array:
        length, room = carry[0].length, context.tokens.shape[1]
        return asked & jnp.any(end - length > _FEW) & (jnp.max(length) + _MANY <= room)

    shape = jax.eval_shape(partial(feed, _FEW), cache, None)[1]
    carry = cache, jnp.zeros(shape.shape, shape.dtype)
    carry = lax.while_loop(far_behind, lambda carry: feed(_MANY, *carry), carry)
    cache, logits = lax.while_loop(behind, lambda carry: feed(_FEW, *carry), carry)
    return logits, cache


def check_same_tokenizer(target: Mapping[str, int], drafter: Mapping[str, int]) -> None:
    """Checks that two vocabularies (token text to id) are one (the models may pad it differently).

    Raises:
      ValueError: naming the first id where they differ.
    """
    ours, theirs = ({i: text for text, i in v.items()} for v in (target, drafter))
    for i in range(max(max(ours, default=-1), max(theirs, default=-1)) + 1):
        if ours.get(i) != theirs.get(i):
            raise ValueError(
                f"the drafter's tokenizer differs from the target's, first at id {i}: "
                f"{theirs.get(i)!r} against {ours.get(i)!r}; use a drafter of the same tokenizer"
            )
