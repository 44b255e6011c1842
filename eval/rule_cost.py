"""What a rule itself costs: milliseconds a round, at the vocabulary of a real model.

  python -m eval.rule_cost --config=configs/rule_cost.py --workdir=runs/rule_cost
      [--config.KEY=VALUE ...]

Verifies one draft over and over, all rules in turn. A rule that samples warps the k + 1 rows of
logits to probabilities first; that is in its time, and listed alone too. Prints a table and leaves
results.json in the workdir.
"""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from eval import results
from specjax import device, keys, verify, warp
from specjax.draft import Draft

RULES = {**verify.BY_NAME, "typical": verify.typical(), "relaxed": verify.relaxed()}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run depends on.

    Attributes:
      vocab: V.
      k: draft tokens.
      batch: rows.
      repeats: times each rule is run. On a busy machine the best tells more than the median.
      seed: of logits and noise.
    """

    vocab: int
    k: int
    batch: int
    repeats: int
    seed: int


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Measures, prints the table and writes the results; returns no failures.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      An empty list.

    Raises:
      ValueError: a setting that can't be used.
    """
    s = results.read(Settings, config)
    results.at_least(1, vocab=s.vocab, k=s.k, batch=s.batch, repeats=s.repeats)
    print(device.describe(), flush=True)
    calls = prepare(s)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    for _ in range(s.repeats):
        for name, call in calls.items():
            begun = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(1e3 * (time.perf_counter() - begun))
    rows = [
        {
            "rule": name,
            "lossless": RULES[name].lossless if name in RULES else None,
            "k": s.k,
            "batch": s.batch,
            "vocab": s.vocab,
            "milliseconds": statistics.median(values),
            "best_milliseconds": min(values),
        }
        for name, values in times.items()
    ]
    results.write(workdir, s, rows, [])
    lines = [
        {
            "rule": row["rule"],
            "median ms": f"{row['milliseconds']:.2f}",
            "best ms": f"{row['best_milliseconds']:.2f}",
        }
        for row in rows
    ]
    print(f"{results.table(lines)}\n\nresults: {workdir}/results.json")
    return []


def prepare(s: Settings) -> dict[str, Callable[[], Any]]:
    """A compiled call for each rule, and one for the warp alone."""
    own = jax.random.split(jax.random.key(s.seed), 4)
    shape = s.batch, s.k + 1, s.vocab
    logits = 3 * jax.random.normal(own[0], shape, jnp.float32)
    sampling = warp.Sampling(temperature=jnp.ones([s.batch], jnp.float32))
    drafter = logits + jax.random.normal(own[1], shape, jnp.float32)  # a draft that is often right
    tokens = jax.random.categorical(own[2], drafter[:, : s.k]).astype(jnp.int32)
    length = jnp.full([s.batch], s.k, jnp.int32)
    noise = keys.Noise(jax.random.split(own[3], s.batch), length)
    probs = jax.jit(warp.apply)(sampling, drafter)
    warping = jax.jit(warp.apply)
    calls: dict[str, Callable[[], Any]] = {"(the warp alone)": lambda: warping(sampling, logits)}
    for name, rule in RULES.items():
        draft = Draft(tokens, length, probs if rule.uses_q else None)
        call = jax.jit(rule.verify)
        calls[name] = lambda call=call, draft=draft: call(draft, logits, sampling, noise)
    return calls


if __name__ == "__main__":
    results.main(run)
