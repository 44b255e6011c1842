"""What a training command leaves besides what it trained: its whole config, and a title."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from train import curves, settings


def check_what_a_run_says_of_itself(
    workdir: pathlib.Path, config: Any, read: Callable[[Any], Any]
) -> None:
    """The config in results.json is the run's: all of it, and the loop's as it was run."""
    written = json.loads((workdir / "results.json").read_text())["config"]
    assert written.keys() == dict(config).keys()
    assert read(written) == read(config), "it can be run again"
    was = dict(config.loop)
    short = config.loop.copy_and_resolve_references()
    settings.smoke(short)
    assert settings.read(written["loop"]) == settings.read(short)
    assert dict(config.loop) == was, "the caller's own config stays as it is"


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of the charts that are drawn."""
    out: list[str] = []
    write = curves.write

    def noted(*arguments: Any) -> None:
        out.append(arguments[-1])
        write(*arguments)

    monkeypatch.setattr(curves, "write", noted)
    return out
