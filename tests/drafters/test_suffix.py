"""Suffix decoding against plain Python, and what it remembers."""

import importlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, testing
from specjax.draft import Context, Params
from specjax.drafters import PastOutputs, draft_model, first_of, past_outputs, remember, suffix
from tests import support
from tests.drafters import suffix_reference as reference

SLOTS, CAPACITY = 24, 167


@partial(jax.jit, static_argnums=0)
def propose(drafter: Any, past: Any, tokens: Any, length: Any, limit: Any) -> Any:
    context = Context(tokens, length, jnp.zeros(length.shape, bool), None, None)
    return drafter.propose(Params(None, past), (), context, limit)[0]


def drafted(outputs: list[list[int]], row: list[int], limit: int = 99, **how: Any) -> list[int]:
    """What follows one row, in a buffer whose rest repeats its last token."""
    past = support.past_of(outputs, CAPACITY)
    tokens = np.array([row + row[-1:] * (SLOTS - len(row))], np.int32)
    draft = propose(suffix(**how), past, tokens, np.array([len(row)]), np.array([limit]))
    got = draft.tokens[0, : int(draft.length[0])].tolist()
    want = reference.draft(reference.held(outputs, CAPACITY), row, limit=limit, **how)
    assert got == want
    return got


CONFIGURATIONS: list[dict[str, Any]] = [
    dict(k=1, n_max=1, n_min=1, growth=None, min_prob=0.1),
    dict(k=5, n_max=16, n_min=1, growth=1, min_prob=0.1),
    dict(k=6, n_max=4, n_min=2, growth=2, min_prob=0.3),
    dict(k=7, n_max=3, n_min=1, growth=None, min_prob=0.0),
    dict(k=5, n_max=2, n_min=2, growth=3, min_prob=1.0),
]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_drafts_equal_the_reference(configuration: dict[str, Any], seed: int) -> None:
    """Every length of text, alphabets of 1 to 9, every limit; junk past the end must not match."""
    rng = np.random.default_rng(seed)
    k = configuration["k"]
    rows = [(n, vocab) for n in range(1, SLOTS + 1) for vocab in (1, 2, 3, 5, 9)]
    tokens = np.stack([rng.integers(0, vocab, SLOTS) for _, vocab in rows]).astype(np.int32)
    length = np.array([n for n, _ in rows], np.int32)
    limit = rng.integers(0, k + 2, len(rows)).astype(np.int32)
    sizes: set[int] = set()
    from_past = 0
    for vocab, longest in ((2, 9), (4, 30), (9, 30)):  # more places than vote, and fewer
        outputs = [
            rng.integers(0, vocab, rng.integers(1, longest)).tolist() for _ in range(CAPACITY // 4)
        ]
        past = support.past_of(outputs, CAPACITY)
        draft = propose(suffix(**configuration), past, tokens, length, limit)
        assert draft.probs is None
        assert draft.tokens.dtype == draft.length.dtype == jnp.int32
        held = reference.held(outputs, CAPACITY)
        for row, n in enumerate(length):
            text = tokens[row, :n].tolist()
            how = configuration | dict(limit=int(limit[row]))
            want = reference.draft(held, text, **how)
            got = draft.tokens[row, : draft.length[row]].tolist()
            assert got == want, (text, how)
            sizes.add(len(want))
            from_past += want != reference.draft([], text, **how)
    assert sizes == set(range(k + 1)) and from_past > 5, "all of it occurs"


def test_the_longer_match_wins_and_of_equals_the_row_s_own() -> None:
    row = [1, 2, 3, 8, 9, 2, 3]  # 2 3 stands in the row: 8 follows
    assert drafted([[2, 3, 5]], row, k=1) == [8]
    assert drafted([[9, 2, 3, 5]], row, k=1) == [5]
    assert drafted([[9, 2, 3, 5]], row, k=1, n_max=2) == [8], "both count as 2"
    assert drafted([[9, 2, 3]], row, k=1) == [8], "nothing follows the longer one"


def test_the_most_frequent_continuation_is_drafted() -> None:
    outputs = [[1, 2, 5], [1, 2, 6], [1, 2, 5], [1, 2, 7]]
    assert drafted(outputs, [1, 2], k=3, growth=2) == [5]
    assert drafted(outputs[1:], [1, 2], k=3, growth=2) == [7], "of equals the latest"
    # 4 is the more frequent third token, but not after a 5.
    outputs = [[1, 5, 3], [1, 5, 3], [1, 5, 3], [1, 6, 4], [1, 6, 4], [1, 7, 4], [1, 8, 4]]
    assert drafted(outputs, [1], k=3, growth=None) == [5, 3]


@pytest.mark.parametrize(("share", "want"), [(0.26, 2), (0.25, 3), (0.5, 2), (0.51, 1), (0.76, 0)])
def test_the_draft_ends_where_too_few_agree(share: float, want: int) -> None:
    outputs = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6], [1, 7, 7]]
    assert len(drafted(outputs, [1], k=5, growth=None, min_prob=share)) == want


def test_an_end_counts_against_what_goes_on() -> None:
    outputs = [[1, 2, 3, 4, 5], [1, 2], [1, 2], [1, 2]]
    assert drafted(outputs, [1], k=5, growth=None, min_prob=0.3) == [2]
    assert drafted(outputs, [1], k=5, growth=None, min_prob=0.25) == [2, 3, 4, 5]


def test_neither_match_nor_draft_crosses_an_end() -> None:
    outputs = [[1, 2], [3, 4], [5]]
    assert drafted(outputs, [9, 1, 2], k=5, growth=None) == []
    assert drafted(outputs, [2, 3], k=5, growth=None) == [4]
    assert drafted(outputs, [9, 3, 4], k=5, growth=None) == []
    assert drafted(outputs, [7, 5], k=5, growth=None) == [], "nor runs into the row's own text"


def test_a_match_in_the_row_goes_on_through_the_draft() -> None:
    assert drafted([], [1, 2, 3, 1, 2, 3], k=8, growth=None) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert drafted([], [4, 7, 7], k=4, growth=3) == [7, 7, 7]


def test_the_draft_stays_within_the_limit() -> None:
    for limit, want in ((0, []), (1, [1]), (2, [1, 2]), (9, [1, 2, 3, 1, 2])):
        assert drafted([], [1, 2, 3, 1, 2, 3], limit=limit, k=5, growth=2) == want


def test_growth_limits_by_the_match() -> None:
    outputs = [[1, 2, 3, 4, 5, 6, 7]]
    assert drafted(outputs, [9, 2], k=5) == [3]
    assert drafted(outputs, [1, 2], k=5) == [3, 4]
    assert drafted(outputs, [1, 2], k=5, growth=2) == [3, 4, 5, 6]
    assert drafted(outputs, [1, 2], k=5, growth=9) == [3, 4, 5, 6, 7]


def test_rows_and_buffers_do_not_matter(seed: int) -> None:
    """A row drafts the same alone, and in a longer buffer; 32 places and more vote."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 2, (5, 90)).astype(np.int32)
    length, limit = np.array([3, 9, 90, 1, 75], np.int32), np.full(5, 4, np.int32)
    past = remember(past_outputs(CAPACITY), rng.integers(0, 2, 100).tolist())
    drafter = suffix(4, n_max=3, growth=None)
    whole = propose(drafter, past, tokens, length, limit)
    for row in range(5):
        pick = slice(row, row + 1)
        wider = np.pad(tokens[pick], ((0, 0), (0, 17)))
        alone = propose(drafter, past, wider, length[pick], limit[pick])
        used = int(alone.length[0])
        assert used == whole.length[row]
        np.testing.assert_array_equal(alone.tokens[0, :used], whole.tokens[row, :used])


# --- what is remembered ---


def test_the_oldest_tokens_make_room(seed: int) -> None:
    rng, capacity = np.random.default_rng(seed), 20
    past, outputs = past_outputs(capacity), []
    assert past.tokens.tolist() == [-1] * capacity and past.tokens.dtype == jnp.int32
    for size in [3, 1, 7, 19, 2, 20, 4, 50, 6, 18, 6, *rng.integers(1, 30, 10).tolist()]:
        outputs.append(rng.integers(0, 99, size).tolist())
        before = past.tokens.tolist()
        after = remember(past, outputs[-1])
        assert past.tokens.tolist() == before, "pure"
        past = after
        assert past.tokens.tolist() == reference.held(outputs, capacity)
        assert past.tokens.dtype == jnp.int32 and past.tokens[-1] == -1
    assert remember(past, []) is past


def test_remembering_compiles_once() -> None:
    past = past_outputs(33)
    past = remember(past, [1])
    module = importlib.import_module("specjax.drafters.suffix")
    before = module._appended._cache_size()
    for size in range(1, 50, 7):
        past = remember(past, range(size))
        past = remember(past, np.arange(size, dtype=np.int64))
    assert module._appended._cache_size() == before


@pytest.mark.parametrize(
    ("capacity", "words"),
    [
        (2, "capacity=2; it must be at least 3"),
        (-1, "capacity=-1; it must be at least 3"),
        (10.0, "capacity=10.0; it must be an int"),
        ("9", "capacity='9'; it must be an int"),
    ],
)
def test_bad_capacities_are_named(capacity: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        past_outputs(capacity)


@pytest.mark.parametrize(
    ("past", "tokens", "words"),
    [
        (None, [1], "remember: got None for the past outputs; give drafters.past_outputs"),
        ([1, 2], [1], "remember: got a list for the past outputs"),
        (PastOutputs(jnp.zeros([2, 9], jnp.int32)), [1], r"shape \(2, 9\) and dtype int32; they must"),
        (PastOutputs(jnp.zeros([9])), [1], r"shape \(9,\) and dtype float32; they must"),
        (PastOutputs([1, 2]), [1], r"shape \(2,\) and dtype None; they must"),
        (past_outputs(9), [1, -1], "tokens hold -1; ids must be 0 to"),
        (past_outputs(9), [2**31], "tokens hold 2147483648; ids must be 0 to"),
        (past_outputs(9), [1.5], r"shape \(1,\) and dtype float64; they must be the ids of one"),
        (past_outputs(9), [True], "dtype bool; they must be the ids"),
        (past_outputs(9), [[1, 2]], r"shape \(1, 2\) and dtype int64; they must be the ids"),
        (past_outputs(9), 5, r"shape \(\) and dtype int64; they must be the ids"),
    ],
)  # fmt: skip
def test_what_cannot_be_remembered_is_named(past: Any, tokens: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        remember(past, tokens)


# --- through the loop ---

TARGET, TABLE = testing.scripted_target(16), testing.scripted_table(0, 16)
PROMPTS = [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [3, 4], [7]]
TRUTH = [support.plain_greedy(TABLE, prompt, 20) for prompt in PROMPTS]
decode = partial(specjax.sample, TARGET, TABLE, PROMPTS, max_new_tokens=20)


def test_greedy_output_is_plain_decoding_s_and_known_answers_are_fast() -> None:
    """The same program with nothing, the answers, and wrong ones remembered."""
    known = support.past_of(TRUTH, 200)
    wrong = remember(known, [(token + 1) % 16 for token in TRUTH[0]])
    rounds = []
    for params in (past_outputs(200), known, wrong):
        for drafter in (suffix(6), suffix(6, n_max=4, growth=None, min_prob=0.5)):
            out = decode(drafter=drafter, drafter_params=params)
            assert out.tokens.tolist() == TRUTH
        rounds.append(int(out.stats.rounds.sum()))
    assert rounds[1] < rounds[0] / 2


def test_in_turn_with_a_model() -> None:
    known = remember(past_outputs(200), TRUTH[0])
    drafter = first_of(suffix(6, n_min=3), draft_model(TARGET, 2))
    out = decode(drafter=drafter, drafter_params=(known, TABLE))
    assert out.tokens.tolist() == TRUTH
    assert specjax.stats.acceptance_rate(out.stats) > 0.9


def test_a_new_past_does_not_recompile() -> None:
    target = TARGET._replace(name="counted for suffix")
    loop = specjax.loop.decode_state
    past = past_outputs(64)
    sizes = []
    for output in TRUTH:
        specjax.sample(
            target, TABLE, PROMPTS, max_new_tokens=9, drafter=suffix(3), drafter_params=past,
            sampling=Sampling(temperature=1.0), key=jax.random.key(0),
        )  # fmt: skip
        sizes.append(loop._cache_size())
        past = remember(past, output)
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("given", [None, TABLE], ids=["None", "a table"])
def test_past_outputs_must_be_given(given: Any) -> None:
    what = "None" if given is None else "a .*"
    words = f"suffix: drafter_params: got {what} for the past outputs; give drafters.past_outputs"
    with pytest.raises(ValueError, match=words):
        decode(drafter=suffix(3), drafter_params=given)
    with pytest.raises(ValueError, match=words):
        decode(drafter=first_of(suffix(3)), drafter_params=(given,))


def test_too_much_to_number_is_named() -> None:
    past = PastOutputs(jax.ShapeDtypeStruct((2**26,), jnp.int32))
    prefill = specjax.draft.Prefill(None, None, None, 128, 64, None, 4)
    with pytest.raises(ValueError, match="67108864 slots with n_max=16 don't fit"):
        suffix(3).init(Params(None, past), prefill)


BAD = {
    "k=0; it must be at least 1": dict(k=0),
    "n_min=0, n_max=16": dict(n_min=0),
    "n_min=17, n_max=16": dict(n_min=17),
    "growth=0; it must be at least 1": dict(growth=0),
    "min_prob=1.5; it must be 0": dict(min_prob=1.5),
    "min_prob=nan; it must be 0": dict(min_prob=float("nan")),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_arguments_are_named(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        suffix(**{"k": 3, **BAD[words]})


def test_equal_arguments_give_the_same_drafter() -> None:
    assert suffix(3) is suffix(3)
    assert suffix(3, n_max=2) is not suffix(3)
