"""How often drafts are right, and what a target pass yields: measured, exact, and by the formula.

  python -m eval.acceptance --config=configs/acceptance.py --workdir=runs/acceptance
      [--config.KEY=VALUE ...]

On the toy language, with token verification, through the library's compiled loop. Prints a table
and leaves results.json in the workdir. Exits with 1 when a measured figure is not the exact one.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import specjax
from eval import results, toy
from specjax import Sampling, device, stats, theory, verify

TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run depends on.

    Attributes:
      ks: draft tokens a round, each measured on its own.
      batch: rows.
      rounds: rounds a row; ``batch * rounds`` in all.
      seed: of the noise.
    """

    ks: tuple[int, ...]
    batch: int
    rounds: int
    seed: int


class Exact(NamedTuple):
    """Long-run figures of token verification on a bigram model."""

    alpha: float
    tokens_per_pass: float


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Measures, prints the table and writes the results.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      A sentence for each measured figure that is off.

    Raises:
      ValueError: a setting that can't be used.
    """
    settings = results.read(Settings, config)
    results.at_least(1, batch=settings.batch, rounds=settings.rounds)
    results.at_least(0, seed=settings.seed)
    for k in settings.ks:
        results.at_least(1, ks=k)
    print(device.describe(), flush=True)
    rows = [measure(k, settings) for k in settings.ks]
    failures = check(rows)
    results.write(workdir, settings, rows, failures)
    print(f"{_table(rows)}\n\nresults: {workdir}/results.json")
    return failures


def measure(k: int, settings: Settings) -> dict[str, Any]:
    """The figures of one draft length.

    Every round is a full one: the budget is never near, so no draft is cut short by it.
    """
    run = specjax.start(
        toy.bigram(),
        toy.log_table(toy.tables().target),
        np.full((settings.batch, 1), toy.START),
        max_new_tokens=(settings.rounds + 1) * (k + 1),
        sampling=Sampling(temperature=1.0),
        verifier=verify.token,
        key=jax.random.key(settings.seed),
        **toy.arguments(k),
    )
    done = specjax.decode(run, rounds=settings.rounds).state.stats
    assert np.all(np.asarray(done.drafted) == settings.rounds * k), "a round was cut short"
    alpha, truth = stats.acceptance_rate(done), exact(k)
    return {
        "k": k,
        "rounds": int(done.rounds.sum()),
        "alpha": alpha,
        "exact_alpha": truth.alpha,
        "tokens_per_pass": stats.tokens_per_pass(done),
        "exact_tokens_per_pass": truth.tokens_per_pass,
        "formula": theory.expected_tokens(alpha, k),
    }


def exact(k: int) -> Exact:
    """What endless decoding shows, without sampling.

    From context s the draft x is kept with probability ``min(P, Q)[s, x]``, and a correction x
    follows with ``relu(P - Q)[s, x]``. So the contexts at which rounds start are a Markov chain.
    """
    target, draft = toy.tables()
    kept, corrected = np.minimum(target, draft), np.maximum(target - draft, 0)
    # reached[i][s, t]: a round from s keeps i tokens at least, the last of which is t.
    reached = [np.linalg.matrix_power(kept, i) for i in range(k + 1)]
    move = sum(step @ corrected for step in reached[:k]) + reached[k] @ target
    start = np.linalg.matrix_power(move, 1000)[0]
    chance = [float(start @ step.sum(1)) for step in reached]
    return Exact(sum(chance[1:]) / sum(chance[:-1]), sum(chance))


def check(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each figure that differs from the exact one by over a percent."""
    return [
        f"k={row['k']}: {name} is {row[name]:.4f}, and exactly {row['exact_' + name]:.4f}"
        for row in rows
        for name in ("alpha", "tokens_per_pass")
        if not abs(row[name] / row["exact_" + name] - 1) <= TOLERANCE
    ]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = {
        "alpha": "alpha",
        "exact_alpha": "exact alpha",
        "tokens_per_pass": "tok/pass",
        "exact_tokens_per_pass": "exact tok/pass",
        "formula": "formula",
    }
    cells = [{title: f"{row[name]:.3f}" for name, title in names.items()} for row in rows]
    heads = [{"k": str(row["k"]), "rounds": f"{row['rounds']:,}"} for row in rows]
    return results.table([head | cell for head, cell in zip(heads, cells, strict=True)])


if __name__ == "__main__":
    results.main(run)
