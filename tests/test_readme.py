"""The README's example is what users copy first: it has to run as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("[[")


def test_the_promises_are_there() -> None:
    text = README.read_text()
    for line in ("make speedup", "make test", "nrelated to the EAGLE-3", "When it won't help"):
        assert line in text
