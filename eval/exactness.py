"""Is it the target's distribution? Every rule, sampled 400,000 times, against exact probabilities.

  python -m eval.exactness --config=configs/exactness.py --workdir=runs/exactness
      [--config.KEY=VALUE ...]

The toy language has 256 sequences of four tokens, of known probability. Each rule samples them
through the library's own compiled loop. A lossless rule's distance to the truth must keep shrinking
as 1 / sqrt(N); that of a lossy or a wrong rule levels off. Prints a table and leaves results.json
and exactness.png in the workdir. Exits with 1 when a lossless rule fails, or when the wrong example
goes unnoticed.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array

import specjax
from eval import distance, results, toy
from eval.wrong import wrong
from specjax import Sampling, device, verify
from specjax.verify import Verifier

PLAIN = "plain"  # no drafter: what the target alone samples
WRONG = "wrong"
# A true p-value falls below this once in a million runs.
SIGNIFICANCE = 1e-6
# Six standard deviations of the distance of perfect samples, at 256 outcomes.
MARGIN = 1.3

_COLORS = ("#666666", "#0072b2", "#009e73", "#56b4e9", "#cc79a7", "#e69f00", "#f0e442", "#d55e00")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run depends on.

    Attributes:
      rules: names out of ``RULES``.
      sizes: ascending numbers of samples; the smaller ones are the first of the larger.
      k: draft tokens a round.
      batch: rows a call.
      seed: of the noise.
    """

    rules: tuple[str, ...]
    sizes: tuple[int, ...]
    k: int
    batch: int
    seed: int


RULES: dict[str, Verifier] = {
    PLAIN: verify.token,
    **{name: rule for name, rule in verify.BY_NAME.items() if not rule.greedy},
    "typical": verify.typical(),
    "relaxed": verify.relaxed(),
    WRONG: wrong,
}


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Samples, prints the table and writes the results; see the module's docstring.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      A sentence for each failed check.

    Raises:
      ValueError: a setting that can't be used.
    """
    settings = results.read(Settings, config)
    _check(settings)
    print(device.describe(), flush=True)
    rows: list[dict[str, Any]] = []
    for name in settings.rules:
        rows += measure(name, settings)
    failures = check(rows)
    path = pathlib.Path(workdir)
    results.write(path, settings, rows, failures)
    draw(path / "exactness.png", rows)
    print(f"{_table(rows, settings.sizes)}\n\nresults: {path}/results.json, {path}/exactness.png")
    return failures


def measure(name: str, settings: Settings) -> list[dict[str, Any]]:
    """A row for every size: the distances of one rule's samples."""
    begun = time.perf_counter()
    law = toy.joint(toy.tables().target)
    counts, rows, parts = np.zeros(len(law), np.int64), [], []
    for first in range(0, settings.sizes[-1], settings.batch):
        out = sample(name, settings, toy.row_keys(settings.seed, first, settings.batch))
        parts.append(out.stats)
        ids = toy.outcomes(out.tokens)
        for size in settings.sizes:
            if first < size <= first + settings.batch:
                upto = counts + np.bincount(ids[: size - first], minlength=len(law))
                rows.append(
                    {
                        "rule": name,
                        "lossless": RULES[name].lossless,
                        "n": size,
                        "tv": distance.total_variation(upto, law),
                        "expected_tv": distance.expected_total_variation(law, size),
                        "p_value": distance.chi_square_p(upto, law),
                    }
                )
        counts += np.bincount(ids, minlength=len(law))
    rounds, emitted, judged, accepted = (
        sum(int(np.sum(getattr(part, field))) for part in parts)
        for field in ("rounds", "emitted", "judged", "accepted")
    )
    more = {
        "k": 0 if name == PLAIN else settings.k,
        "tokens_per_pass": emitted / rounds,
        "acceptance_rate": accepted / judged if judged else None,
        "seconds": round(time.perf_counter() - begun, 2),
    }
    return [row | more for row in rows]


def sample(name: str, settings: Settings, keys: Array) -> specjax.SampleOutput:
    """One row a sample, each with a key of its own.

    The budget is larger than what is looked at: near its end drafts are cut short, and a short
    draft hides a part of what a wrong rule does.
    """
    drafting = {} if name == PLAIN else toy.arguments(settings.k)
    run = specjax.start(
        toy.bigram(),
        toy.log_table(toy.tables().target),
        np.full((len(keys), 1), toy.START),
        max_new_tokens=(toy.LENGTH + 1) * (settings.k + 1),
        max_length=1 + (toy.LENGTH + 2) * (settings.k + 1),
        sampling=Sampling(temperature=1.0),
        verifier=RULES[name],
        key=keys,
        **drafting,
    )
    run = specjax.decode(run, rounds=toy.LENGTH)  # each emits one token at least
    return specjax.finish(run, max_new_tokens=toy.LENGTH)


def check(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each lossless rule that is not, and for a wrong one that went unnoticed."""
    failures = []
    for row in rows:
        what = f"{row['rule']} at N={row['n']:,}"
        if not row["lossless"]:
            continue
        if row["p_value"] < SIGNIFICANCE:
            failures.append(f"{what}: p-value {row['p_value']:.1e}: not the target's distribution")
        elif row["tv"] > MARGIN * row["expected_tv"]:
            failures.append(
                f"{what}: total variation {row['tv']:.4f}, where perfect samples show "
                f"{row['expected_tv']:.4f}: not the target's distribution"
            )
    last = [row for row in rows if row["rule"] == WRONG][-1:]
    if last and last[0]["p_value"] >= SIGNIFICANCE:
        failures.append(f"the wrong example went unnoticed at N={last[0]['n']:,}: no power")
    return failures


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Distance against N, both logarithmic."""
    figure = results.figure((7.2, 4.6))
    axes = figure.subplots()
    sizes = sorted({row["n"] for row in rows})
    line = [next(row["expected_tv"] for row in rows if row["n"] == n) for n in sizes]
    axes.plot(sizes, line, color="black", lw=1, ls="--", label="perfect samples: 1 / sqrt(N)")
    for number, rule in enumerate(dict.fromkeys(row["rule"] for row in rows)):
        own = [row for row in rows if row["rule"] == rule]
        lossless = own[0]["lossless"]
        axes.plot(
            [row["n"] for row in own],
            [row["tv"] for row in own],
            "o-" if lossless else "s-",
            color=_COLORS[number % len(_COLORS)],
            mfc=None if lossless else "white",
            label=label(rule, lossless),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("samples N")
    axes.set_ylabel("total variation distance to the exact law")
    axes.set_title("Toy language, 256 outcomes, one compiled loop", fontsize=11, loc="left")
    axes.grid(color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    results.save_figure(figure, path)


def label(rule: str, lossless: bool) -> str:
    """What a table calls a rule."""
    names = {PLAIN: "target only", WRONG: "wrong: p after a rejection"}
    name = names.get(rule, rule)
    return name if lossless or rule == WRONG else f"{name} (lossy)"


def _table(rows: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> str:
    lines = []
    for rule in dict.fromkeys(row["rule"] for row in rows):
        own = {row["n"]: row for row in rows if row["rule"] == rule}
        row = own[sizes[-1]]
        cells = {f"TV (p) at {n:,}": f"{own[n]['tv']:.4f} ({own[n]['p_value']:.4f})" for n in sizes}
        lines.append(
            {"rule": label(rule, row["lossless"])}
            | cells
            | {
                "tok/pass": f"{row['tokens_per_pass']:.2f}",
                "accepted": "" if rule == PLAIN else f"{row['acceptance_rate']:.1%}",
                "s": f"{row['seconds']:.1f}",
            }
        )
    return results.table(lines)


def _check(settings: Settings) -> None:
    results.at_least(1, k=settings.k, batch=settings.batch)
    results.at_least(0, seed=settings.seed)
    for name in settings.rules:
        if name not in RULES:
            raise ValueError(f"config.rules holds {name!r}; choose from {', '.join(RULES)}")
    if not settings.rules:
        raise ValueError(f"config.rules is empty; choose from {', '.join(RULES)}")
    sizes = settings.sizes
    if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
        raise ValueError(f"config.sizes={sizes}; they must ascend from at least 1")


if __name__ == "__main__":
    results.main(run)
