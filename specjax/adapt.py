"""From measured costs to an adaptive drafter: what ``adaptive`` is given, made on the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax import costs, stats, validate
from specjax.adaptive import AdaptiveParams, adaptive
from specjax.calibrate import calibrate_all
from specjax.costs import CostTable
from specjax.draft import Drafter
from specjax.loop import cache_dtype, chosen_widths
from specjax.policies import Policy
from specjax.prospects import Batch, Costs
from specjax.target import Target
from specjax.verify import Verifier
from specjax.warp import Sampling

_PRIOR = 0.6  # of a token's acceptance, before anything is known


def adaptive_params(
    target: Target,
    params: Any,
    drafters: Sequence[Drafter],
    drafter_params: Sequence[Any],
    tables: Sequence[CostTable],
    *,
    batch: int = 1,
    acceptance: float | Sequence[stats.Stats] = _PRIOR,
    widths: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
) -> AdaptiveParams:
    """What ``adaptive`` needs, from the tables that ``calibrate`` measured.

    Args:
      target: the target.
      params: its parameters.
      drafters: those given to ``adaptive``, in its order.
      drafter_params: one entry for each.
      tables: one for each, of the same contexts: from ``calibrate_all``, or several ``calibrate``.
        What a target pass costs is taken from that of the longest drafts; where the machine was
        faster or slower while another was measured, its draft costs are put in proportion.
      batch: rows that will be decoded.
      acceptance: what to expect of each draft token at first, 0 to 1; or a list of the ``stats`` of
        an earlier run of each drafter alone, on similar text, of answers that are long against a
        draft (in their last rounds a budget leaves no room for whole ones, which looks like
        refusals).
      widths: those of the run; by default chosen by the platform.
      dtype: of the caches; by default that of the parameters.

    Raises:
      ValueError: a table of another device, model, drafter, dtype or jax, or without this batch;
        numbers that don't fit each other.
    """
    batch = validate.count("batch", batch)
    drafters, tables = tuple(drafters), tuple(tables)
    if not len(drafters) == len(drafter_params) == len(tables) or not drafters:
        raise ValueError(
            f"adaptive_params: {len(drafters)} drafters, {len(drafter_params)} drafter_params and "
            f"{len(tables)} tables; give one of each for every drafter"
        )
    dtype = jnp.dtype(cache_dtype(params) if dtype is None else validate.floating(dtype))
    for drafter, own, table in zip(drafters, drafter_params, tables, strict=True):
        rule = table.origin.verifier  # costs hardly depend on it
        table.check(costs.origin_of(target, params, drafter, own, dtype, rule))
    nodes = max(drafter.num_nodes for drafter in drafters)
    own_widths = chosen_widths(widths, adaptive(*drafters))
    contexts = tables[0].contexts
    if any(table.contexts != contexts for table in tables):
        raise ValueError(
            f"adaptive_params: the tables are of the contexts {[t.contexts for t in tables]}; "
            "calibrate all drafters at the same ones"
        )
    widest = max(tables, key=lambda table: table.num_nodes)
    by_width = [
        [_pass_seconds(widest, batch, context, width) for width in own_widths]
        for context in contexts
    ]
    index = [next(i for i, w in enumerate(own_widths) if w > n) for n in range(nodes + 1)]
    pace = [_pace(table, widest, batch) for table in tables]
    idle = [x * table.draft_seconds(batch, 0) for x, table in zip(pace, tables, strict=True)]
    draft = np.full([len(drafters), nodes + 1], np.inf)
    for i, (drafter, table) in enumerate(zip(drafters, tables, strict=True)):
        for n in range(drafter.num_nodes + 1):
            draft[i, n] = pace[i] * table.draft_seconds(batch, n) + sum(idle) - idle[i]
    number = partial(jnp.asarray, dtype=jnp.float32)
    accepted, drafted, seen = map(number, _expected(acceptance, drafters, nodes))
    none = number(np.zeros(len(drafters)))  # rounds of silence
    target_s = number(np.array(by_width)[:, index])
    made = Costs(
        number(contexts), target_s, number(draft), accepted, drafted, seen, none, Batch(batch)
    )
    return AdaptiveParams(tuple(drafter_params), made)


def _pass_seconds(table: CostTable, batch: int, context: float, width: int) -> float:
    """The target's side at a width; one that the table lacks costs what the next wider one does.

    Raises:
      ValueError: it has none so narrow, and a pass of one token would seem as dear as a draft's.
    """
    if width < table.widths[0]:
        raise ValueError(
            f"adaptive_params: the table begins with passes of {table.widths[0]} tokens, and the "
            f"run has some of {width}: give calibrate widths=({width}, ...)"
        )
    return table.target_seconds(batch, context, width)


def _pace(table: CostTable, other: CostTable, batch: int) -> float:
    """How much longer the same passes took while the other table was measured: the median."""
    pairs = [
        (table.target_seconds(batch, context, width), other.target_seconds(batch, context, width))
        for width in set(table.widths) & set(other.widths)
        for context in table.contexts
    ]
    ratios = [theirs / ours for ours, theirs in pairs if ours > 0 and theirs > 0]
    return float(np.median(ratios)) if ratios else 1.0


def _expected(
    acceptance: float | Sequence[stats.Stats], drafters: Sequence[Drafter], nodes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``Costs.accepted``, ``Costs.drafted`` and ``Costs.seen``."""
    if isinstance(acceptance, int | float | np.floating) and not isinstance(acceptance, bool):
        if not 0 <= acceptance <= 1:
            raise ValueError(f"adaptive_params: acceptance={acceptance}; it must be 0 to 1")
        shape = len(drafters), nodes
        return np.full(shape, float(acceptance)), np.ones(shape), np.zeros((2, *shape))
    if not isinstance(acceptance, list | tuple) or not all(
        isinstance(seen, stats.Stats) for seen in acceptance
    ):
        raise ValueError(
            "adaptive_params: acceptance is neither a number from 0 to 1 nor a list of Stats; give "
            f"one of them (it is {type(acceptance).__name__})"
        )
    if len(acceptance) != len(drafters):
        raise ValueError(
            f"adaptive_params: acceptance holds {len(acceptance)} stats for {len(drafters)} "
            "drafters; give one for each, or a number"
        )
    accepted, drafted = np.full([len(drafters), nodes], _PRIOR), np.ones([len(drafters), nodes])
    rounds = np.zeros([2, len(drafters), nodes])
    for i, (seen, drafter) in enumerate(zip(acceptance, drafters, strict=True)):
        if seen.judged.shape[1] != drafter.num_nodes:
            raise ValueError(
                f"adaptive_params: acceptance[{i}] has {seen.judged.shape[1]} draft positions, "
                f"and {drafter.name} drafts {drafter.num_nodes}: its stats are another drafter's"
            )
        right, judged = np.asarray(seen.accepted).sum(0), np.asarray(seen.judged).sum(0)
        before = np.concatenate([[np.asarray(seen.rounds).sum()], right[:-1]])
        some = before > 0
        n = drafter.num_nodes
        accepted[i, :n][some] = (right / np.maximum(before, 1))[some]
        drafted[i, :n][some] = (judged / np.maximum(before, 1))[some]
        rounds[:, i, :n] = before
    return accepted, drafted, rounds


def adapt(
    target: Target,
    params: Any,
    drafters: Drafter | Sequence[Drafter],
    drafter_params: Any,
    *,
    batch: int = 1,
    sampling: Sampling | None = None,
    verifier: Verifier | None = None,
    acceptance: float | Sequence[stats.Stats] = _PRIOR,
    policy: Policy | None = None,
    **calibration: Any,
) -> tuple[Drafter, AdaptiveParams]:
    """Calibrates (or finds the tables on disk), and makes the adaptive drafter and its parameters.

    Args:
      target: the target.
      params: its parameters.
      drafters: one drafter, or several, in the order in which they are asked.
      drafter_params: of one its parameters, of several one entry for each.
      batch: rows that will be decoded.
      sampling: as for ``sample``.
      verifier: as for ``sample``.
      acceptance: see ``adaptive_params``.
      policy: see ``adaptive``.
      **calibration: further arguments of ``calibrate``.

    Returns:
      ``drafter`` and ``drafter_params`` for ``sample``.

    Raises:
      ValueError: as ``calibrate`` and ``adaptive_params`` do.
    """
    if isinstance(drafters, Drafter):
        drafters, drafter_params = [drafters], [drafter_params]
    if not isinstance(drafter_params, Sequence) or len(drafters) != len(drafter_params):
        raise ValueError(
            f"adapt: {len(drafters)} drafters need as many drafter_params in a list (None for a "
            "drafter that takes none)"
        )
    made = adaptive(*drafters, policy=policy)
    _expected(acceptance, drafters, made.num_nodes)  # refused now, not after half a minute
    calibration["widths"] = chosen_widths(calibration.get("widths"), made)
    tables = calibrate_all(
        target, params, drafters, drafter_params, batches=(batch,), sampling=sampling,
        verifier=verifier, **calibration,
    )  # fmt: skip
    given = adaptive_params(
        target, params, drafters, drafter_params, tables, batch=batch, acceptance=acceptance,
        widths=calibration["widths"], dtype=calibration.get("dtype"),
    )  # fmt: skip
    return made, given
