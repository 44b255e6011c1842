"""Prompt lookup against a few lines of Python."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import testing
from specjax.draft import Context
from specjax.drafters import ngram
from tests import support

SLOTS = 24


def reference(
    tokens: list[int], k: int, n_max: int, n_min: int, k_short: int | None, match: str
) -> list[int]:
    """The draft that should follow ``tokens``, by the docstring's words."""
    for n in range(n_max, n_min - 1, -1):
        ends = [s for s in range(n, len(tokens)) if tokens[s - n : s] == tokens[-n:]]
        if ends:
            source = ends[-1] if match == "recent" else ends[0]
            text = list(tokens)
            count = k if n == n_max else k_short or k
            for i in range(count):
                text.append(text[source + i])
            return text[len(tokens) :]
    return []


@partial(jax.jit, static_argnums=0)
def propose(drafter: Any, tokens: jax.Array, length: jax.Array, limit: jax.Array) -> Any:
    context = Context(tokens, length, jnp.zeros(length.shape, bool), None, None)
    return drafter.propose(None, (), context, limit)[0]


CONFIGURATIONS = [
    dict(k=1, n_max=1, n_min=1, k_short=None, match="recent"),
    dict(k=4, n_max=3, n_min=1, k_short=None, match="recent"),
    dict(k=4, n_max=3, n_min=1, k_short=None, match="first"),
    dict(k=6, n_max=4, n_min=2, k_short=3, match="recent"),
    dict(k=5, n_max=2, n_min=2, k_short=1, match="first"),
]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_drafts_equal_the_reference(configuration: dict, seed: int) -> None:
    """Every length of buffer, alphabets of 2 to 4, and junk past the end that must not match."""
    rng = np.random.default_rng(seed)
    rows = [(n, vocab) for n in range(1, SLOTS + 1) for vocab in (1, 2, 3, 4) for _ in range(4)]
    tokens = np.stack([rng.integers(0, vocab, SLOTS) for _, vocab in rows]).astype(np.int32)
    length = np.array([n for n, _ in rows], np.int32)
    limit = np.full(len(rows), configuration["k"], np.int32)
    draft = propose(ngram(**configuration), tokens, length, limit)
    assert draft.probs is None
    assert draft.tokens.dtype == draft.length.dtype == jnp.int32
    hits = 0
    for row, n in enumerate(length):
        want = reference(tokens[row, :n].tolist(), **configuration)
        got = draft.tokens[row, : draft.length[row]].tolist()
        assert got == want, (tokens[row, :n], configuration)
        hits += bool(want)
    assert 20 < hits < len(rows), "both cases occur"


def test_the_draft_stays_within_the_limit(seed: int) -> None:
    """F20: budgets of 0, 1 and 2."""
    tokens = np.tile(np.array([1, 2, 3, 1, 2, 3, 0, 0], np.int32), (4, 1))
    length, limit = np.full(4, 6, np.int32), np.array([0, 1, 2, 9], np.int32)
    draft = propose(ngram(5), tokens, length, limit)
    assert draft.length.tolist() == [0, 1, 2, 5]
    assert draft.tokens[3].tolist() == [1, 2, 3, 1, 2]


def test_a_one_token_prompt_drafts_nothing() -> None:
    tokens = np.zeros((1, 8), np.int32)  # the slots past the end repeat the pending token
    assert propose(ngram(3), tokens, np.array([1]), np.array([3])).length.tolist() == [0]


def test_rows_do_not_see_each_other(seed: int) -> None:
    tokens = np.random.default_rng(seed).integers(0, 3, (5, SLOTS)).astype(np.int32)
    length, limit = np.array([3, 9, 24, 1, 12], np.int32), np.full(5, 4, np.int32)
    whole = propose(ngram(4), tokens, length, limit)
    for row in range(5):
        pick = slice(row, row + 1)
        alone = propose(ngram(4), tokens[pick], length[pick], limit[pick])
        assert alone.length[0] == whole.length[row]
        used = int(alone.length[0])
        np.testing.assert_array_equal(alone.tokens[0, :used], whole.tokens[row, :used])


def test_equal_arguments_give_the_same_drafter() -> None:
    assert ngram(3) is ngram(3)
    assert ngram(3, n_max=2) is not ngram(3)


def test_nothing_survives_a_call() -> None:
    """F60, F75, F79: long, short, long prompt through one object; k is the k asked for."""
    drafter = ngram(4)
    target, table = testing.scripted_target(16), testing.scripted_table(0, 16)
    long, short = [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]], [[3, 4]]
    decode = partial(specjax.sample, target, table, drafter=drafter, max_new_tokens=12)
    fresh = [decode(prompt) for prompt in (long, short)]
    again = [decode(prompt) for prompt in (short, long, short)]
    for first, second in ((fresh[1], again[0]), (fresh[0], again[1]), (fresh[1], again[2])):
        for ours, theirs in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for out, prompt in zip(fresh, (long, short), strict=True):
        assert out.tokens[0].tolist() == support.plain_greedy(table, prompt[0], 12)
    assert drafter.num_nodes == 4
    assert fresh[0].stats.judged.shape == (1, 4)


BAD = {
    "k=0; it must be at least 1": dict(k=0),
    "k=-3; it must be at least 1": dict(k=-3),
    "n_min=0, n_max=3": dict(n_min=0),
    "n_min=4, n_max=3": dict(n_min=4),
    "k_short=0; it must be 1 to k=3": dict(k_short=0),
    "match='last'; it must be one of": dict(match="last"),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_arguments_are_named(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ngram(**{"k": 3, **BAD[words]})
