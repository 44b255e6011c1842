"""Token for token: does speculation change what a user sees? On a real model, in floating point.

  python -m eval.determinism --config=configs/determinism.py --workdir=runs/determinism
      [--config.KEY=VALUE ...]

Greedy decoding and coupled sampling promise the tokens of plain decoding, for every drafter and k.
Passes of different widths round differently, so where the two best choices nearly tie the promise
may break; this command says how often, and how close the tie was. Prints a table and leaves
results.json in the workdir. Exits with 1 when an output differs where there was no near-tie.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import specjax
from eval import chat, prompts, results
from eval.checks import margin, near_tie
from eval.rows import first_difference
from specjax import Sampling, device, keys, stats, verify
from specjax.draft import Drafter
from specjax.drafters import draft_model, ngram
from specjax.models import drop_panels
from specjax.verify import Verifier

SAME = "identical"
_GROUP = ("temperature", "batch", "drafter", "k")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run depends on.

    Attributes:
      model: a folder, a hub id, or "smollm2": the default model.
      prompts: how many of the built-in prompts, one of each category in turn; one batch.
      alone: the first so many are decoded alone too: passes over few tokens take other kernels.
      max_new_tokens: budget of a prompt.
      temperatures: 0 is greedy, others are sampled with ``verify.coupled``.
      ngram_ks: draft lengths of prompt lookup.
      model_ks: draft lengths of the draft model.
      noise: the draft model is the target with this share of noise in its weights, relative to
        each array's own spread; 0: a plain copy.
      seed: of the noise.
    """

    model: str
    prompts: int
    alone: int
    max_new_tokens: int
    temperatures: tuple[float, ...]
    ngram_ks: tuple[int, ...]
    model_ks: tuple[int, ...]
    noise: float
    seed: int


class Way(NamedTuple):
    """A way of drafting."""

    name: str
    drafter: Drafter
    params: Any


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Decodes, compares, prints the table and writes the results.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      A sentence for each difference that no near-tie explains.

    Raises:
      ValueError: a setting or a model that can't be used.
    """
    s = results.read(Settings, config)
    results.at_least(1, prompts=s.prompts, max_new_tokens=s.max_new_tokens)
    results.at_least(0, alone=s.alone)
    print(device.describe(), flush=True)
    model = chat.load(s.model)
    chosen = _spread(prompts.read(), s.prompts)
    ids = [model.encode(prompt.turns[:1]) for prompt in chosen]
    together = list(range(len(chosen)))
    batches = [[together], [[row] for row in together[: s.alone]]]
    rows: list[dict[str, Any]] = []
    ways = _ways(s, model)
    for temperature in s.temperatures:
        for groups in batches if s.alone else batches[:1]:
            plain = [decode(model, ids, s, temperature, None, group) for group in groups]
            for way in ways:
                found = []
                for group, right in zip(groups, plain, strict=True):
                    out = decode(model, ids, s, temperature, way, group)
                    found += compare(model, ids, s, temperature, group, out, right)
                names = {"drafter": way.name, "k": way.drafter.num_nodes}
                for row in found:
                    row |= names | {"prompt": chosen[row["row"]].name}
                rows += found
                print(_line(found), flush=True)
    failures = check(rows, near_tie(model))
    results.write(workdir, s, rows, failures)
    print(f"\n{_table(rows)}\n\nresults: {workdir}/results.json", flush=True)
    return failures


def decode(
    model: chat.Chat,
    ids: Sequence[Sequence[int]],
    s: Settings,
    temperature: float,
    way: Way | None,
    group: Sequence[int] | None = None,
) -> specjax.SampleOutput:
    """One batch: the prompts of ``group``, or all; a row's key is the same in every batch."""
    drafting = {} if way is None else {"drafter": way.drafter, "drafter_params": way.params}
    group = range(len(ids)) if group is None else group
    return specjax.sample(
        model.target,
        model.params,
        [ids[row] for row in group],
        max_new_tokens=s.max_new_tokens,
        verifier=_rule(temperature),
        sampling=Sampling(temperature=temperature) if temperature else None,
        key=keys.row_keys(jax.random.key(s.seed), len(ids))[jnp.asarray(group)],
        eos_ids=model.eos_ids,
        **drafting,
    )


def compare(
    model: chat.Chat,
    ids: Sequence[Sequence[int]],
    s: Settings,
    temperature: float,
    group: Sequence[int],
    out: specjax.SampleOutput,
    plain: specjax.SampleOutput,
) -> list[dict[str, Any]]:
    """A result for each row of a batch: where it differs from plain decoding, how narrowly."""
    rows = []
    for at, row in enumerate(group):
        ours, theirs = (list(tokens_of(o, at)) for o in (out, plain))
        index, gap = first_difference(ours, theirs), None
        if index is not None:
            before = [*ids[row], *theirs[:index]]
            gap = margin(model, before, temperature, row_key(s, row))
        rows.append(
            {
                "mode": "sampling" if temperature else "greedy",
                "verifier": _rule(temperature).name,
                "temperature": temperature,
                "batch": len(group),
                "row": row,
                "tokens": len(theirs),
                "first_difference": index,
                "margin": gap,
                "lossless": True,
                "acceptance_rate": _or_none(stats.acceptance_rate(out.stats)),
                "tokens_per_pass": stats.tokens_per_pass(out.stats),
            }
        )
    return rows


def tokens_of(out: specjax.SampleOutput, row: int) -> Sequence[int]:
    """What a row emitted."""
    return np.asarray(out.tokens[row, : int(out.lengths[row])]).tolist()


def row_key(s: Settings, row: int) -> Array:
    """The key ``[1]`` of a row."""
    return keys.row_keys(jax.random.key(s.seed), row + 1)[row:]


def perturbed(params: Any, share: float, key: Array) -> Any:
    """Parameters with noise of ``share`` times each array's own spread: a draft model that errs.

    A second form of the matrices is left out: with noise of its own it would be another model.
    """
    if share == 0:
        return params
    if isinstance(params, Mapping):
        params = drop_panels(params)
    leaves, tree = jax.tree.flatten(params)
    noisy = []
    for leaf, own in zip(leaves, jax.random.split(key, len(leaves)), strict=True):
        spread = share * jnp.std(leaf.astype(jnp.float32))
        noise = spread * jax.random.normal(own, leaf.shape, jnp.float32)
        noisy.append((leaf.astype(jnp.float32) + noise).astype(leaf.dtype))
    return jax.tree.unflatten(tree, noisy)


def check(rows: Sequence[Mapping[str, Any]], limit: float) -> list[str]:
    """A sentence for each difference where the choice was clear."""
    return [
        f"{row['mode']} with {row['drafter']}, k={row['k']}, batch of {row['batch']}, differs from "
        f"plain decoding on {row['prompt']!r} at token {row['first_difference']}, where plain's "
        f"choice wins by {row['margin']:.2g}; only below {limit:g} may rounding decide: this is a "
        "bug"
        for row in rows
        if row["first_difference"] is not None and not row["margin"] < limit
    ]


def _ways(s: Settings, model: chat.Chat) -> list[Way]:
    ways = [Way("prompt lookup", ngram(k), None) for k in s.ngram_ks]
    if s.model_ks:
        params = perturbed(model.params, s.noise, jax.random.key(s.seed + 1))
        name = f"noisy copy ({s.noise:g})" if s.noise else "copy"
        ways += [Way(name, draft_model(model.target, k), params) for k in s.model_ks]
    if not ways:
        raise ValueError("config.ngram_ks and config.model_ks are empty; give one draft length")
    return ways


def _spread(every: Sequence[prompts.Prompt], count: int) -> list[prompts.Prompt]:
    """The first of each category, then the second of each, and so on."""
    seen: dict[str, int] = {}
    turn = []
    for prompt in every:
        turn.append(seen.get(prompt.category, 0))
        seen[prompt.category] = turn[-1] + 1
    order = sorted(range(len(every)), key=lambda i: turn[i])
    return [every[i] for i in order[:count]]


def _rule(temperature: float) -> Verifier:
    return verify.coupled if temperature else verify.greedy


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    apart = [row for row in rows if row["first_difference"] is not None]
    rates = [row["acceptance_rate"] for row in rows if row["acceptance_rate"] is not None]
    where = ", ".join(
        f"{row['prompt']} at {row['first_difference']} (margin {row['margin']:.1g})"
        for row in apart
    )
    return {
        "mode": f"{rows[0]['mode']} T={rows[0]['temperature']:g}",
        "drafter": rows[0]["drafter"],
        "k": str(rows[0]["k"]),
        "batch": str(rows[0]["batch"]),
        SAME: f"{len(rows) - len(apart)} of {len(rows)}",
        "tokens": str(sum(row["tokens"] for row in rows)),
        "accepted": f"{np.mean(rates):.1%}" if rates else "",
        "tok/pass": f"{np.mean([row['tokens_per_pass'] for row in rows]):.2f}",
        "first differences": where or "none",
    }


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = _summary(rows)
    return (
        f"{cells['mode']}, {cells['drafter']}, k={cells['k']}, batch of {cells['batch']}: "
        f"{cells[SAME]} {SAME}"
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in _GROUP), []).append(row)
    return results.table([_summary(group) for group in groups.values()])


if __name__ == "__main__":
    results.main(run)
