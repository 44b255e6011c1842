"""Drafting by measured cost: how much to draft, by whom, or nothing, is decided every round.

Speculation competes with the batch for compute: where a wide pass costs more than its tokens bring,
drafting slows decoding down. ``adaptive`` is a drafter around others that knows what a round costs
on the device (``calibrate``) and keeps count of what was accepted, and drafts as much as makes most
tokens a second. The rule, on one page: docs/adaptive.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.by_cost import by_cost
from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.drafters import several
from specjax.factory import factory
from specjax.policies import Outcome, Policy
from specjax.prospects import Costs


class AdaptiveParams(NamedTuple):
    """What ``adaptive`` is given as ``drafter_params``; ``adaptive_params`` makes it.

    Attributes:
      drafters: one entry for each drafter.
      costs: what the policy decides by; None for one that asks for none.
    """

    drafters: tuple
    costs: Costs | None = None


class AdaptiveState(NamedTuple):
    """Between rounds.

    Attributes:
      drafters: their own states.
      policy: the policy's.
      asked: int32 ``[B, D]``, how much each drafter was asked for last.
      drafted: int32 ``[B, D]``, and how much each drafted.
    """

    drafters: tuple
    policy: Any
    asked: Array
    drafted: Array


@factory
def adaptive(*drafters: Drafter, policy: Policy | None = None) -> Drafter:
    """Asks the drafters in their order, each for as much as the policy says, or not at all.

    A row takes the first draft that isn't empty, as with ``drafters.first_of``, so who costs least
    goes first. The policy sees past rounds only: outputs keep the target's law, whatever it says,
    as long as no drafter's *silence* depends on a token it drew.
    ``by_cost`` decides for the batch as a whole: with greedy, match or coupled verification outputs
    are plain decoding's all the same; under token and block verification a row's tokens then depend
    on its neighbours (through the draft lengths), and their law doesn't.

    State: the drafters' own (see ``several``), all kept fresh in every round; what those that say
    nothing take for it is part of the costs.

    Args:
      *drafters: at least one; ``drafter_params`` are ``AdaptiveParams``.
      policy: ``by_cost()`` by default; others are in ``policies``.

    Returns:
      The drafter; it drafts at most as much as the longest of them.

    Raises:
      ValueError: without drafters.
    """
    several.check("adaptive", drafters)
    if not (policy is None or isinstance(policy, Policy)):
        raise ValueError(
            f"adaptive: policy={policy!r}; it must be a Policy, such as policies.heuristic()"
        )
    if policy is None:
        return adaptive(*drafters, policy=by_cost())
    nodes = max(drafter.num_nodes for drafter in drafters)

    def own(params: Params) -> tuple[Params, Costs | None]:
        given = params.drafter
        if not isinstance(given, AdaptiveParams):
            raise ValueError(
                f"adaptive: drafter_params is a {type(given).__name__}; give what adaptive_params "
                "makes"
            )
        if policy.needs_costs and given.costs is None:
            raise ValueError(
                f"adaptive: the policy {policy.name!r} decides by costs, and drafter_params has "
                "none; give adaptive_params the tables of calibrate"
            )
        wanted = len(drafters), nodes + 1
        if given.costs is not None and given.costs.draft.shape != wanted:
            raise ValueError(
                f"adaptive: drafter_params has costs of {given.costs.draft.shape[0]} drafters and "
                f"drafts of up to {given.costs.draft.shape[1] - 1} tokens; these are {wanted[0]} "
                f"drafters of up to {nodes} tokens"
            )
        return params._replace(drafter=given.drafters), given.costs

    def init(params: Params, prefill: Prefill) -> AdaptiveState:
        inner, costs = own(params)
        states = several.init("adaptive", drafters, inner, prefill)
        batch = prefill.length.shape[0]
        none = jnp.zeros([batch, len(drafters)], jnp.int32)
        return AdaptiveState(states, policy.init(costs, batch, len(drafters), nodes), none, none)

    def propose(
        params: Params, state: AdaptiveState, context: Context, limit: Array
    ) -> tuple[Draft, AdaptiveState, Any]:
        inner, costs = own(params)
        if policy.needs_costs:  # here, not in init, which generate_many calls for a few rows
            _check_rows(costs, limit.shape[0])
        limits = jnp.minimum(limit[:, None], policy.choose(costs, state.policy, context))
        limits = jnp.broadcast_to(limits, state.asked.shape)
        turns = several.in_turn(drafters, inner, state.drafters, context, limits)
        after = AdaptiveState(turns.states, state.policy, turns.asked, turns.drafted)
        return turns.draft, after, turns.cache

    def update(
        params: Params, state: AdaptiveState, context: Context, record: Record
    ) -> AdaptiveState:
        inner, costs = own(params)
        outcome = Outcome(
            active=record.length > context.length,
            limit=state.asked,
            drafted=state.drafted,
            # The draft that was verified may be another's, where these had none.
            accepted=jnp.where(state.drafted > 0, record.verdict.accepted[:, None], 0),
        )
        return state._replace(
            drafters=several.update(drafters, inner, state.drafters, context, record),
            policy=policy.learn(costs, state.policy, outcome),
        )

    def learned(params: Params, state: AdaptiveState, rows: Array) -> AdaptiveParams:
        inner, costs = own(params)
        costs = policy.learned(costs, state.policy, rows) if policy.learned else costs
        parts = several.learned(drafters, inner, state.drafters, rows)
        return AdaptiveParams(parts, costs)

    how = "adaptive" if policy.needs_costs else policy.name
    name = f"{how} {' / '.join(drafter.name for drafter in drafters)}"
    layers = several.layers(drafters)
    reads = any(drafter.reads_logits for drafter in drafters)
    learns = policy.learned is not None or any(drafter.learned for drafter in drafters)
    return Drafter(
        init, propose, update, nodes, layers, name, True, None, reads,
        learned if learns else None, several.parts(drafters), several.settings(drafters),
    )  # fmt: skip


def _check_rows(costs: Costs | None, rows: int) -> None:
    """Raises ValueError for costs of another batch: what a wide pass takes depends on the rows."""
    if costs is not None and costs.batch.rows not in (None, rows):
        raise ValueError(
            f"adaptive: drafter_params has the costs of batch {costs.batch.rows}, and this run has "
            f"{rows} rows; give adapt or adaptive_params batch={rows}"
        )
