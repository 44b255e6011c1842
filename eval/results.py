"""How commands begin and end: settings in, results.json, a chart and an exit code out."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import pathlib
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

import tabulate

from eval import cli
from specjax import device
from specjax.models import saving

if TYPE_CHECKING:
    from matplotlib.figure import Figure

S = TypeVar("S")

_PACKAGES = ("jax", "jaxlib", "flax", "numpy", "transformers")


def read(kind: type[S], config: Mapping[str, Any]) -> S:
    """A settings dataclass from a config (any mapping, or an ``ml_collections.ConfigDict``).

    Raises:
      ValueError: an unknown or a missing key; names it.
    """
    return kind(**fields(kind, config))


def fields(kind: type, config: Any, prefix: str = "") -> dict[str, Any]:
    """The keyword arguments of a settings dataclass: a config's values, its keys checked.

    Args:
      kind: the dataclass.
      config: see ``read``.
      prefix: where the config stands in the whole one, such as ``"ngram."``.

    Raises:
      ValueError: no mapping, or an unknown or a missing key; names it.
    """
    if not isinstance(config, Mapping) and not hasattr(config, "items"):
        raise ValueError(f"config.{prefix.rstrip('.')} is {config!r}; it must hold keys and values")
    values, names = dict(config.items()), [field.name for field in dataclasses.fields(kind)]
    for key in values:
        if key not in names:
            raise ValueError(f"config.{prefix}{key}: there is no such key, only {', '.join(names)}")
    for key in names:
        if key not in values:
            raise ValueError(f"config.{prefix}{key} is missing; the configs in configs/ set it")
    return values


def at_least(least: int, **values: int) -> None:
    """Raises ValueError where a setting is no integer of at least ``least``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"config.{name}={value!r}; it must be an integer of at least {least}")


def share(**values: float) -> None:
    """Raises ValueError where a setting is no number from 0 to 1."""
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 <= value <= 1):
            raise ValueError(f"config.{name}={value!r}; it must be a number from 0 to 1")


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
        "command": command(),
        "config": dataclasses.asdict(settings),
        "device": device.describe(),
        "versions": versions(),
        "seed": getattr(settings, "seed", None),
        **more,
        "failures": list(failures),
        "rows": list(rows),
    }
    write_json(pathlib.Path(workdir) / "results.json", results)


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file to write beside ``path`` that takes its place when all went well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.stem}.tmp-"  # of no file but ours: what a killed run leaves goes by it
    with saving.swept(path.parent, f"{glob.escape(prefix)}????????{glob.escape(path.suffix)}"):
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=path.suffix, dir=path.parent)
        os.close(handle)
        beside = pathlib.Path(name)
        try:
            yield beside
            beside.chmod(0o644)  # mkstemp makes it private
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def write_json(path: pathlib.Path, results: Mapping[str, Any]) -> None:
    """Writes results.json, whole or not at all."""
    text = json.dumps(results, indent=1, allow_nan=False, ensure_ascii=False, default=list)
    with replacing(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    out = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            out[name] = metadata.version(name)
    return out


def command() -> str:
    """The command line of this process, as one can type it again."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    program = f"python -m {spec.name}" if spec else f"python {sys.argv[0]}"
    return " ".join([program, *sys.argv[1:]])


def figure(size: tuple[float, float]) -> Figure:
    """An empty figure of a size in inches, for ``save_figure``."""
    # Not pyplot: it would pick a window system, and keep figures alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(made)
    return made


def save_figure(drawn: Figure, path: pathlib.Path) -> None:
    """Writes a figure as PNG, whole or not at all."""
    with replacing(path) as beside:
        drawn.savefig(beside, dpi=150)


def main(run: Callable[[Mapping[str, Any], str], Sequence[str]]) -> None:
    """The command of an evaluation: ``--config``, ``--workdir``, and the exit code.

    Args:
      run: ``(config, workdir)``, gives a sentence for each failed check; 1 is the exit code then.
    """
    # Here, not on import: evaluations import each other, and flags can be defined only once.
    config, workdir = cli.define_flags()

    def guarded() -> int:
        device.check_accelerator()
        device.enable_compilation_cache()
        cli.check_workdir(workdir.value)
        failures = run(config.value, workdir.value)
        for failure in failures:
            print(f"FAILED: {failure}", file=sys.stderr, flush=True)
        return 1 if failures else 0

    cli.run_app(guarded)
