"""What a copy of the target must do, with made-up counts and bursts."""

from typing import Any

import numpy as np
import pytest

from eval import checks
from eval.measure import Cell, Trial
from eval.modes import Mode
from eval.prompts import Prompt
from eval.timing import Decoding, DraftTime
from specjax import testing, verify
from specjax.drafters import draft_model
from specjax.stats import Stats

TARGET = testing.scripted_target(9)
COPY = Mode("draft_model", 0.0, verify.greedy, draft_model(TARGET, 3), is_copy=True)
MODEL: Any = type("Model", (), {"dtype": np.dtype(np.float32)})()


def cell(new: int, judged: tuple[int, ...], accepted: tuple[int, ...], bursts: list[int] | None):
    def row(counts: tuple[int, ...]) -> np.ndarray:
        return np.array([counts], int)

    one = np.array([len(bursts or [0])])
    counts = Stats(
        one, np.array([new]), row(judged).sum(1), row(judged), row(accepted), *(5 * [one])
    )
    decoding = Decoding(list(range(new)), 1.0, 1.0, counts, (1,))
    pauses = None if bursts is None else (bursts, [])
    return Cell(
        Prompt("p", "c", ("?",)),
        [1, 2],
        COPY,
        [Trial(0, decoding, {}, (DraftTime(0.0, 0.0),))],
        pauses,
    )


def failures(monkeypatch: pytest.MonkeyPatch, one: Cell, ties: set[int] = frozenset()):
    """Of a cell whose near ties are at these output indices; and where ties were looked for."""
    asked = []

    def margin(model: Any, ids: list[int]) -> float:
        asked.append(len(ids) - len(one.ids))
        return 1e-5 if asked[-1] in ties else 1.0

    monkeypatch.setattr(checks, "margin", margin)
    return checks.copies([one], MODEL), asked


def test_all_accepted(monkeypatch):
    assert failures(monkeypatch, cell(8, (2, 2, 2), (2, 2, 2), [4, 4])) == ([], [])


@pytest.mark.parametrize(
    ("one", "place"),
    [
        # In the first of two rounds: its burst is short.
        (cell(6, (2, 2, 1), (2, 1, 1), [2, 4]), 1),
        # In the last round, whose burst is all that was left of the budget or came before an EOS:
        # one was accepted, the next token is the correction, and a token would have followed.
        (cell(6, (2, 2, 1), (2, 1, 1), [4, 2]), 5),
        # An answer no longer than a draft: the one round has the one refusal.
        (cell(2, (1, 1, 0), (1, 0, 0), [2]), 1),
    ],
)
def test_a_refusal_is_a_failure_but_at_a_near_tie(monkeypatch, one, place):
    found, asked = failures(monkeypatch, one)
    assert "target as draft k=3 (check) has" in found[0]
    assert "of its drafts accepted on 'p'" in found[0] and asked == [place]
    assert failures(monkeypatch, one, {place}) == ([], [place])


def test_a_refusal_past_the_answers_end_changes_nothing(monkeypatch):
    """The second round accepted two tokens, the first of which ended the answer."""
    assert failures(monkeypatch, cell(5, (2, 2, 2), (2, 2, 1), [4, 1])) == ([], [])


def test_a_refusal_that_cannot_be_placed_is_a_failure(monkeypatch):
    found, asked = failures(monkeypatch, cell(6, (2, 2, 1), (2, 1, 1), None))
    assert len(found) == 1 and not asked
