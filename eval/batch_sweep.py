"""Where speculation stops paying: plain, fixed and adaptive draft lengths over batch sizes.

  python -m eval.batch_sweep --config=configs/batch_sweep_smollm2.py --workdir=runs/batch_sweep
      [--synthetic_alpha=0.5,0.7,0.9] [--random_weights=llama3-8b] [--config.KEY=VALUE ...]

At every batch size and context the modes decode the same prompts, a few rounds each in turn. Prints
a table and leaves results.json (its columns: eval/sweep_rows.py), batch_sweep.png and the cost
table that the adaptive mode decided by (costs.json, which eval.plan reads too) in the workdir. With
a synthetic acceptance rate drafts are accepted by chance: no head is needed; with random weights,
no checkpoint at all. Exits with 1 when a check failed: greedy output other than plain decoding's,
or a program compiled while it was measured.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import tqdm
from absl import flags
from ml_collections import ConfigDict

from eval import chat as chats
from eval import (
    datasheet,
    prompts,
    random_models,
    results,
    shapes,
    sweep_page,
    sweep_rows,
    timing,
)
from eval.models import Head, load_head
from eval.settings import DTYPES, VERIFIERS
from eval.sweep_bench import Bench
from specjax import device
from specjax.models import ModelConfig, loading

_BLOCK = 64  # buffers are a multiple of this
RANDOM_ALPHAS = 0.5, 0.7, 0.9  # where weights are random, and nobody says how good drafts should be


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
      target: a folder, a hub id, or "smollm2", the default model.
      head: the folder of a draft head; "": one of random weights, for synthetic acceptance.
      random_weights: a name of ``eval.shapes``: target and head are random numbers of this shape,
        and acceptance is synthetic; "": they are those above.
      synthetic_alpha: accept each draft token with this probability, whatever it is: for timing
        only, not lossless. (): verify.
      ks: ascending fixed draft lengths; adaptive drafts are at most as long as the last.
      batches: ascending batch sizes.
      contexts: ascending prompt lengths.
      max_new_tokens: of every row; an answer's end doesn't stop it.
      repeats: decodings of every batch size, context and mode, each with other prompts.
      min_prompts: where that makes fewer prompts, there are more repeats: small batches.
      temperature: 0 is greedy.
      verifier: the rule above temperature 0.
      prompts: a prompt file; "": the built-in set. Shorter ones follow on others, longer ones lose
        their beginning.
      fresh: calibrate anew, also where there is a cost table of these parts on disk.
      dtype: of weights and caches; "": the device's.
      seed: of random weights, prompts, noise, and the bootstrap.
    """

    target: str
    head: str
    random_weights: str
    synthetic_alpha: tuple[float, ...]
    ks: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    max_new_tokens: int
    repeats: int
    min_prompts: int
    temperature: float
    verifier: str
    prompts: str
    fresh: bool
    dtype: str
    seed: int

    @property
    def slots(self) -> int:
        """Of the buffers, at all contexts; slots that are not filled cost nothing."""
        needed = self.contexts[-1] + self.max_new_tokens + self.ks[-1]
        return -(-needed // _BLOCK) * _BLOCK

    @property
    def num_modes(self) -> int:
        """Plain decoding, the fixed lengths, and adaptive ones."""
        return len(self.ks) + 2

    def repeats_of(self, batch: int) -> int:
        """Decodings at a batch size."""
        return max(self.repeats, -(-self.min_prompts // batch))


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Measures, prints the table and writes the results.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      A sentence for each failed check; none if all is well.

    Raises:
      ValueError: a setting, a prompt file or a model that can't be used; nothing was written.
    """
    s, workdir = read(config), pathlib.Path(workdir)
    dtype = jnp.dtype(s.dtype or device.default_dtype())
    chosen = [] if s.random_weights else prompts.read(s.prompts or None)
    print(f"{device.describe()}; this run: {dtype}", flush=True)
    model = _shape(s)
    print(_memory(s, model, dtype), flush=True)
    if s.random_weights:
        chat = random_models.target(s.random_weights, model, dtype, s.seed)
    else:
        chat = chats.load(s.target, dtype)
    bench = Bench(s, chat, _head(s, chat), [chat.encode(one.turns[:1]) for one in chosen])

    begun = time.perf_counter()
    with tqdm.tqdm(total=bench.total, disable=None, leave=False, dynamic_ncols=True) as bar:

        def done(what: str) -> None:
            bar.set_postfix_str(what, refresh=False)
            bar.update()

        costs = bench.calibrate(done)
        cells = bench.run(costs, done)
    print(f"measured {bench.total} steps in {time.perf_counter() - begun:.0f} s", flush=True)

    rows = sweep_rows.build(cells, costs, bench.compile_s, s.seed)
    failures = sweep_rows.differences(cells, rows, chat)
    if bench.recompiled:
        names = ", ".join(bench.recompiled)
        failures.append(f"compiled while measuring, so the timings are wrong: {names}")
    about = f"Target and head are random numbers of the shape {chat.name}." * bool(s.random_weights)
    remarks = sweep_page.remarks(rows, about)
    # Before the files, which a full disk refuses.
    print(f"\n{costs}\n\n{sweep_page.table(rows)}\n\n" + "\n".join(remarks), flush=True)
    crossed = [one._asdict() for one in sweep_rows.crossovers(rows)]
    peak = round(timing.peak_mb())
    results.write(workdir, s, rows, failures, remarks=remarks, crossovers=crossed, peak_mb=peak)
    sweep_page.write(workdir / "batch_sweep.png", rows, f"{chat.name}, {dtype} on {device.kind()}")
    costs.save(workdir / "costs.json")
    print(f"\nresults: {workdir}/results.json, {workdir}/batch_sweep.png, {workdir}/costs.json")
    return failures


def read(config: Mapping[str, Any]) -> Settings:
    """Settings from a config.

    Raises:
      ValueError: a key or a value that can't be; names it.
    """
    s = results.read(Settings, config)
    for name in ("ks", "batches", "contexts", "synthetic_alpha"):
        values = getattr(s, name)
        if not isinstance(values, tuple | list):
            raise ValueError(f"config.{name}={values!r}; it must be a tuple")
        changed: dict[str, Any] = {name: tuple(values)}
        s = dataclasses.replace(s, **changed)
        for value in values:
            if name == "synthetic_alpha":
                results.share(synthetic_alpha=value)
            else:
                results.at_least(2 if name == "contexts" else 1, **{name: value})
        if list(values) != sorted(set(values)):
            raise ValueError(f"config.{name}={values}; they must ascend, each given once")
        if not values and name != "synthetic_alpha":
            raise ValueError(f"config.{name} is empty; give at least one")
    results.at_least(1, max_new_tokens=s.max_new_tokens, repeats=s.repeats)
    results.at_least(1, min_prompts=s.min_prompts)
    results.at_least(0, seed=s.seed)
    number = isinstance(s.temperature, int | float) and not isinstance(s.temperature, bool)
    if not (number and 0 <= s.temperature < math.inf):
        raise ValueError(f"config.temperature={s.temperature!r}; 0 (greedy) or more, finite")
    if s.verifier not in VERIFIERS:
        raise ValueError(f"config.verifier={s.verifier!r}; choose from {', '.join(VERIFIERS)}")
    if s.dtype not in DTYPES:
        raise ValueError(f"config.dtype={s.dtype!r}; choose from {', '.join(DTYPES[1:])}, or ''")
    if not isinstance(s.fresh, bool):
        raise ValueError(f"config.fresh={s.fresh!r}; it must be True or False")
    if s.random_weights:
        try:
            shapes.config_of(s.random_weights)
        except ValueError as error:
            raise ValueError(f"config.random_weights: {error}") from error
        return dataclasses.replace(s, synthetic_alpha=s.synthetic_alpha or RANDOM_ALPHAS)
    if not s.target:
        raise ValueError(
            f"config.target is empty; a folder, a hub id or {chats.BUILTIN_MODEL!r}, or give "
            "config.random_weights"
        )
    if not s.head and not s.synthetic_alpha:
        raise ValueError(
            "config.head is empty: give the folder of a head, or acceptance rates that need none, "
            "--synthetic_alpha=0.5,0.7,0.9"
        )
    return s


def _shape(s: Settings) -> ModelConfig:
    """The target's configuration; of a model on the hub nothing else is downloaded yet."""
    if s.random_weights:
        model = shapes.config_of(s.random_weights)
    else:
        model = loading.read_config(chats.find(s.target, files=("config.json",)))
    needed = s.contexts[-1] + s.max_new_tokens + s.ks[-1]
    if needed > model.max_positions:
        raise ValueError(
            f"config.contexts={s.contexts} needs up to {needed} tokens with answers and drafts, "
            f"but {s.random_weights or s.target} takes {model.max_positions}; lower it"
        )
    return model


def _memory(s: Settings, model: ModelConfig, dtype: jnp.dtype) -> str:
    """What the largest batch takes, as a table; raises ValueError where that does not fit."""
    head = random_models.head_config(model)
    size = sum(leaf.size for leaf in jax.tree.leaves(random_models.head_shapes(head)))
    copies = 2 if loading.wants_panels(model, dtype) else 1
    batch, nodes, kinds = s.batches[-1], s.ks[-1] + 1, s.num_modes
    cache = partial(datasheet.cache_bytes, model, batch, s.slots, dtype.itemsize)
    return device.preflight(
        {
            "target weights": copies * model.num_parameters * dtype.itemsize,
            f"target KV caches ({kinds} modes)": kinds * cache(),
            "head, about": size * dtype.itemsize + kinds * cache(1),
            "features": batch * s.slots * len(head.layers) * model.width * dtype.itemsize,
            # And, when sampling, p and q of every node, in float32.
            "logits": 3 * 4 * batch * nodes * model.vocab_size,
        }
    )


def _head(s: Settings, chat: chats.Chat) -> Head:
    if s.head and not s.random_weights:
        return load_head(s.head, chat.config)
    return random_models.head(chat.config, chat.dtype, s.seed)


def numbers(texts: Sequence[str]) -> tuple[float, ...]:
    """The value of ``--synthetic_alpha``.

    Raises:
      ValueError: one that is no number.
    """
    out = []
    for text in texts:
        try:
            out.append(float(text))
        except ValueError:
            raise ValueError(
                f"--synthetic_alpha holds {text!r}; give numbers from 0 to 1, as in "
                "--synthetic_alpha=0.5,0.7,0.9"
            ) from None
    return tuple(out)


def main() -> None:
    """The command."""
    about = "Accept drafts at these rates; instead of config.synthetic_alpha."
    alphas = flags.DEFINE_list("synthetic_alpha", None, about)
    about = "A shape of eval/shapes.py; instead of config.random_weights."
    shape = flags.DEFINE_string("random_weights", None, about)

    def command(config: ConfigDict, workdir: str) -> list[str]:
        if alphas.value is not None:
            config.synthetic_alpha = numbers(alphas.value)
        if shape.value is not None:
            config.random_weights = shape.value
        return run(config, workdir)

    results.main(command)


if __name__ == "__main__":
    main()
