"""Medusa heads as drafter: a chain whose tokens are guessed all at once, from one feature.

Cai et al. 2024, "Medusa" (arXiv:2401.10774), as a chain.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.drafters.chain import check_entropy, check_prob, entropy, largest_prob
from specjax.drafters.prepared import Rows, prepared
from specjax.factory import factory
from specjax.heads.medusa import MedusaConfig, MedusaHeads


class MedusaParams(NamedTuple):
    """What the drafter is given as ``drafter_params``.

    Attributes:
      heads: parameters of ``MedusaHeads``.
      ids: int32 ``[Vd]``, ascending: the target's ids of the draft vocabulary.
      rows: the target's output matrix at these ids, ``[W, Vd]``, and its panels or None; None for
        heads that have their own.
    """

    heads: Any
    ids: Array
    rows: Rows | None = None


def medusa_params(
    config: MedusaConfig, heads: Any, ids: ArrayLike, target_params: Any
) -> MedusaParams:
    """Loaded heads (``heads.formats.load``) as the drafter wants them.

    Heads without an output matrix get the target's rows.

    Args:
      config: the heads'.
      heads: their parameters.
      ids: int ``[Vd]``, their draft vocabulary.
      target_params: the target's parameters, whose dtype they take.
    """
    wants_rows = config.projection == "target"
    return MedusaParams(*prepared(heads, ids, target_params, wants_rows=wants_rows))


class MedusaState(NamedTuple):
    """What the heads stand on between rounds.

    Attributes:
      feature: ``[B, W]``, the target's stream at the last slot that it has computed.
      known: bool ``[B]``, whether there is such a slot.
    """

    feature: Array
    known: Array


@factory
def medusa(
    config: MedusaConfig,
    k: int | None = None,
    *,
    min_prob: float = 0.0,
    max_entropy: float = math.inf,
) -> Drafter:
    """Drafts a chain of k tokens, token n by head n, with one pass over all heads.

    The heads read the target's feature at the slot before the pending token, so they don't know the
    pending token either: head 1 guesses what follows it. Greedy each takes its best token. Sampled,
    each draws from its own q, whatever the others drew: the draft's law is the product of these,
    and that is the q the verifier gets, so token and block verification keep the target's law.

    State: invariant between rounds: ``feature`` is that of slot ``length - 2``, the last one the
    target's cache holds. Without any (a one-token prompt) it drafts nothing.

    Args:
      config: the heads'; ``drafter_params`` are their ``MedusaParams``.
      k: most draft tokens a round; by default one for each head.
      min_prob: 0 to 1; a draft ends where the product of its heads' largest probabilities falls
        below it. 0: always k tokens.
      max_entropy: in nats; a draft ends where the entropy of a guess is above it (SVIP,
        arXiv:2411.18462). inf: no threshold.

    Returns:
      The drafter.

    Raises:
      ValueError: for k below 1 or above the number of heads, or a probability that is none.
    """
    if k is None:
        return medusa(config, config.num_heads, min_prob=min_prob, max_entropy=max_entropy)
    check_prob("medusa", min_prob=min_prob)
    check_entropy("medusa", max_entropy)
    if not 1 <= k <= config.num_heads:
        raise ValueError(
            f"medusa: k={k}; it must be 1 to {config.num_heads}, the number of heads "
            "(drafter=None decodes plainly)"
        )
    varies = min_prob > 0 or max_entropy < math.inf
    model = MedusaHeads(config)

    def init(params: Params, prefill: Prefill) -> MedusaState:
        if not isinstance(params.drafter, MedusaParams):
            what = type(params.drafter).__name__
            raise ValueError(f"medusa: drafter_params is a {what}; give what medusa_params makes")
        last = jnp.maximum(prefill.length - 2, 0)
        return MedusaState(_at(cast(Array, prefill.features), last), prefill.length > 1)

    def propose(
        params: Params, state: MedusaState, context: Context, limit: Array
    ) -> tuple[Draft, MedusaState, Any]:
        heads, ids, rows = params.drafter
        limit = jnp.where(state.known, limit, 0)

        def drawn() -> tuple[Array, Array, Array | None]:
            arguments: Any = state.feature, rows, k
            logits: Any = model.apply({"params": heads}, *arguments, method=MedusaHeads.logits)
            length = limit
            if varies:  # by what the heads say, before anything is drawn from it
                sure = jnp.cumprod(largest_prob(logits), 1) >= min_prob
                sure = sure & (entropy(logits) <= max_entropy)
                going_on = jnp.cumprod(sure.astype(jnp.int32), 1)
                length = jnp.minimum(limit, jnp.sum(going_on, 1, dtype=jnp.int32))
            pairs = [context.draw(logits[:, node], node + 1, ids) for node in range(k)]
            tokens, laws = zip(*pairs, strict=True)
            if laws[0] is None:
                return jnp.stack(tokens, 1), length, None
            return jnp.stack(tokens, 1), length, jnp.stack([*laws, jnp.zeros_like(laws[0])], 1)

        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(drawn))
        draft = Draft(*lax.cond(jnp.max(limit) > 0, drawn, lambda: nothing))
        return draft, state, context.cache

    def update(params: Params, state: MedusaState, context: Context, record: Record) -> MedusaState:
        del params
        # A round commits the path up to some node and one token more, which is pending then. (A
        # cut at an EOS ends earlier, a frozen row commits nothing.)
        gained = record.length - context.length
        last = jnp.maximum(gained - 1, 0)
        node = jnp.take_along_axis(record.verdict.path, last[:, None], 1)[:, 0]
        new = _at(cast(Array, record.features), node).astype(state.feature.dtype)
        moved = gained > 0
        feature = jnp.where(moved[:, None], new, state.feature)
        return MedusaState(feature, state.known | moved)

    name = "Medusa"
    whole = medusa(config, k) if varies else None
    return Drafter(init, propose, update, k, config.layers, name, varies, whole)


def _at(features: Array, slot: Array) -> Array:
    """``features [B, M, W]`` at ``slot [B]``: ``[B, W]``."""
    return jnp.take_along_axis(features, slot[:, None, None], 1)[:, 0]
