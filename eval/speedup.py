"""What speculation buys on this machine: tokens per second of each mode, against plain decoding.

  python -m eval.speedup --config=configs/speedup_smollm2.py --workdir=runs/speedup
      [--prompts=FILE.jsonl] [--config.KEY=VALUE ...]

Prints tables and leaves results.json (its columns: eval/rows.py) and speedup.png in the workdir.
Exits with 1 when a check failed: greedy output other than plain decoding's, or a program compiled
while it was measured.
"""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm
from absl import flags
from ml_collections import ConfigDict

from eval import (
    chart,
    chat,
    checks,
    models,
    modes,
    preflight,
    prompts,
    report,
    results,
    rows,
    settings,
    timing,
)
from eval.measure import Bench, Cell
from specjax import device


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Measures, prints the tables and writes the results.

    Args:
      config: see ``eval.settings.Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      A sentence for each failed check; none if all is well.

    Raises:
      ValueError: a setting, a prompt file or a model that can't be used; nothing was written.
    """
    s, workdir = settings.read(config), pathlib.Path(workdir)
    chosen = prompts.read(s.prompts or None)
    dtype = s.dtype or str(device.default_dtype())
    print(f"{device.describe()}; this run: {dtype}", flush=True)
    print(preflight.table(s, slots=2048), flush=True)

    begun = time.perf_counter()
    loaded = models.load(s, dtype)
    target = loaded.target
    print(f"loaded in {time.perf_counter() - begun:.1f} s", flush=True)

    bench = Bench(s, target, modes.make(s, loaded), chosen)
    begun = time.perf_counter()
    print(f"compiling {len(bench.modes)} modes: a minute or two", flush=True)
    with _bar(len(bench.modes), "compiling") as bar:
        compile_s = bench.warm_up(bar.update)
    print(f"compiled in {time.perf_counter() - begun:.0f} s", flush=True)
    begun = time.perf_counter()
    with _bar(bench.total, "measuring") as bar:
        cells = bench.run(lambda name: (bar.set_postfix_str(name, refresh=False), bar.update()))
    print(f"measured {bench.total} decodings in {time.perf_counter() - begun:.0f} s", flush=True)

    table = rows.build(cells, compile_s, timing.peak_mb(), s.seed)
    failures = checks.differences(cells, table, target) + checks.copies(cells, target)
    if bench.recompiled:
        names = ", ".join(bench.recompiled)
        failures.append(f"compiled while measuring, so the timings are wrong: {names}")
    remarks = _remarks(s, cells, target)
    # Before the files, which a full disk refuses.
    print(f"\n{report.tables(table)}\n\n" + "\n".join(remarks), flush=True)
    _write(workdir, s, table, remarks, failures, f"{s.target}, {dtype}")
    files = [file for file in (workdir / "results.json", workdir / "speedup.png") if file.exists()]
    print(f"\nresults: {', '.join(map(str, files))}", flush=True)
    return failures


def _bar(total: int, what: str) -> tqdm.tqdm:
    return tqdm.tqdm(total=total, desc=what, disable=None, leave=False, dynamic_ncols=True)


def _remarks(s: settings.Settings, cells: Sequence[Cell], target: chat.Chat) -> list[str]:
    """What a reader of the tables must know, in words."""
    passes = [trial.passes for cell in cells for trial in cell.trials]
    pass_s = statistics.median(one[1] for one in passes)
    floor = preflight.pass_floor(target)
    widths = sorted(passes[0])
    costs = (f"{w}: {statistics.median(p[w] / p[1] for p in passes):.2f}" for w in widths)
    remarks = [
        f"A one-token pass takes {1e3 * pass_s:.3g} ms; reading its weights alone takes "
        f"{1e3 * floor:.3g} ms at the memory bandwidth measured here.",
        f"Cost of a pass by tokens, relative to one token: {', '.join(costs)}.",
        "95%: bootstrap over prompts. tok/s: without prefill. First token: prefill and one round. "
        "Pause: between the bursts of a stream (a round's tokens arrive together).",
    ]
    warning = preflight.launch_bound(pass_s, floor)
    if warning:
        remarks.append(warning)
    few = {cell.prompt.name for cell in cells if cell.mode.is_copy}
    if few:
        where = f"{len(few)} prompt{'s' if len(few) > 1 else ''}"
        remarks.append(
            "The draft model here is a second copy of the target: "
            f"all its greedy drafts must be accepted. A check on {where}, no speed-up."
        )
    if s.synthetic_alpha is not None:
        remarks.append(
            f"Drafts were accepted at a fixed rate of {s.synthetic_alpha:g}, whatever they were: "
            "the timings are real, the outputs are not the target's (lossless=False)."
        )
    return remarks


def _write(
    workdir: pathlib.Path,
    s: settings.Settings,
    table: Sequence[rows.Row],
    remarks: Sequence[str],
    failures: Sequence[str],
    what: str,
) -> None:
    results.write(workdir, s, table, failures, remarks=list(remarks))
    drawn = chart.write(workdir / "speedup.png", table, f"{what} on {device.describe()}")
    if not drawn:
        (workdir / "speedup.png").unlink(missing_ok=True)  # one of an earlier run


def main() -> None:
    """The command."""
    path = flags.DEFINE_string("prompts", None, "Prompt file; instead of config.prompts.")

    def command(config: ConfigDict, workdir: str) -> list[str]:
        if path.value is not None:
            config.prompts = path.value
        return run(config, workdir)

    results.main(command)


if __name__ == "__main__":
    main()
