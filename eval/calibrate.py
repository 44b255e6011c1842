"""What a round costs here, as a table and a plot: the numbers that adaptive drafting decides by.

  python -m eval.calibrate --config=configs/calibrate_smollm2.py --workdir=runs/calibrate
      [--config.KEY=VALUE ...]

Says, too, what the controller that decides takes a round. Leaves results.json, costs.json
(``eval.plan --config.table=...`` reads it) and costs.png.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import specjax
from eval import chat as chats
from eval import controller_cost, results
from eval.models import load_head
from eval.modes import sampling_of
from eval.settings import DTYPES
from specjax import device, validate
from specjax.by_cost import by_cost
from specjax.costs import CostTable
from specjax.drafters import ngram
from specjax.loop import chosen_widths
from specjax.prospects import Costs

_IN_TURN = (1, 4)  # drafters that the controller is timed with


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is timed.

    Attributes:
      target: a folder, a hub id, or "smollm2".
      head: the folder of a draft head; "": prompt lookup.
      k: most draft tokens a round.
      batches: ascending.
      contexts: ascending numbers of filled slots.
      temperature: 0 is greedy.
      fresh: measure, even if there is a table of these parts on disk.
      dtype: of weights and caches; "": the device's.
    """

    target: str
    head: str
    k: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    temperature: float
    fresh: bool
    dtype: str


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Measures, prints the table and writes it; returns no failures: there is nothing to fail.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Raises:
      ValueError: a setting, a model or a head that can't be used.
    """
    s, path = results.read(Settings, config), pathlib.Path(workdir)
    _check(s)
    print(device.describe(), flush=True)
    target = chats.load(s.target, s.dtype or str(device.default_dtype()))
    if s.head:
        head = load_head(s.head, target.config)
        drafter, params = head.drafter(s.k), head.params(target.params)
    else:
        drafter, params = ngram(s.k), None
    begun = time.perf_counter()
    table = specjax.calibrate(
        target.target,
        target.params,
        drafter,
        params,
        batches=s.batches,
        contexts=s.contexts,
        sampling=sampling_of(s.temperature),
        # Those that adaptive drafting runs in: down to one token, whatever the drafter alone does.
        widths=chosen_widths(None, specjax.adaptive(drafter)),
        fresh=s.fresh,
        progress=lambda what: print(f"calibrating, {what}", flush=True),
    )
    seconds = time.perf_counter() - begun
    print(f"{table}\n\nin {seconds:.0f} s, compilation included\n", flush=True)
    deciding = []
    for batch in s.batches:
        given = specjax.adaptive_params(
            target.target, target.params, [drafter], [params], [table], batch=batch
        )
        assert given.costs is not None
        for drafters in _IN_TURN:
            deciding.append(controller(table, given.costs, batch, drafters))
            print(sentence(deciding[-1]), flush=True)
    results.write(path, s, rows(table), [], seconds=round(seconds, 1), controller=deciding)
    table.save(path / "costs.json")
    draw(path / "costs.png", table)
    print(f"results: {path}/results.json, {path}/costs.json, {path}/costs.png")
    return []


def rows(table: CostTable) -> list[dict[str, Any]]:
    """A flat row for every batch, context and draft length that was timed."""
    return [
        {
            "batch": batch,
            "context": context,
            "k": k,
            "target_ms": round(1e3 * table.target_seconds(batch, context, k + 1), 4),
            "draft_ms": round(1e3 * table.draft_seconds(batch, k), 4),
        }
        for batch in table.batches
        for context in table.contexts
        for k in table.drafts
    ]


def controller(table: CostTable, costs: Costs, batch: int, drafters: int) -> dict[str, Any]:
    """What the controller takes a round at a batch size, and of the cheapest round that there is.

    Args:
      table: the rounds.
      costs: the same, as the controller is given it.
      batch: rows.
      drafters: it decides for so many like this one, in turn.
    """
    taken = controller_cost.seconds(by_cost(), controller_cost.in_turn(costs, drafters), batch)
    cheapest = min(
        table.round_seconds(batch, context, k) for context in table.contexts for k in table.drafts
    )
    return {
        "batch": batch,
        "drafters": drafters,
        "controller_us": round(1e6 * taken, 3),
        "cheapest_round_ms": round(1e3 * cheapest, 4),
        "share": taken / cheapest,
    }


def sentence(deciding: Mapping[str, Any]) -> str:
    """What ``controller`` gave, in words."""
    return (
        f"the controller (by_cost) takes, with {deciding['drafters']} in turn, "
        f"{deciding['controller_us']:.1f} us a round at batch {deciding['batch']}, "
        f"{deciding['share']:.3%} of the cheapest round "
        f"({deciding['cheapest_round_ms']:.4g} ms)"
    )


def draw(path: pathlib.Path, table: CostTable) -> None:
    """A panel a batch: rounds by draft length, the target's side and the drafter's on top of it."""
    figure = results.figure((3.2 * len(table.batches) + 1, 3.4))
    panels = figure.subplots(1, len(table.batches), squeeze=False)[0]
    lengths = list(range(table.num_nodes + 1))
    for panel, batch in zip(panels, table.batches, strict=True):
        for context, colour in zip(table.contexts, ("#0072b2", "#d55e00") * 9, strict=False):
            target = [1e3 * table.target_seconds(batch, context, n + 1) for n in lengths]
            whole = [1e3 * table.round_seconds(batch, context, n) for n in lengths]
            label = f"{context} slots filled"
            panel.plot(lengths, whole, color=colour, marker="o", markersize=3, label=label)
            panel.plot(lengths, target, color=colour, linestyle=":", linewidth=1)
        panel.set(title=f"batch {batch}", xlabel="draft tokens", ylim=(0, None))
    panels[0].set_ylabel("ms a round (dotted: the target's side)")
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle(table.origin.device, fontsize=9)
    results.save_figure(figure, path)


def _check(s: Settings) -> None:
    results.at_least(1, k=s.k)
    validate.ascending("config.batches", s.batches, 1)
    validate.ascending("config.contexts", s.contexts, 2)
    if s.dtype not in DTYPES:
        raise ValueError(f"config.dtype={s.dtype!r}; choose from {', '.join(DTYPES[1:])}, or ''")
    if not 0 <= s.temperature < float("inf"):
        raise ValueError(f"config.temperature={s.temperature}; 0 (greedy) or more, finite")


if __name__ == "__main__":
    results.main(run)
