"""The cost table: reading between its points, keeping it, and refusing another's."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from specjax import costs
from specjax.costs import CostTable, Origin

ORIGIN = Origin("cpu: a processor", "float32", "0.10", "llama (1M parameters)", "EAGLE-3, N=3")


def table_of(**changes: object) -> CostTable:
    values = dict(
        origin=ORIGIN, batches=(1, 4), contexts=(100, 300), widths=(1, 2, 4), drafts=(0, 1, 3),
        target_s=np.arange(1, 13).reshape(2, 2, 3) * 1.0, draft_s=np.array([[0, 1, 5], [4, 5, 9.0]]),
    )  # fmt: skip
    return CostTable(**{**values, **changes})


def test_the_target_s_side_is_that_of_the_width_that_holds_the_tokens() -> None:
    assert [table_of().target_seconds(1, 100, n) for n in (1, 2, 3, 4)] == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("batch", "context", "seconds"),
    [(1, 300, 4), (1, 200, 2.5), (4, 100, 7), (2, 100, 3), (2, 200, 4.5), (1, 5, 1), (1, 999, 4)],
)
def test_between_batches_and_contexts(batch: int, context: int, seconds: float) -> None:
    assert table_of().target_seconds(batch, context, 1) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("batch", "tokens", "seconds"), [(1, 0, 0), (1, 2, 3), (4, 3, 9), (2, 1, 7 / 3)]
)
def test_the_drafter_s_side(batch: int, tokens: int, seconds: float) -> None:
    assert table_of().draft_seconds(batch, tokens) == pytest.approx(seconds)


def test_a_round_is_both() -> None:
    assert table_of().round_seconds(1, 100, 3) == 3 + 5


def test_saved_and_loaded(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "there" / "table.json"
    table_of().save(path)
    again = costs.load(path)
    assert again.origin == ORIGIN and again.widths == (1, 2, 4) and again.batches == (1, 4)
    np.testing.assert_array_equal(again.target_s, table_of().target_s)
    assert [file.name for file in path.parent.iterdir()] == ["table.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"origin": {}}', '{"origin": {"what": 1}, "target_s": []}']
)
def test_a_file_that_is_no_table(tmp_path: pathlib.Path, content: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"table.json is no cost table .*; calibrate again"):
        costs.load(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batches": ("1", "4")}, "batches is .*; it must hold ascending integers from 1"),
        ({"batches": (4, 1)}, "batches is"),
        ({"contexts": (300, 100)}, "contexts is .*; it must hold ascending integers from 2"),
        ({"widths": (1, 4, 2)}, "widths is"),
        ({"drafts": (0, 0, 3)}, "drafts is .*; it must hold ascending integers from 0"),
        ({"drafts": (0, 1, 2)}, "drafts end at 2, and widths at 4"),
    ],
)
def test_axes_that_are_none(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        table_of(**changes)


def test_no_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="is no cost table"):
        costs.load(tmp_path / "none.json")


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Origin)])
def test_a_table_of_something_else_is_refused_by_name(name: str) -> None:
    table_of().check(ORIGIN)
    with pytest.raises(ValueError, match=f"of another {name}: .*, and this is 'other'"):
        table_of().check(dataclasses.replace(ORIGIN, **{name: "other"}))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda t: t.target_seconds(8, 100, 1), r"batch=8; .* \[1, 4\]"),
        (lambda t: t.draft_seconds(0, 1), "batch=0"),
        (lambda t: t.target_seconds(1, 100, 5), "tokens=5; the table goes from 1 to 4"),
        (lambda t: t.target_seconds(1, 100, 0), "tokens=0"),
        (lambda t: t.draft_seconds(1, 4), "tokens=4; the table goes from 0 to 3"),
        (lambda t: table_of(draft_s=np.zeros([2, 2])), r"draft_s has shape \(2, 2\)"),
        (lambda t: table_of(target_s=t.target_s * np.nan), "target_s holds nan"),
        (lambda t: table_of(draft_s=t.draft_s - 1), "draft_s holds -1"),
    ],
)
def test_bad_input_is_named(ask: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(table_of())  # type: ignore[operator]


def test_people_can_read_it() -> None:
    text = str(table_of())
    assert "cpu: a processor" in text and "EAGLE-3, N=3's side, ms" in text
    assert "    4      300   10000.00   11000.00   12000.00" in text
    assert "0 drafted" in text and "9000.000" in text
