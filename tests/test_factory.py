"""Equal arguments give the same object, however they are spelled."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import specjax
from specjax import policies, testing, verify
from specjax.by_cost import by_cost
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
    [policies.fixed(5), policies.by_batch(((1, 5),)), policies.by_batch([[1, np.int64(5)]])],
    [policies.heuristic(), policies.heuristic(5), policies.heuristic(down=1, first=5)],
    [verify.relaxed(), verify.relaxed(5), verify.relaxed(margin=0.3, top_n=5)],
]


@pytest.mark.parametrize("same", SPELLINGS, ids=lambda same: same[0].name)
def test_spelling_makes_no_difference(same: list[Any]) -> None:
    assert all(one is same[0] for one in same)


def test_other_arguments_make_another_object() -> None:
    assert ngram(4) is not ngram(5) and ngram(4) is not ngram(4, n_max=5)


@pytest.mark.parametrize("k", [np.int64(3), np.int32(3), np.uint8(3)])
def test_numbers_of_numpy_are_numbers(k: Any) -> None:
    assert ngram(k) is ngram(3) and type(ngram(k).num_nodes) is int
    assert ngram(3, k_short=k) is ngram(3, k_short=3)
    assert corpus(min_prob=np.float32(0.5)) is corpus(min_prob=0.5)


# Any, for no type checker would let most of them through.
NGRAM, SUFFIX, CORPUS, FIRST_OF, ADAPTIVE, BY_COST, BY_BATCH = cast(
    tuple[Any, ...],
    (ngram, suffix, corpus, first_of, specjax.adaptive, by_cost, policies.by_batch),
)
BAD: list[tuple[Any, str]] = [
    (lambda: NGRAM(3.0), "ngram: k=3.0; it must be an int"),
    (lambda: NGRAM(True), "ngram: k=True; it must be an int"),
    (lambda: NGRAM(2**31), "ngram: k=2147483648; it must be at most 2147483647"),
    (lambda: NGRAM(k_short="2"), "ngram: k_short='2'; it must be an int or None"),
    (lambda: NGRAM(n_max=[3]), r"ngram: n_max=\[3\]; it must be an int"),
    (lambda: NGRAM(match=None), "ngram: match=None; it must be a string"),
    (lambda: SUFFIX(growth=2.5), "suffix: growth=2.5; it must be an int or None"),
    (lambda: CORPUS(min_prob="x"), "corpus: min_prob='x'; it must be a number"),
    (lambda: CORPUS(min_prob=float("nan")), "corpus: min_prob=nan; it must be 0"),
    (lambda: CORPUS(sampled=1), "corpus: sampled=1; it must be True or False"),
    (lambda: BY_COST(memory=None), "by_cost: memory=None; it must be an int"),
    (lambda: FIRST_OF([ngram(3)]), "first_of: .* is no drafter; give drafters one by one"),
    (lambda: FIRST_OF(None), "first_of: None is no drafter"),
    (lambda: ADAPTIVE([ngram(3)]), "adaptive: .* is no drafter; give drafters one by one"),
    (lambda: BY_BATCH(5), r"by_batch: 5 is no table; give pairs"),
    (lambda: BY_BATCH(((1, 5), (8,))), r"by_batch: .* is no table; give pairs"),
    (lambda: BY_BATCH(((1.0, 5),)), r"by_batch: .* is no table; give pairs"),
]


@pytest.mark.parametrize(("make", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_other_types_are_refused_and_nothing_of_them_is_kept(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
    assert type(ngram(3).num_nodes) is int


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
