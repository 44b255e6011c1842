"""How the smaller evaluations begin and end: settings in, results.json and an exit code out."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import tabulate

from eval import cli, report
from specjax import device

S = TypeVar("S")


def read(kind: type[S], config: Mapping[str, Any]) -> S:
    """A settings dataclass from a config (any mapping, or an ``ml_collections.ConfigDict``).

    Raises:
      ValueError: an unknown or a missing key; names it.
    """
    values = dict(config.items())
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            raise ValueError(f"config.{key}: there is no such key, only {', '.join(names)}")
    for key in names:
        if key not in values:
            raise ValueError(f"config.{key} is missing; the configs in configs/ set it")
    return kind(**values)


def at_least(least: int, **values: int) -> None:
    """Raises ValueError where a setting is no integer of at least ``least``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"config.{name}={value!r}; it must be an integer of at least {least}")


def table(lines: Sequence[Mapping[str, str]]) -> str:
    """A table for people: texts to the left, numbers to the right."""
    text = [any(c.isalpha() for line in lines for c in line[name]) for name in lines[0]]
    align = ["left" if is_text else "right" for is_text in text]
    return tabulate.tabulate(lines, headers="keys", disable_numparse=True, colalign=align)


def write(
    workdir: str | pathlib.Path,
    settings: Any,
    rows: Sequence[Mapping[str, Any]],
    failures: Sequence[str],
    **more: Any,
) -> None:
    """Writes results.json.

    Args:
      workdir: the folder; made if it isn't there.
      settings: a dataclass with a ``seed``, or without one where nothing is drawn.
      rows: flat dicts.
      failures: a sentence for each failed check.
      **more: further entries.
    """
    results = {
        "command": report.command(),
        "config": dataclasses.asdict(settings),
        "device": device.describe(),
        "versions": report.versions(),
        "seed": getattr(settings, "seed", None),
        **more,
        "failures": list(failures),
        "rows": list(rows),
    }
    report.write_json(pathlib.Path(workdir) / "results.json", results)


def main(run: Callable[[Mapping[str, Any], str], Sequence[str]]) -> None:
    """The command of an evaluation: ``--config``, ``--workdir``, and the exit code.

    Args:
      run: ``(config, workdir)``, gives a sentence for each failed check; 1 is the exit code then.
    """
    # Here, not on import: evaluations import each other, and flags can be defined only once.
    config, workdir = cli.define_flags()

    def command() -> int:
        device.check_accelerator()
        device.enable_compilation_cache()
        failures = run(config.value, workdir.value)
        for failure in failures:
            print(f"FAILED: {failure}", file=sys.stderr, flush=True)
        return 1 if failures else 0

    cli.run_app(command)
