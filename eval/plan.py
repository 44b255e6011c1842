"""Before anything is trained: does speculation pay, for a target, a device, a batch and a context?

  python -m eval.plan --config=configs/plan_smollm2.py --workdir=runs/plan [--config.KEY=VALUE ...]

From a cost table of ``specjax.calibrate``, or else from a datasheet or this device's measured
bandwidth (a roofline, see ``eval.datasheet``): the acceptance rate from which speculation pays, the
best draft length and its speed-up by acceptance rate, and the memory all of it takes. Prints the
tables and a verdict for every batch and context; leaves them as a page, plan.md with plan.png, and
results.json in the workdir.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from eval import chat as chats
from eval import datasheet, plan_costs, plan_page, results, shapes
from eval.datasheet import GB
from eval.settings import DTYPES
from specjax import theory
from specjax.models import ModelConfig, loading

BUILTIN_SHAPE = "smollm2-135m"  # the default model's: no need to download it for that
LAUNCH_BOUND = 1e-3  # seconds; a roofline of less is not what happens


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a plan depends on.

    Attributes:
      target: the name of a shape (``eval.shapes``), "smollm2", a folder or a hub id.
      dtype: of weights and caches; "": the table's, a datasheet's (bfloat16), or the device's.
      device: a name of ``eval.datasheet``, or "", the one here. Beside a table it is where the
        memory is looked up, and nothing else; without it the table must be of this device and jax.
      efficiency: share of a datasheet's bandwidth and arithmetic that programs reach; milliseconds
        depend on it, ratios don't.
      table: a file that ``CostTable.save`` wrote, to be used instead of a roofline; "": none. It
        must be of the target.
      draft_params: millions of weights that a draft step reads, and the drafter holds; 0: a
        look-up; None: those of an EAGLE-3 head for the target.
      draft_vocab: tokens such a head can draft.
      draft_layers: the drafter's layers, each with a cache like that of a layer of the target.
      draft_cost: c, a draft step in units of a one-token target pass, at every batch and context;
        None: the table's, or what follows from the drafter's size.
      batches: ascending.
      contexts: ascending numbers of filled slots.
      alphas: ascending acceptance rates.
      max_k: the best draft length is searched from 1 to this.
    """

    target: str
    dtype: str
    device: str
    efficiency: float
    table: str
    draft_params: float | None
    draft_vocab: int
    draft_layers: int
    draft_cost: float | None
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    alphas: tuple[float, ...]
    max_k: int


@dataclasses.dataclass(frozen=True)
class Point:
    """A batch and a context.

    Attributes:
      batch: rows.
      context: filled slots a row.
      pass_s: seconds of a one-token target pass.
      passes: v of 1 to max_k + 1 tokens, in units of that pass.
      drafts: whole drafts of 0 to max_k tokens, in the same unit.
      bytes: memory by part.
      memory: bytes of the device; None where nobody can say.
    """

    batch: int
    context: int
    pass_s: float
    passes: tuple[float, ...]
    drafts: tuple[float, ...]
    bytes: Mapping[str, float]
    memory: float | None

    def best(self, alpha: float) -> tuple[int, float]:
        """The best draft length of at least 1, and its speed-up over plain decoding."""
        k = theory.best_k(alpha, *self._costs)
        return k, theory.speedup(alpha, k, *self._costs[:2])

    @property
    def break_even(self) -> float | None:
        """The acceptance rate from which the best draft length is faster; None: never."""
        return theory.break_even(*self._costs)

    @property
    def fits(self) -> bool | None:
        """Whether the memory is enough; None where nobody can say."""
        return None if self.memory is None else sum(self.bytes.values()) <= self.memory

    @property
    def _costs(self) -> tuple[theory.DraftCost, theory.PassCost, range]:
        lengths = range(1, len(self.drafts))
        return self.drafts.__getitem__, lambda tokens: self.passes[tokens - 1], lengths


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Computes, prints and writes; returns no failures: there is nothing to fail.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      An empty list.

    Raises:
      ValueError: a setting that can't be used.
    """
    settings = results.read(Settings, config)
    _check(settings)
    model = _shape(settings.target)
    known = (
        plan_costs.from_table(settings, model)
        if settings.table
        else plan_costs.from_roofline(settings, model)
    )
    points = build(settings, model, known)
    title = (
        f"{settings.target}, {model.num_parameters / 1e6:,.0f}M parameters, {known.dtype}\n"
        f"costs: {known.source}"
    )
    path = pathlib.Path(workdir)
    summary = [_summary(point, settings.alphas) for point in points]
    rows = [_row(point, alpha) for point in points for alpha in settings.alphas]
    results.write(path, settings, rows, [], costs=known.source, summary=summary)
    plan_page.write(path / "plan.png", points, settings.alphas, title)
    verdicts = [
        f"batch {line['batch']}, context {line['context']}: {line['verdict']}" for line in summary
    ]
    if not settings.table:
        short = points[0].pass_s < LAUNCH_BOUND
        verdicts.append(
            "\nA roofline is the best case"
            f"{', and leaves out launches, which such short passes wait for' if short else ''}: "
            "calibrate on the device (specjax.calibrate) and give config.table"
        )
    text = "\n".join([f"{title}\n\n{plan_page.tables(points, settings.alphas)}\n", *verdicts])
    plan_page.write_text(path / "plan.md", text)
    print(f"{text}\n\nresults: {path}/plan.md, {path}/plan.png, {path}/results.json")
    return []


def build(settings: Settings, model: ModelConfig, known: plan_costs.Costs) -> list[Point]:
    """A point for every context and batch."""
    itemsize, nodes = known.dtype.itemsize, settings.max_k + 1
    copies = 2 if not settings.device and loading.wants_panels(model, known.dtype) else 1
    points = []
    for context in settings.contexts:
        for batch in settings.batches:
            one = known.target(batch, context, 1)
            sizes = batch, context + nodes, itemsize
            head = plan_costs.draft_weights(settings, model) * itemsize
            memory = {
                "weights": copies * model.num_parameters * itemsize,
                "KV": datasheet.cache_bytes(model, *sizes),
                "drafter": head + datasheet.cache_bytes(model, *sizes, settings.draft_layers),
                # Logits and, when sampling, p and q of every node, in float32.
                "logits": 3 * 4 * batch * nodes * model.vocab_size,
            }
            passes = tuple(known.target(batch, context, t) / one for t in range(1, nodes + 1))
            drafts = tuple(known.draft(batch, context, k) / one for k in range(nodes))
            points.append(Point(batch, context, one, passes, drafts, memory, known.memory))
    return points


def verdict(point: Point, alphas: Sequence[float]) -> str:
    """The decision in one sentence.

    Args:
      point: the batch and context.
      alphas: ascending; the middle one is quoted, or the first above the break-even.
    """
    total, start = sum(point.bytes.values()), point.break_even
    fits = "" if point.fits in (True, None) else f"needs {total / GB:.1f} GB and does not fit; "
    if start is None:
        k, _ = point.best(1.0)
        return (
            f"{fits}does not pay, not even if every draft token is right: a pass over {k + 1} "
            f"tokens costs {point.passes[k]:.2f} of one, and drafting {k} costs "
            f"{point.drafts[k]:.2f}"
        )
    paying = [alpha for alpha in alphas if alpha > start]
    if not paying:
        return f"{fits}pays only from alpha {start:.2f} on, above the {alphas[-1]:g} asked for"
    alpha = max(alphas[(len(alphas) - 1) // 2], paying[0])
    k, gain = point.best(alpha)
    return f"{fits}pays from alpha {start:.2f} on; at alpha {alpha:g} k={k} gives {gain:.2f}x"


def _shape(name: str) -> ModelConfig:
    try:
        return shapes.config_of(BUILTIN_SHAPE if name == chats.BUILTIN_MODEL else name)
    except ValueError as error:
        if not name or ("/" not in name and not pathlib.Path(name).is_dir()):
            raise ValueError(f"config.target={name!r} is no folder or hub id; {error}") from error
    return loading.read_config(chats.find(name, files=("config.json",)))


def _row(point: Point, alpha: float) -> dict[str, Any]:
    k, gain = point.best(alpha)
    return {
        "batch": point.batch,
        "context": point.context,
        "alpha": alpha,
        "c": point.drafts[k] / k,
        "best_k": k,
        "pass_cost": point.passes[k],
        "speedup": gain,
    }


def _summary(point: Point, alphas: Sequence[float]) -> dict[str, Any]:
    return {
        "batch": point.batch,
        "context": point.context,
        "pass_ms": 1e3 * point.pass_s,
        **{f"pass_cost_{i}": cost for i, cost in enumerate(point.passes[1:], 2)},
        **{f"draft_cost_{k}": cost for k, cost in enumerate(point.drafts[1:], 1)},
        "break_even_alpha": point.break_even,
        **{f"{name.lower()}_mb": size / 1e6 for name, size in point.bytes.items()},
        "memory_mb": None if point.memory is None else point.memory / 1e6,
        "fits": point.fits,
        "verdict": verdict(point, alphas),
    }


def _check(s: Settings) -> None:
    for name in ("batches", "contexts", "alphas"):
        values = getattr(s, name)
        if not isinstance(values, tuple | list) or not values:
            raise ValueError(f"config.{name}={values!r}; it must be a tuple of at least one value")
        for value in values:
            if name == "alphas":
                results.share(alphas=value)
            else:
                results.at_least(1, **{name: value})
        if list(values) != sorted(set(values)):
            raise ValueError(f"config.{name}={values}; they must ascend, each given once")
    results.at_least(1, max_k=s.max_k)
    results.at_least(1, draft_vocab=s.draft_vocab)
    results.at_least(0, draft_layers=s.draft_layers)
    results.share(efficiency=s.efficiency)
    if not s.efficiency:
        raise ValueError("config.efficiency=0; a device that reaches nothing never ends a pass")
    for name, number in {"draft_params": s.draft_params, "draft_cost": s.draft_cost}.items():
        if number is not None and not 0 <= number < math.inf:
            raise ValueError(f"config.{name}={number}; it must be a number of at least 0")
    if s.dtype not in DTYPES:
        raise ValueError(f"config.dtype={s.dtype!r}; choose from {', '.join(DTYPES[1:])}, or ''")
    if s.device and not s.table and s.dtype == "float32":
        raise ValueError(
            "config.dtype='float32', but the arithmetic of datasheets is bfloat16's; leave it "
            "empty, or give config.table"
        )


if __name__ == "__main__":
    results.main(run)
