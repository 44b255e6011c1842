"""What speculation should buy, by acceptance, draft length and draft cost: the formulas.

  python -m eval.speedup_table --config=configs/speedup_table.py --workdir=runs/speedup_table
      [--config.KEY=VALUE ...]

Prints a table for each draft cost and leaves results.json and speedup_table.png in the workdir.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from eval import results
from specjax import theory


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the tables depend on.

    Attributes:
      costs: draft costs c, in units of a one-token target pass.
      alphas: acceptance rates.
      ks: draft lengths shown.
      max_k: the best draft length is searched from 1 to this.
      pass_widths: ascending numbers of tokens at which the cost of a target pass was measured; ():
        it costs the same at every width.
      pass_costs: those costs, in units of a one-token pass; interpolated between the widths.
    """

    costs: tuple[float, ...]
    alphas: tuple[float, ...]
    ks: tuple[int, ...]
    max_k: int
    pass_widths: tuple[int, ...]
    pass_costs: tuple[float, ...]


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
    rows = build(settings)
    path = pathlib.Path(workdir)
    results.write(path, settings, rows, [])
    draw(path / "speedup_table.png", rows, settings)
    for c in settings.costs:
        print(f"c = {c:g}\n{_table([row for row in rows if row['c'] == c])}\n")
    print(f"results: {path}/results.json, {path}/speedup_table.png")
    return []


def build(settings: Settings) -> list[dict[str, Any]]:
    """A row for every draft cost, acceptance rate and draft length."""
    cost, rows = pass_cost(settings), []
    for c in settings.costs:
        for alpha in settings.alphas:
            best = theory.best_k(alpha, c, cost, range(1, settings.max_k + 1))
            for k in settings.ks:
                rows.append(
                    {
                        "c": c,
                        "alpha": alpha,
                        "k": k,
                        "speedup": theory.speedup(alpha, k, c, cost),
                        "best_k": best,
                        "best_speedup": theory.speedup(alpha, best, c, cost),
                    }
                )
    return rows


def pass_cost(settings: Settings) -> Callable[[int], float] | None:
    """The measured cost of a pass by its tokens; None where there is none.

    Past the largest width it goes on along the last two points.
    """
    if not settings.pass_widths:
        return None
    widths, costs = np.asarray(settings.pass_widths, float), np.asarray(settings.pass_costs, float)

    def cost(tokens: int) -> float:
        if tokens > widths[-1] and len(widths) > 1:
            slope = (costs[-1] - costs[-2]) / (widths[-1] - widths[-2])
            return float(costs[-1] + slope * (tokens - widths[-1]))
        return float(np.interp(tokens, widths, costs))

    return cost


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]], settings: Settings) -> None:
    """A heat map a draft cost; the best of the shown draft lengths is framed."""
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.patches import Rectangle

    costs, alphas, ks = settings.costs, settings.alphas, settings.ks
    size = 1.4 + (0.55 * len(ks) + 0.5) * len(costs), 1.3 + 0.42 * len(alphas)
    figure = results.figure(size)
    low, high = min(row["speedup"] for row in rows), max(row["speedup"] for row in rows)
    norm = TwoSlopeNorm(1, min(low, 0.4), max(high, 1.6))  # white: no faster than plain decoding
    panels = figure.subplots(1, len(costs), squeeze=False, sharey=True)[0]
    for axes, c in zip(panels, costs, strict=True):
        own = [row["speedup"] for row in rows if row["c"] == c]
        values = np.reshape(own, (len(alphas), len(ks)))
        axes.imshow(values, cmap="RdBu", norm=norm, aspect="auto")
        for i, j in np.ndindex(values.shape):
            shade = "white" if values[i, j] > 1 + 0.6 * (high - 1) else "black"
            axes.text(
                j, i, f"{values[i, j]:.2f}", ha="center", va="center", fontsize=8, color=shade
            )
        for i, j in enumerate(values.argmax(1)):
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, ec="black", lw=1.5))
        axes.set_title(f"draft cost c = {c:g}", fontsize=10, loc="left")
        axes.set_xticks(range(len(ks)), [str(k) for k in ks])
        axes.set_yticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
        axes.set_xlabel("draft tokens k")
        axes.tick_params(length=0)
    panels[0].set_ylabel("acceptance rate")
    figure.suptitle(
        "Times as fast as plain decoding (framed: best shown)", fontsize=11, x=0.01, ha="left"
    )
    results.save_figure(figure, path)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for alpha in dict.fromkeys(row["alpha"] for row in rows):
        own = [row for row in rows if row["alpha"] == alpha]
        cells = {f"k={row['k']}": f"{row['speedup']:.2f}" for row in own}
        best = f"{own[0]['best_k']} ({own[0]['best_speedup']:.2f}x)"
        lines.append({"alpha": f"{alpha:g}"} | cells | {"best k": best})
    return results.table(lines)


def _check(settings: Settings) -> None:
    if not (settings.costs and settings.alphas and settings.ks):
        raise ValueError("config.costs, config.alphas and config.ks need at least one value each")
    results.at_least(1, max_k=settings.max_k)
    for k in settings.ks:
        results.at_least(1, ks=k)
    for alpha in settings.alphas:
        if not 0 <= alpha <= 1:
            raise ValueError(f"config.alphas holds {alpha}; acceptance rates are 0 to 1")
    for c in settings.costs:
        if not c >= 0:
            raise ValueError(f"config.costs holds {c}; a draft cost is at least 0")
    if len(settings.pass_widths) != len(settings.pass_costs):
        raise ValueError(
            f"config.pass_widths has {len(settings.pass_widths)} values and config.pass_costs "
            f"{len(settings.pass_costs)}; give one cost a width"
        )
    widths = settings.pass_widths
    if widths and (widths[0] < 1 or list(widths) != sorted(set(widths))):
        raise ValueError(f"config.pass_widths={widths}; they must ascend from at least 1")
    for cost in settings.pass_costs:
        if not 0 < cost < math.inf:
            raise ValueError(f"config.pass_costs holds {cost}; a pass costs more than 0")


if __name__ == "__main__":
    results.main(run)
