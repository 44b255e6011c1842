"""The corpus drafter against a few lines of Python, and what comes out."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, testing, verify
from specjax.draft import Context, Params
from specjax.drafters import corpus, corpus_params, draft_model, first_of, ngram
from tests import support

SLOTS, VOCAB, ORDERS = 20, 6, 3
DOUBT = [2.0, 0.5, 0.25]


def known(counts: support.Counts, text: list[int], min_count: int) -> tuple[int, Any]:
    """The longest context the table knows, and what follows it, best first."""
    for n in range(min(ORDERS, len(text)), 0, -1):
        follows = counts.get(tuple(text[len(text) - n :]), {})
        if follows and max(follows.values()) >= min_count:
            return n, sorted(follows.items(), key=lambda item: (-item[1], item[0]))
    return 0, []


def reference(
    counts: support.Counts, text: list[int], k: int, min_prob: float, min_first: float,
    min_count: int,
) -> list[int]:  # fmt: skip
    """The draft that should follow a text, by the docstring's words."""
    text, draft, prob = list(text), [], 1.0
    while len(draft) < k:
        n, follows = known(counts, text, min_count)
        if not n:
            break
        total = sum(counts[tuple(text[len(text) - n :])].values())
        prob *= follows[0][1] / (total + DOUBT[n - 1])
        if prob < min_prob or (not draft and prob < min_first):
            break
        draft.append(follows[0][0])
        text.append(follows[0][0])
    return draft


def corpus_of(seed: int) -> support.Counts:
    rng = np.random.default_rng(seed)
    whole = support.counts_of(rng.integers(0, VOCAB, (6, 12)).tolist(), ORDERS)
    return {context: c for context, c in whole.items() if rng.random() < 0.8}


@partial(jax.jit, static_argnums=0)
def propose(drafter: Any, table: Any, tokens: Any, length: Any, limit: Any) -> Any:
    context = Context(tokens, length, jnp.zeros(length.shape, bool), None, None)
    return drafter.propose(Params(None, table), (), context, limit)[0]


@pytest.mark.parametrize(
    "arguments",
    [
        dict(k=1, min_prob=0.0, min_first=0.0, min_count=1),
        dict(k=5, min_prob=0.0, min_first=0.0, min_count=1),
        dict(k=5, min_prob=0.15, min_first=0.0, min_count=1),
        dict(k=4, min_prob=0.05, min_first=0.4, min_count=1),
        dict(k=4, min_prob=0.1, min_first=0.0, min_count=2),
    ],
    ids=str,
)
def test_drafts_equal_the_reference(arguments: dict, seed: int) -> None:
    """Every length of buffer, and junk past the end that no context may reach."""
    counts, rng = corpus_of(seed), np.random.default_rng(seed + 1)
    length = np.repeat(np.arange(1, SLOTS + 1), 8).astype(np.int32)
    tokens = rng.integers(0, VOCAB, (len(length), SLOTS)).astype(np.int32)
    limit = rng.integers(0, arguments["k"] + 1, len(length)).astype(np.int32)
    table = corpus_params(support.table_of(counts, DOUBT))
    draft = propose(corpus(**arguments), table, tokens, length, limit)
    assert draft.probs is None, "chosen without drawing"
    sizes = set()
    for row, count in enumerate(length):
        want = reference(counts, tokens[row, :count].tolist(), **arguments)[: limit[row]]
        assert draft.tokens[row, : draft.length[row]].tolist() == want
        sizes.add(len(want))
    assert len(sizes) > 1, "all drafts are of one length: little was tested"


def test_a_context_of_the_same_key_drafts_nothing() -> None:
    """Keys alone may agree by chance; the check tells them apart."""
    table = support.table_of({(1,): {2: 1}}, DOUBT)
    tokens, one = np.array([[1]], np.int32), np.array([1], np.int32)
    assert propose(corpus(1, min_prob=0.0), corpus_params(table), tokens, one, one).length == 1
    table.checks[0] ^= 1
    assert propose(corpus(1, min_prob=0.0), corpus_params(table), tokens, one, one).length == 0


@pytest.mark.parametrize("size", [1, 2, 63, 5000])
def test_every_context_of_a_table_is_found(size: int, seed: int) -> None:
    """Of tables that fill their buckets unevenly."""
    rng = np.random.default_rng(seed)
    tokens = rng.permutation(60_000)[:size]
    table = support.table_of({(int(token),): {7: 1} for token in tokens}, [0.0])
    rows = tokens.astype(np.int32)[:, None]
    one = np.ones(size, np.int32)
    draft = propose(corpus(1, min_prob=0.0), corpus_params(table), rows, one, one)
    # Of two contexts with one key only the first is found; among 5,000 there is none, almost surely.
    assert draft.length.tolist() == one.tolist() and set(draft.tokens[:, 0].tolist()) == {7}


TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
PROMPTS = [[int(i * 5 + n) % VOCAB for i in range(n)] for n in (1, 2, 5, 9)] * 6
BUDGET = 16


def drafting(sampled: bool, in_turn: bool = False) -> dict[str, Any]:
    texts = [p + support.plain_greedy(TABLE, p, BUDGET) for p in PROMPTS[:4]]
    counts = {**support.counts_of(texts, ORDERS), (0,): {0: 3, 1: 2, 2: 1}}
    params = corpus_params(support.table_of(counts, DOUBT))
    ours = corpus(4, min_prob=0.1, sampled=sampled)
    if not in_turn:
        return {"drafter": ours, "drafter_params": params}
    whole = first_of(ngram(3, n_min=2), ours, draft_model(TARGET, 2))
    return {"drafter": whole, "drafter_params": (None, params, TABLE)}


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
def test_greedy_output_is_plain_decoding_s(sampled: bool, in_turn: bool) -> None:
    out = specjax.sample(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, **drafting(sampled, in_turn)
    )
    for row, prompt in enumerate(PROMPTS):
        assert out.tokens[row].tolist() == support.plain_greedy(TABLE, prompt, BUDGET)
    assert int(out.stats.accepted.sum()) > 20


@pytest.mark.parametrize("sampled", [False, True])
def test_coupled_output_is_plain_sampling_s(sampled: bool) -> None:
    same: dict = dict(
        max_new_tokens=BUDGET, sampling=Sampling(temperature=0.7), key=jax.random.key(1),
        verifier=verify.coupled,
    )  # fmt: skip
    plain = specjax.sample(TARGET, TABLE, PROMPTS, **same)
    ours = specjax.sample(TARGET, TABLE, PROMPTS, **same, **drafting(sampled))
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    assert int(ours.stats.accepted.sum()) > 5


def test_drawn_drafts_come_with_the_law_of_the_counts() -> None:
    """Of the best few continuations, under the active settings; the length is known beforehand."""
    counts = {(0,): {3: 4, 1: 2, 5: 1, 2: 1}, (3,): {0: 1}}
    table = corpus_params(support.table_of(counts, [1.0], ranks=3))
    run = specjax.start(
        TARGET, TABLE, [[0]] * 400 + [[1]], drafter=corpus(2, min_prob=0.3, sampled=True, ranks=3),
        drafter_params=table, max_new_tokens=8, sampling=Sampling(temperature=0.5),
        key=jax.random.key(0), verifier=verify.token,
    )  # fmt: skip
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    law = np.array([0, 4, 1, 16, 0, 0]) / 21  # counts squared: temperature 0.5
    np.testing.assert_allclose(draft.probs[:400, 0], np.tile(law, (400, 1)), atol=1e-6)
    first = np.bincount(np.asarray(draft.tokens)[:400, 0], minlength=VOCAB)
    assert support.p_value_of_counts(first, law) > support.SIGNIFICANCE
    # 7 of 9 for the first; after a 3 another 1 of 2, after the others nothing is known.
    assert draft.length.tolist() == [1 + (t == 3) for t in draft.tokens[:400, 0].tolist()] + [0]
    assert np.isfinite(draft.probs).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(k=0), "corpus: k=0; it must be at least 1"),
        (dict(min_count=0), "corpus: min_count=0; it must be at least 1"),
        (dict(ranks=0), "corpus: ranks=0; it must be at least 1"),
        (dict(min_prob=1.5), "corpus: min_prob=1.5; it must be 0"),
        (dict(min_first=-0.1), "corpus: min_first=-0.1; it must be 0"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        corpus(**arguments)


def test_parameters_of_another_kind() -> None:
    with pytest.raises(ValueError, match="drafter_params is a dict; give what corpus_params"):
        specjax.start(
            TARGET, TABLE, [[1]], drafter=corpus(2), max_new_tokens=2,
            drafter_params={"keys": jnp.zeros(3)},
        )  # fmt: skip


def test_equal_arguments_give_the_same_drafter() -> None:
    assert corpus(3, min_prob=0.5) is corpus(3, min_prob=0.5)
