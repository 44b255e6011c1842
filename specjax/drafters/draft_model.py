"""A smaller language model as drafter (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.drafters.chain import draw_chain
from specjax.prefill import prefill as run_prefill
from specjax.target import Cache, Target


@cache
def draft_model(model: Target, k: int = 5) -> Drafter:
    """Drafts a chain of k tokens with a model of its own.

    State: the model's cache. Invariant between rounds: it holds ``length - 1`` true entries, or one
    fewer (the model has not seen the last token of a fully accepted draft). So the first pass of a
    round takes two tokens and reads the one or the other row of logits.

    Args:
      model: any Target with the target's tokenizer (``check_same_tokenizer`` checks that; a Target
        knows no tokens); its padded vocabulary may differ.
      k: draft tokens a round.

    Returns:
      The drafter; ``drafter_params`` are the model's parameters.

    Raises:
      ValueError: for k below 1, or a model that can't roll back.
    """
    if k < 1:
        raise ValueError(
            f"draft_model: k={k}; it must be at least 1 (drafter=None decodes plainly)"
        )
    if not callable(model.rollback):
        raise ValueError(f"draft_model: {model.name!r} has no rollback; its cache must forget")

    def init(params: Params, prefill: Prefill) -> Cache:
        empty = model.init_cache(prefill.tokens.shape[0], prefill.capacity, prefill.dtype)
        arguments = model, params.drafter, prefill.tokens, prefill.length, empty
        return run_prefill(*arguments, chunk=prefill.chunk)[0]

    def propose(
        params: Params, state: Cache, context: Context, limit: Array
    ) -> tuple[Draft, Cache, Any]:
        def step(cache: Cache, last: Array) -> tuple[Array, Cache]:
            logits, _, cache = model.apply(params.drafter, last, cache)
            return logits[:, 0], cache

        first, state = _catch_up(model, params.drafter, state, context)
        draft, state = draw_chain(context, limit, k, first, state, step)
        return draft, state, context.cache

    def update(params: Params, state: Cache, context: Context, record: Record) -> Cache:
        del params
        # The model has seen the pending token and all draft tokens but the last. By the row's own
        # draft length, so that what a row computes next does not depend on its neighbours.
        seen = jnp.minimum(record.verdict.accepted, jnp.maximum(record.draft.length - 1, 0))
        return model.rollback(state, jnp.minimum(context.length + seen, record.length - 1))

    return Drafter(init, propose, update, num_nodes=k, name=f"draft model ({model.name})")


def _catch_up(model: Target, params: Any, cache: Cache, context: Context) -> tuple[Array, Cache]:
    """Feeds the one or two tokens the model has not seen; the logits after the pending token.

    Returns:
      logits ``[B, Vd]``, and the cache with ``length`` entries.
    """
    unseen = context.length - cache.length  # 1 or 2
    slots = context.length[:, None] - unseen[:, None] + jnp.arange(2, dtype=jnp.int32)
    slots = jnp.minimum(slots, context.length[:, None] - 1)  # the second of one is never read
    logits, _, cache = model.apply(params, jnp.take_along_axis(context.tokens, slots, 1), cache)
    last = jnp.take_along_axis(logits, unseen[:, None, None] - 1, 1)[:, 0]
    return last, model.rollback(cache, context.length)


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
