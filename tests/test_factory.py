"""Equal arguments give the same object, however they are spelled."""

from __future__ import annotations

from typing import Any

import pytest

import specjax
from specjax import policies, testing, verify
from specjax.drafters import corpus, draft_model, first_of, medusa, ngram, suffix
from specjax.factory import factory
from specjax.heads import MedusaConfig

TARGET = testing.scripted_target(7)
HEADS = MedusaConfig(8, 3, 1, 7)

SPELLINGS: list[list[Any]] = [
    [ngram(4), ngram(k=4), ngram(4, n_min=1), ngram(n_min=1, k=4)],
    [suffix(4), suffix(k=4)],
    [corpus(4), corpus(k=4), corpus(4, min_count=1)],
    [draft_model(TARGET), draft_model(TARGET, 5), draft_model(model=TARGET, min_prob=0.0)],
    [medusa(HEADS), medusa(HEADS, 3), medusa(config=HEADS, k=3, min_prob=0)],
    [specjax.adaptive(ngram(4)), specjax.adaptive(ngram(k=4), policy=None)],
    [first_of(ngram(4), corpus(2)), first_of(ngram(k=4), corpus(k=2))],
    [policies.heuristic(), policies.heuristic(5), policies.heuristic(down=1, first=5)],
    [verify.relaxed(), verify.relaxed(5), verify.relaxed(margin=0.3, top_n=5)],
]


@pytest.mark.parametrize("same", SPELLINGS, ids=lambda same: same[0].name)
def test_spelling_makes_no_difference(same: list[Any]) -> None:
    assert all(one is same[0] for one in same)


def test_other_arguments_make_another_object() -> None:
    assert ngram(4) is not ngram(5) and ngram(4) is not ngram(4, n_max=5)


def test_what_cannot_be_hashed_is_named() -> None:
    @factory
    def pair(one: int, *, two: Any = ()) -> tuple[int, Any]:
        """Two things."""
        return one, two

    assert pair(1) is pair(one=1, two=()) and pair.__doc__ == "Two things."
    with pytest.raises(ValueError, match=r"pair: two=\[3\]; it must be hashable"):
        pair(1, two=[3])
    with pytest.raises(TypeError):
        pair()
