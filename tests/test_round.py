"""Rounds: what is emitted, what is cut, what is frozen, what a pass costs.

An oracle drafter decides what is accepted: with the truth as its script every draft is, and a test
can put an EOS, the end of a budget or a wrong token wherever it wants.
"""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, loop, testing, verify
from specjax.draft import Draft, Drafter
from specjax.drafters import draft_model, first_of, ngram, past_outputs, suffix
from specjax.models import ModelConfig, init_params, transformer_target
from specjax.round import advance
from specjax.state import EOS, LENGTH
from tests import support

VOCAB, K, SLOTS = 16, 4, 128
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
PROMPTS = [[int(i * 7 + n * 3) % VOCAB for i in range(n)] for n in range(1, 10)]  # 1 to 9 tokens
TRUTH = [support.plain_greedy(TABLE, prompt, 40) for prompt in PROMPTS]


def script(wrong: Any = None) -> np.ndarray:
    """The truth at each absolute position; ``wrong [B, S]`` marks tokens to get wrong."""
    out = np.full((len(PROMPTS), SLOTS), -1, np.int32)
    for row, (prompt, truth) in enumerate(zip(PROMPTS, TRUTH, strict=True)):
        out[row, len(prompt) : len(prompt) + len(truth)] = truth
    if wrong is not None:
        out = np.where(wrong & (out >= 0), (out + 1) % VOCAB, out)
    return out


ALWAYS_RIGHT = jnp.asarray(script())
OFTEN_WRONG = jnp.asarray(script(np.random.default_rng(0).random((len(PROMPTS), SLOTS)) < 0.3))
start = partial(
    specjax.start,
    TARGET,
    TABLE,
    PROMPTS,
    drafter=testing.oracle(K),
    drafter_params=ALWAYS_RIGHT,
    max_length=SLOTS,
)


def until_eos(tokens: list[int], eos: Any) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens


def check_run(run: Any, budget: int, eos: tuple[int, ...]) -> list[int]:
    """Output, counters, reasons and the whole buffer against the truth; gives the lengths."""
    done = specjax.decode(run)
    tokens = np.asarray(done.state.tokens)
    out = specjax.finish(done, max_new_tokens=budget, pad_id=-7)
    for row, (prompt, truth) in enumerate(zip(PROMPTS, TRUTH, strict=True)):
        want = until_eos(truth[:budget], eos)
        assert out.lengths[row] == out.stats.emitted[row] == len(want)
        assert out.tokens[row].tolist() == want + [-7] * (budget - len(want))
        whole = prompt + want
        assert tokens[row].tolist() == whole + [0] * (SLOTS - len(whole)), "the rest is untouched"
        assert out.finish_reason[row] == (EOS if want[-1] in eos else LENGTH)
    np.testing.assert_array_equal(done.state.cache.length, done.state.length - 1)
    return out.lengths.tolist()


# --- EOS and budgets ---


@pytest.mark.parametrize("right", [True, False])
def test_an_eos_ends_the_row_wherever_it_falls(right: bool) -> None:
    """F18, F26: at every index of an accepted run, as bonus and as correction."""
    params, index_in_run = ALWAYS_RIGHT if right else OFTEN_WRONG, set()
    for eos in range(VOCAB):
        run = start(drafter_params=params, max_new_tokens=40, eos_ids=(eos,))
        for truth, length in zip(TRUTH, check_run(run, 40, (eos,)), strict=True):
            if truth[length - 1] == eos:
                index_in_run.add((length - 1) % (K + 1))
    assert index_in_run == set(range(K + 1)), "indices 0 to k - 1 of the draft, and the bonus"


def test_any_of_several_eos_ids_ends_a_row() -> None:
    """F26: eos = [3, 7]."""
    lengths = check_run(start(max_new_tokens=40, eos_ids=(3, 7)), 40, (3, 7))
    ends = {truth[n - 1] for truth, n in zip(TRUTH, lengths, strict=True)}
    assert ends >= {3, 7}, "both must end some row"


@pytest.mark.parametrize("eos", [(), (5,)])
def test_budgets_1_to_10(eos: tuple[int, ...]) -> None:
    """F20, F21, F25, F27: delivered = reported = min(budget, tokens until EOS); no pass too many."""
    for budget in range(1, 11):
        run = start(max_new_tokens=budget, eos_ids=eos)
        lengths = check_run(run, budget, eos)
        rounds = specjax.decode(start(max_new_tokens=budget, eos_ids=eos)).state.stats.rounds
        assert rounds.tolist() == [-(-n // (K + 1)) for n in lengths]


@pytest.mark.parametrize(
    "drafter", [ngram(3), draft_model(TARGET, 3)], ids=["ngram", "draft model"]
)
def test_drafters_do_not_overshoot_a_budget(drafter: Drafter) -> None:
    """F20, F27: prompts that repeat, no EOS; a budget of 2 with 3 drafts."""
    prompts = [[1, 2, 3] * 3, [4, 4, 4]]
    for budget in (1, 2, 5):
        out = specjax.sample(
            TARGET,
            TABLE,
            prompts,
            drafter=drafter,
            drafter_params=TABLE if drafter is not ngram(3) else None,
            max_new_tokens=budget,
            max_length=64,
        )
        assert out.lengths.tolist() == [budget] * 2
        assert out.tokens.tolist() == [support.plain_greedy(TABLE, p, budget) for p in prompts]
        assert np.all(np.asarray(out.stats.drafted) <= 3 * (budget - 1)), "room for one more token"
        assert np.all(np.asarray(out.stats.accepted).sum(1) <= budget - 1)


def test_the_last_slot_of_the_buffer_is_usable() -> None:
    """F29, F32: a buffer of just the size needed; finished rows' scratch falls outside it."""
    budget = 9
    needed = 9 + budget + K
    tight = specjax.decode(
        start(max_new_tokens=budget, max_length=needed, drafter_params=ALWAYS_RIGHT[:, :needed])
    )
    out = specjax.finish(tight, max_new_tokens=budget)
    assert out.tokens.tolist() == [truth[:budget] for truth in TRUTH]
    assert tight.state.tokens.shape[1] == needed


# --- frozen rows ---


def test_a_finished_row_is_frozen() -> None:
    """F68: EOS in the first round in one row, late in others: nothing of the early ones moves."""
    eos = TRUTH[4][0]
    run = start(max_new_tokens=40, eos_ids=(eos,), drafter_params=OFTEN_WRONG)
    before, frozen = None, 0
    for _, state in support.rounds_of(run):
        if before is not None:
            done = before.done
            frozen += int(done.sum())
            for ours, theirs in zip(
                (state.tokens, state.length, state.reason, *state.stats[:5]),
                (before.tokens, before.length, before.reason, *before.stats[:5]),
                strict=True,
            ):
                np.testing.assert_array_equal(ours[done], theirs[done])
            np.testing.assert_array_equal(state.cache.length[done], before.cache.length[done])
            for row in np.flatnonzero(done):
                n = state.length[row] - 1
                for ours, theirs in zip(state.cache[:2], before.cache[:2], strict=True):
                    np.testing.assert_array_equal(ours[row, :n], theirs[row, :n])
        before = state
    assert before is not None
    assert before.stats.rounds[4] == 1
    assert before.stats.rounds.max() > 8
    assert frozen > 20


def test_rounds_of_a_finished_run_change_nothing() -> None:
    run = specjax.decode(start(max_new_tokens=7, eos_ids=()))
    before = support.copied(run.state)
    after = support.copied(specjax.decode(run, rounds=3).state)
    for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- rounds by hand ---


def test_a_draft_made_elsewhere_goes_through_advance() -> None:
    """``advance`` is a round without propose: for drafts that a host makes."""
    run = start(max_new_tokens=12, eos_ids=())
    step = jax.jit(advance, static_argnums=0)
    rng, state = np.random.default_rng(0), run.state
    for _ in range(30):
        length = np.asarray(state.length)
        draft = np.take_along_axis(np.asarray(OFTEN_WRONG), length[:, None] + np.arange(K), 1)
        counts = rng.integers(0, K + 1, len(PROMPTS)).astype(np.int32)  # may exceed the budget
        state = step(run.engine, run.params, run.request, state, Draft(draft, counts))
    assert np.all(state.done)
    out = specjax.finish(run._replace(state=state), max_new_tokens=12)
    assert out.tokens.tolist() == [truth[:12] for truth in TRUTH]


def test_what_lies_in_a_finished_row_s_draft_does_not_matter() -> None:
    run = specjax.decode(start(max_new_tokens=5, eos_ids=()))
    junk = Draft(jnp.full((9, K), VOCAB + 3, jnp.int32), jnp.full(9, K, jnp.int32))
    before = support.copied(run.state)
    after = jax.jit(advance, static_argnums=0)(run.engine, run.params, run.request, run.state, junk)
    np.testing.assert_array_equal(after.tokens, before.tokens)
    np.testing.assert_array_equal(after.length, before.length)
    np.testing.assert_array_equal(after.stats.drafted, before.stats.drafted)


def test_a_drafter_that_exceeds_its_limit_is_cut_at_the_budget() -> None:
    right = testing.oracle(K)

    def propose(params: Any, state: Any, context: Any, limit: Any) -> tuple:
        return right.propose(params, state, context, jnp.full_like(limit, K))

    greedy_drafter = right._replace(propose=propose)
    for budget in (1, 3, 6):
        done = specjax.decode(start(drafter=greedy_drafter, max_new_tokens=budget))
        assert done.state.stats.emitted.tolist() == [budget] * len(PROMPTS)
        assert not np.any(np.asarray(done.state.tokens)[8, 9 + budget :])


def test_ids_the_target_lacks_are_never_emitted() -> None:
    """F44: not from a drafter that proposes them, not from logits wider than the vocabulary."""
    narrow = TARGET._replace(vocab_size=VOCAB - 4)
    table = TABLE.at[:, -4:].set(50.0)  # the padding would win every time
    junk = jnp.asarray(np.random.default_rng(0).integers(8, VOCAB + 8, (2, SLOTS)), jnp.int32)
    for rule in (verify.token, verify.match, verify.greedy):
        out = specjax.sample(
            narrow,
            table,
            [[1, 2], [3]],
            drafter=testing.oracle(3),
            drafter_params=junk,
            verifier=rule,
            max_new_tokens=30,
            sampling=None if rule.greedy else Sampling(temperature=1.0),
            key=jax.random.key(0),
        )
        assert np.all(np.asarray(out.tokens) < VOCAB - 4), rule.name


# --- widths ---


def test_by_default_a_round_without_drafts_takes_one_token() -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("accelerators take one width")
    run = start(max_new_tokens=4)
    assert run.engine.widths == (1, 5)
    assert start(drafter=None, drafter_params=None, max_new_tokens=4).engine.widths == (1,)


def test_by_default_drafts_of_one_token_have_a_width_where_drafts_vary() -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("accelerators take one width")
    past = past_outputs(8)
    run = start(max_new_tokens=4, drafter=suffix(7), drafter_params=past)
    assert run.engine.widths == (1, 2, 5, 8)
    run = start(max_new_tokens=4, drafter=ngram(7), drafter_params=None)
    assert run.engine.widths == (1, 5, 8)
    in_turn = first_of(ngram(2), suffix(3))
    run = start(max_new_tokens=4, drafter=in_turn, drafter_params=(None, past))
    assert run.engine.widths == (1, 2, 4)
    for min_prob, widths in ((0.0, (1, 4)), (0.5, (1, 2, 4))):
        drafter = draft_model(testing.scripted_target(VOCAB), 3, min_prob=min_prob)
        assert start(max_new_tokens=4, drafter=drafter).engine.widths == widths


def test_by_default_a_round_without_drafts_takes_one_token_for_one_node_too() -> None:
    run = start(max_new_tokens=4, drafter=testing.oracle(1))
    assert run.engine.widths == (1, 2)
    assert start(max_new_tokens=4, drafter=testing.oracle(9)).engine.widths == (1, 5, 10)


# --- logits that are no distribution ---


def bad_table(prompt: list[int], value: float, whole: bool) -> jax.Array:
    """The table with what follows a prefix broken (and the rows apart from it in use nowhere)."""
    row = np.flatnonzero((np.asarray(TABLE) == support.logits_after(TABLE, prompt)).all(1))[0]
    table = np.array(TABLE)
    table[row, slice(None) if whole else 3] = value
    return jnp.asarray(table)


BAD = {"nan": (np.nan, False), "+inf": (np.inf, False), "all -inf": (-np.inf, True)}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_stops_raises_and_spares_its_neighbours(kind: str) -> None:
    """F33: in the third token's logits of one row; not a normal-looking token."""
    value, whole = BAD[kind]
    table = bad_table(PROMPTS[3] + TRUTH[3][:2], value, whole)
    drafts = ALWAYS_RIGHT
    run = specjax.start(
        TARGET, table, PROMPTS, drafter=testing.oracle(K), drafter_params=drafts,
        max_new_tokens=8, max_length=SLOTS,
    )  # fmt: skip
    run = specjax.decode(run)
    reasons = np.asarray(run.state.reason)
    assert reasons[3] == 3
    assert specjax.FinishReason(3).name == "BAD_LOGITS"
    for row, prompt in enumerate(PROMPTS):
        if row != 3:
            got = np.asarray(run.state.tokens)[row, len(prompt) : len(prompt) + 8]
            assert got.tolist() == TRUTH[row][:8]
    with pytest.raises(ValueError, match=r"NaN, \+inf or nothing finite in row 3 after .* tokens"):
        specjax.finish(run, max_new_tokens=8)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sample_and_stream_raise_on_nan_parameters(temperature: float) -> None:
    arguments: dict[str, Any] = dict(
        max_new_tokens=8,
        max_length=SLOTS,
        drafter=testing.oracle(K),
        drafter_params=ALWAYS_RIGHT,
        sampling=Sampling(temperature=temperature),
        key=jax.random.key(0),
    )
    broken = jnp.full_like(TABLE, jnp.nan)
    with pytest.raises(ValueError, match="row 0 after 1 tokens; check its parameters and dtype"):
        specjax.sample(TARGET, broken, PROMPTS, **arguments)
    with pytest.raises(ValueError, match="row 0 after 1 tokens"):
        list(specjax.stream(TARGET, broken, PROMPTS, **arguments))


def test_minus_infinity_is_legal_padding() -> None:
    table = TABLE.at[:, ::2].set(-jnp.inf)
    for sampling in (None, Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.05)):
        out = specjax.sample(
            TARGET,
            table,
            PROMPTS,
            drafter=testing.oracle(K),
            drafter_params=ALWAYS_RIGHT,
            max_new_tokens=8,
            max_length=SLOTS,
            sampling=sampling,
            key=jax.random.key(0),
        )
        assert np.all(np.asarray(out.tokens) % 2 == 1)
        assert out.finish_reason.tolist() == [LENGTH] * len(PROMPTS)


# --- the compiled program ---


MODEL = ModelConfig(
    vocab_size=32, width=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16, ffn_width=16
)


def program_of_a_transformer(rule: verify.Verifier, **options: Any) -> tuple[Any, Any]:
    """The compiled decode loop of a small transformer that drafts with another one, and its run."""
    target = transformer_target(MODEL)
    params = init_params(MODEL, jax.random.key(0))
    run = specjax.start(
        target._replace(**options),
        params,
        [[1, 2, 3], [4], [5, 6]],
        drafter=draft_model(target, 4),
        drafter_params=params,
        max_new_tokens=100,
        max_length=4096,
        widths=(1, 3, 5),
        verifier=rule,
        sampling=None if rule.greedy else Sampling(temperature=1.0),
        key=jax.random.key(0),
    )
    decode = loop.decode_state
    lowered = decode.lower(run.engine, run.params, run.request, run.state, jnp.int32(100))
    return lowered.compile(), run


def cache_copies(text: str, shape: tuple[int, ...]) -> list[str]:
    """The instructions of a compiled program that copy a buffer of this shape."""
    buffer = rf"f32\[{','.join(map(str, shape))}\]"
    assert re.search(buffer, text), "the buffers must be found by their shape"
    return [
        line for line in text.splitlines() if re.search(rf"= {buffer}\S* copy(-start)?\(", line)
    ]


def test_the_compiled_loop_copies_no_cache() -> None:
    """With several widths and a drafter that has a cache of its own; nor does it hold a second one."""
    program, run = program_of_a_transformer(verify.token)
    buffer = run.state.cache.keys[0]
    assert not cache_copies(program.as_text(), buffer.shape)
    assert program.memory_analysis().temp_size_in_bytes < buffer.nbytes


def test_a_branch_around_a_pass_copies_caches() -> None:
    """What widths by ``lax.switch`` would do: the count can be other than 0."""
    inner = transformer_target(MODEL).apply

    def apply(params: Any, tokens: jax.Array, cache: Any, **options: Any) -> tuple:
        return jax.lax.cond(
            jnp.sum(tokens) > 50,
            lambda cache: inner(params, tokens, cache, **options),
            lambda cache: inner(params, tokens[:, ::-1], cache, **options),
            cache,
        )

    program, run = program_of_a_transformer(verify.greedy, apply=apply)
    assert cache_copies(program.as_text(), run.state.cache.keys[0].shape)
