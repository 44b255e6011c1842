"""Measuring what a round costs on the device at hand: ``calibrate``."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax import costs, validate
from specjax.clocks import Clocks, Plan, one_of
from specjax.costs import CostTable
from specjax.draft import Drafter, Params
from specjax.drafters import several
from specjax.loop import cache_dtype, prepare
from specjax.machine import cache_folder
from specjax.target import Target
from specjax.verify import Verifier
from specjax.warp import Sampling

_REVISION = 3  # of what is timed: a new one makes the tables on disk forgotten


def calibrate(
    target: Target,
    params: Any,
    drafter: Drafter | None = None,
    drafter_params: Any = None,
    *,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] = (128, 1024),
    sampling: Sampling | None = None,
    verifier: Verifier | None = None,
    widths: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    folder: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    progress: Callable[[str], Any] = lambda what: None,
) -> CostTable:
    """Times the parts of a round: the target's side by tokens, the drafter's by draft length.

    Whole rounds run back to back in one compiled loop, as in decoding; what the drafter takes is
    the difference to rounds in which nobody works for the draft, timed in turn. (Timed alone, a
    small head would stay in a processor's cache, and seem cheaper than it is.) A batch size takes
    two compilations of the loop. The table is kept on disk by what it was measured on.

    Args:
      target: the model.
      params: its parameters.
      drafter: what guesses; None: only the target's side at one token.
      drafter_params: its parameters.
      batches: ascending batch sizes.
      contexts: ascending numbers of filled slots, at least 2.
      sampling: how to sample, for what verification costs; greedy by default.
      verifier: the rule, as for ``sample``.
      widths: numbers of tokens a target pass may take, as for ``sample``.
      dtype: of the caches.
      folder: where tables are kept; specjax's cache folder by default.
      fresh: measure, even if there is a table of these parts.
      progress: called with a few words before each batch size.

    Returns:
      The table.

    Raises:
      ValueError: for bad arguments, a folder that can't be written, or a target's cache whose
        length can't be set.
    """
    drafters, given = ((), ()) if drafter is None else ((drafter,), (drafter_params,))
    return calibrate_all(
        target, params, drafters, given, batches=batches, contexts=contexts, sampling=sampling,
        verifier=verifier, widths=widths, dtype=dtype, folder=folder, fresh=fresh,
        progress=progress,
    )[0]  # fmt: skip


def calibrate_all(
    target: Target,
    params: Any,
    drafters: Sequence[Drafter],
    drafter_params: Sequence[Any],
    *,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] = (128, 1024),
    sampling: Sampling | None = None,
    verifier: Verifier | None = None,
    widths: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    folder: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    progress: Callable[[str], Any] = lambda what: None,
) -> list[CostTable]:
    """``calibrate`` for drafters that will be asked in turn, all in the same loop.

    It takes no more compilations than a single one. What all of them take together to stay silent
    is shared out evenly.

    Args:
      target: the model.
      params: its parameters.
      drafters: one or more, in the order in which they will be asked; none: only the target's side.
      drafter_params: one entry for each.
      batches: as for ``calibrate``.
      contexts: as for ``calibrate``.
      sampling: as for ``calibrate``.
      verifier: as for ``calibrate``.
      widths: those of the run.
      dtype: as for ``calibrate``.
      folder: as for ``calibrate``.
      fresh: measure, even if there are tables of just these parts.
      progress: as for ``calibrate``.

    Returns:
      A table for each, up to its own longest draft; or the target's alone.

    Raises:
      ValueError: as ``calibrate``, and for another number of drafter_params than of drafters.
    """
    batches = validate.ascending("batches", batches, 1)
    contexts = validate.ascending("contexts", contexts, 2)
    drafters, given = _paired(drafters, drafter_params)
    for drafter in drafters or (None,):
        validate.parts(target, drafter, verifier)
    dtype = jnp.dtype(cache_dtype(params) if dtype is None else validate.floating(dtype))
    key, together = jax.random.key(0), one_of(drafters) if drafters else None
    engine, _ = prepare(
        target, together, given or None, sampling, verifier, key, widths, batches[0]
    )
    origins = [
        costs.origin_of(target, params, drafter, own, dtype, engine.verifier.name)
        for drafter, own in zip(drafters or (None,), given or (None,), strict=True)
    ]
    plans = [Plan.of(n, engine.widths) for n in [d.num_nodes for d in drafters] or [0]]
    axes = [(tuple(batches), tuple(contexts), *plan) for plan in plans]
    where = pathlib.Path(folder or cache_folder() / "costs")
    paths = _paths(where, origins, axes, engine.widths, sampling)
    if not fresh:
        with contextlib.suppress(ValueError):  # no such table, or a file that is none
            return [_found(*one) for one in zip(paths, origins, axes, strict=True)]

    _make_room(where)
    target_s = [np.zeros([len(batches), len(contexts), len(plan.widths)]) for plan in plans]
    draft_s = [np.zeros([len(batches), len(plan.drafts)]) for plan in plans]
    for index, batch in enumerate(batches):
        progress(f"batch {batch}")
        clocks = Clocks(
            engine, Params(params, given or None), batch, contexts, dtype=dtype,
            sampling=sampling or Sampling(), key=key,
        )  # fmt: skip
        for i, (passes, own) in enumerate(clocks.measure(plans)):
            target_s[i][index], draft_s[i][index] = passes, own
    tables = [
        CostTable(origin, *axis, passes, own)
        for origin, axis, passes, own in zip(origins, axes, target_s, draft_s, strict=True)
    ]
    for path, table in zip(paths, tables, strict=True):
        table.save(path)
    return tables


def _paired(drafters: Sequence[Drafter], params: Sequence[Any]) -> tuple[tuple, tuple]:
    """Drafters and their parameters, as tuples.

    Raises:
      ValueError: for what is no list of drafters, or has another number of parameters.
    """
    given = [
        f"{len(x)} entries" if type(x) in (list, tuple) else f"a {type(x).__name__}"
        for x in (drafters, params)
    ]
    if given[0] != given[1] or type(drafters) not in (list, tuple):
        raise ValueError(
            f"calibrate_all: drafters is {given[0]}, drafter_params {given[1]}; give a list of "
            "drafters and a list with the drafter_params of each (None where it takes none)"
        )
    if drafters:
        several.check("calibrate_all", tuple(drafters))
    return tuple(drafters), tuple(params)


def _paths(
    folder: pathlib.Path,
    origins: Sequence[costs.Origin],
    axes: Sequence[tuple],
    widths: Sequence[int],
    sampling: Sampling | None,
) -> list[pathlib.Path]:
    """Where the tables of just these parts, measured together, are kept."""
    settings = zip(Sampling._fields, sampling or (), strict=False)
    filters = [name for name, value in settings if value is not None]
    what = repr((_REVISION, list(origins), list(axes), tuple(widths), filters))
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    return [folder / f"{digest}-{i}.json" for i in range(len(origins))]


def _found(path: pathlib.Path, origin: costs.Origin, axes: tuple) -> CostTable:
    """The table on disk.

    Raises:
      ValueError: there is none of these parts.
    """
    table = costs.load(path)
    table.check(origin)
    if (table.batches, table.contexts, table.widths, table.drafts) != axes:
        raise ValueError(f"{path} is of other batches, contexts or lengths; calibrate again")
    return table


def _make_room(folder: pathlib.Path) -> None:
    """Makes the folder of the tables: better now than after the measurement.

    Raises:
      ValueError: it can't be written; names it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"folder={str(folder)!r} can't be made ({error}); name another") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"folder={str(folder)!r} can't be written; name another")
