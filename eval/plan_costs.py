"""What a plan reckons with: seconds of passes and drafts, from a roofline or a cost table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from eval import datasheet
from eval.settings import DTYPES
from specjax import costs, device
from specjax.models import ModelConfig, loading, transformer_target

if TYPE_CHECKING:
    from eval.plan import Settings


class Costs(NamedTuple):
    """What a round is made of, in seconds.

    Attributes:
      source: where it is known from, for people.
      memory: bytes of the device; None where nobody can say.
      dtype: of weights and caches.
      target: a target pass, by batch, context and tokens.
      draft: a whole draft, by batch, context and k.
    """

    source: str
    memory: float | None
    dtype: jnp.dtype
    target: Callable[[int, int, int], float]
    draft: Callable[[int, int, int], float]


def from_roofline(settings: Settings, model: ModelConfig) -> Costs:
    """The costs of a target on a datasheet's device, or on the one here as measured."""
    if settings.device:
        dtype = jnp.dtype(settings.dtype or "bfloat16")
        on = datasheet.device_of(settings.device, settings.efficiency)
        source = f"roofline of {on}; {settings.efficiency:.0%} of that is reached"
    else:
        dtype = jnp.dtype(settings.dtype or device.default_dtype())
        on = datasheet.measured(dtype)
        source = f"roofline of {on}, measured"
    line = datasheet.Roofline(on, model, dtype.itemsize)
    weights = draft_weights(settings, model)

    def draft(batch: int, context: int, k: int) -> float:
        return k * line.draft_seconds(batch, context, weights, settings.draft_layers)

    target = line.pass_seconds
    return Costs(source, on.memory, dtype, target, _by_the_step(settings, target) or draft)


def from_table(settings: Settings, model: ModelConfig) -> Costs:
    """The costs that were measured; the memory is a datasheet's, or this device's.

    Raises:
      ValueError: no table, one of something else, or one that holds too little.
    """
    table = costs.load(settings.table)
    _check_table(settings, table)
    origin = table.origin
    _check_origin(settings, model, origin)
    if settings.device:
        memory = datasheet.device_of(settings.device).memory
    else:
        memory = device.memory_bytes()

    def draft(batch: int, context: int, k: int) -> float:
        del context
        return table.draft_seconds(batch, k)

    drafter = f" with {origin.drafter}" if origin.drafter else ""
    source = f"table {settings.table} of {origin.model}{drafter} on {origin.device}"
    dtype, target = jnp.dtype(origin.dtype), table.target_seconds
    return Costs(source, memory, dtype, target, _by_the_step(settings, target) or draft)


def draft_weights(settings: Settings, model: ModelConfig) -> float:
    """Weights that a draft step reads; see ``Settings.draft_params``.

    Of an EAGLE-3 head they are those of a layer that reads embedding and hidden state side by side,
    and of the draft vocabulary's output matrix (Li et al. 2025, arXiv:2503.01840).
    """
    if settings.draft_params is not None:
        return 1e6 * settings.draft_params
    c, heads = model, model.num_heads + 2 * model.num_kv_heads
    attention = 2 * c.width * heads * c.head_dim + c.num_heads * c.head_dim * c.width
    return attention + 3 * c.width * c.ffn_width + settings.draft_vocab * c.width


def _check_table(s: Settings, table: costs.CostTable) -> None:
    known = f"the table {s.table}"
    if table.origin.dtype not in DTYPES or s.dtype not in ("", table.origin.dtype):
        raise ValueError(
            f"config.dtype={s.dtype!r}, but {known} is of {table.origin.dtype!r}; leave it empty, "
            "or calibrate again"
        )
    if table.widths[0] != 1 or not table.target_s.all():
        raise ValueError(
            f"{known} holds no cost of a pass over one token; calibrate with widths from 1 on"
        )
    if len(table.drafts) < 2 and (s.draft_cost is None or not table.num_nodes):
        raise ValueError(f"{known} was measured without a drafter; calibrate with one")
    if s.max_k > table.num_nodes:
        raise ValueError(
            f"config.max_k={s.max_k}, but {known} ends at drafts of {table.num_nodes} tokens; "
            "lower it, or calibrate with a drafter of as many"
        )
    if s.batches[0] < table.batches[0] or s.batches[-1] > table.batches[-1]:
        raise ValueError(
            f"config.batches={s.batches}, but {known} was measured at {table.batches}; calibrate "
            "with batches that enclose them"
        )
    if s.contexts[-1] > table.contexts[-1]:
        raise ValueError(
            f"config.contexts={s.contexts}, but {known} ends at {table.contexts[-1]} filled slots; "
            "calibrate with a context of as many"
        )


def _check_origin(s: Settings, model: ModelConfig, origin: costs.Origin) -> None:
    """Raises ValueError where the table was measured on something else; names what differs."""
    known, name = f"the table {s.table}", transformer_target(model).name
    # With panels of either form or without, in whatever dtype, it is the same model: what another
    # device holds is not known here, and a table's dtype is that of the caches.
    dtypes = [origin.dtype, *(dtype for dtype in DTYPES[1:] if dtype != origin.dtype)]
    ours, *others = (
        costs.described(
            name,
            loading.shapes(
                model, dtype, panels=loading.wants_panels(model, dtype) != other, upright=upright
            ),
        )
        for dtype in map(jnp.dtype, dtypes)
        for other in (False, True)
        for upright in (None, False, True)  # None, as here, comes first: ``ours`` in a message
    )
    if origin.model not in (ours, *others):
        raise ValueError(
            f"config.target={s.target!r} is {ours}, but {known} is of another model, "
            f"{origin.model}; give the target that it was measured on, or calibrate with this one"
        )
    if s.device:  # not planned for the one here
        return
    for what, theirs, here in (
        ("device", origin.device, device.kind()),
        ("jax", origin.jax, jax.__version__),
    ):
        if theirs != here:
            raise ValueError(
                f"{known} is of another {what}: {theirs!r}, and this is {here!r}; calibrate "
                "again, or say in config.device what it was measured on"
            )


def _by_the_step(
    settings: Settings, target: Callable[[int, int, int], float]
) -> Callable[[int, int, int], float] | None:
    """What a draft takes where its cost is given as a share of a target pass."""
    c = settings.draft_cost
    return None if c is None else lambda batch, context, k: k * c * target(batch, context, 1)
