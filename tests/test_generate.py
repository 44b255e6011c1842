"""However the batch is refilled, each prompt's answer is the one it gets alone."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import FinishReason, Sampling, generate, testing, verify
from specjax.drafters import (
    PastOutputs,
    draft_model,
    first_of,
    ngram,
    past_outputs,
    remember,
    suffix,
)
from specjax.generate import Prompt
from tests import support
from tests.drafters import test_eagle

VOCAB, BUDGET, SLOTS, EOS = 16, 18, 128, 3
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
CLOSE = jnp.where(jnp.arange(997)[:, None] % 4 == 0, jnp.roll(TABLE, 1, 1), TABLE)
KEY = jax.random.key(7)
# Lengths 1 to 30, and one of two prefill chunks; answers end early at an EOS or not.
PROMPTS = [[(i * 7 + n) % VOCAB for i in range(1 + 5 * n % 30)] for n in range(23)]
PROMPTS[9] = [(i * i + 3) % VOCAB for i in range(100)]

many = partial(
    specjax.generate_many,
    TARGET,
    TABLE,
    max_new_tokens=BUDGET,
    max_length=SLOTS,
    batch=4,
    eos_ids=(EOS,),
)


def answers(finished: Iterator[generate.Finished]) -> dict[int, list[int]]:
    out = {}
    for one in finished:
        assert one.number not in out, "each prompt once"
        out[one.number] = one.tokens
    return out


def alone(index: int, prompt: list[int], **how: Any) -> tuple[list[int], str]:
    """What ``sample`` gives for the prompt's own key, in a batch of one."""
    if "sampling" not in how:  # greedy: in numpy
        tokens = support.plain_greedy(TABLE, prompt, BUDGET, eos=[EOS])
        return tokens, FinishReason.EOS if tokens[-1] == EOS else FinishReason.LENGTH
    if how.get("verifier") in (verify.match, verify.coupled):
        # The same path for every drafter: that of plain sampling.
        how = dict(sampling=SAMPLED, verifier=verify.match)
    key = jax.random.fold_in(KEY, index)[None]
    out = specjax.sample(
        TARGET, TABLE, [prompt], max_new_tokens=BUDGET, max_length=SLOTS, eos_ids=(EOS,), key=key,
        **how,
    )  # fmt: skip
    tokens = out.tokens[0, : int(out.lengths[0])].tolist()
    return tokens, FinishReason(int(out.finish_reason[0]))


SAMPLED = Sampling(temperature=1.0)
NGRAM: dict[str, Any] = dict(drafter=ngram(3), widths=(4,))
MODEL: dict[str, Any] = dict(drafter=draft_model(TARGET, 3), drafter_params=CLOSE, widths=(4,))


@pytest.mark.parametrize(
    ("refill", "how"),
    [
        pytest.param(3, {}, id="plain greedy"),
        pytest.param(1, dict(sampling=SAMPLED), id="plain block"),
        pytest.param(1, NGRAM, id="ngram greedy"),
        pytest.param(3, NGRAM | dict(sampling=SAMPLED, verifier=verify.match), id="ngram match"),
        pytest.param(3, MODEL | dict(sampling=SAMPLED), id="model block"),
        pytest.param(1, MODEL | dict(sampling=SAMPLED, verifier=verify.coupled), id="coupled"),
    ],
)
def test_an_answer_is_the_one_the_prompt_gets_alone(refill: int, how: dict[str, Any]) -> None:
    finished = list(many(iter(PROMPTS), key=KEY, refill=refill, **how))
    assert sorted(one.number for one in finished) == list(range(len(PROMPTS)))
    reasons = set()
    for one in finished:
        tokens, reason = alone(one.number, PROMPTS[one.number], **how)
        assert (one.tokens, one.finish_reason) == (tokens, reason), one.number
        reasons.add(reason)
        if "drafter" in how:
            # The last round's drafts may be accepted and then cut at an EOS or the budget.
            assert len(one.tokens) <= one.accepted + one.rounds
            assert one.accepted <= one.drafted
        else:
            assert one.rounds == len(one.tokens) and one.drafted == 0
    assert reasons == {FinishReason.EOS, FinishReason.LENGTH}


def test_a_refilled_head_drafts_as_if_alone() -> None:
    """EAGLE's state comes from the target's features: a row that kept an old one accepts less."""
    target, params = test_eagle.TARGET, test_eagle.weights()
    how: dict[str, Any] = dict(
        drafter=test_eagle.eagle(test_eagle.CONFIGS["3"], 3),
        drafter_params=test_eagle.head_of("3"),
        max_new_tokens=12,
        max_length=32,
        widths=(4,),
    )
    prompts = [[(a + b * 5) % 24 for b in range(1 + a % 4)] for a in range(12)]
    accepted = 0
    for one in specjax.generate_many(target, params, prompts, batch=3, **how):
        out = specjax.sample(target, params, [prompts[one.number]], **how)
        assert one.tokens == out.tokens[0].tolist()
        assert (one.rounds, one.accepted) == (out.stats.rounds[0], out.stats.accepted.sum())
        accepted += one.accepted
    assert accepted > 0, "nothing was accepted: nothing was tested"


def test_a_long_answer_holds_nobody_up() -> None:
    """One row goes through all the other prompts while the first one decodes."""
    eos = support.plain_greedy(TABLE, [1, 2], 1)[0]
    lasting = next(
        p
        for p in ([a, b] for a in range(VOCAB) for b in range(VOCAB))
        if eos not in support.plain_greedy(TABLE, p, 30)
    )
    prompts = [lasting] + [[1, 2]] * 12
    finished = list(many(prompts, max_new_tokens=30, eos_ids=(eos,), batch=2))
    assert [one.number for one in finished] == [*range(1, 13), 0]
    assert finished[-1].rounds == 30 and all(one.rounds == 1 for one in finished[:-1])


def test_the_prompts_are_taken_as_rows_become_free() -> None:
    taken = 0

    def endless() -> Iterator[list[int]]:
        nonlocal taken
        for taken in itertools.count(1):
            yield PROMPTS[taken % len(PROMPTS)]

    results = many(endless(), rounds=2)
    assert taken == 0, "nothing before the first answer is asked for"
    seen = [next(results) for _ in range(30)]
    assert taken <= 30 + 2 * 4
    assert len({one.number for one in seen}) == 30
    results.close()


def test_going_on_with_a_stopped_run() -> None:
    """Numbered prompts give their answers whatever else is in the run, and in which order."""
    how = dict(sampling=SAMPLED, key=KEY)
    whole = answers(many(PROMPTS, **how))
    rest = [Prompt(index, PROMPTS[index]) for index in (20, 3, 9, 11)]
    assert answers(many(reversed(rest), **how)) == {p.number: whole[p.number] for p in rest}
    assert answers(many(PROMPTS, batch=9, rounds=1, **how)) == whole
    other = answers(many(PROMPTS, sampling=SAMPLED, key=jax.random.key(8)))
    assert other != whole
    same = answers(many([PROMPTS[4]] * 8, **how))
    assert len({tuple(tokens) for tokens in same.values()}) > 1, "each number has noise of its own"


def test_one_compile_for_all_refills() -> None:
    target = TARGET._replace(name="counted")  # programs of its own
    before = generate._refill._cache_size(), generate.decode_state._cache_size()
    for budget, rounds, key in ((5, 3, KEY), (9, 7, jax.random.key(1))):
        list(
            specjax.generate_many(
                target, TABLE, PROMPTS, max_new_tokens=budget, max_length=SLOTS, batch=4,
                rounds=rounds, sampling=SAMPLED, key=key, refill=3,
            )
        )  # fmt: skip
    after = generate._refill._cache_size(), generate.decode_state._cache_size()
    assert tuple(np.subtract(after, before)) == (1, 1)


# --- a drafter that learns from the answers ---

LEARNING: dict[str, Any] = dict(
    drafter=suffix(6, n_min=2, growth=2), drafter_params=past_outputs(64), widths=(7,)
)


@pytest.mark.parametrize(
    "how", [{}, dict(sampling=SAMPLED, verifier=verify.match)], ids=["greedy", "match"]
)
def test_answers_stay_when_the_drafter_learns(how: dict[str, Any]) -> None:
    """Each prompt twice, the second time when its answer is known."""
    learned, given = [], []

    def learn(past: PastOutputs, tokens: list[int]) -> PastOutputs:
        learned.append(list(tokens))
        return remember(past, tokens)

    rounds = {}
    prompts = [Prompt(n // 2, PROMPTS[n // 2]) for n in range(2 * len(PROMPTS))]
    for name, more in {"no": {}, "yes": dict(learn=learn)}.items():
        finished = list(many(iter(prompts), key=KEY, batch=1, **LEARNING, **how, **more))
        rounds[name] = sum(one.rounds for one in finished)
        for one in finished:
            assert one.tokens == alone(one.number, PROMPTS[one.number], **how)[0]
        given = [one.tokens for one in finished]
    assert learned == given, "every answer, in the order in which they are given"
    assert rounds["yes"] < 0.75 * rounds["no"]


def test_what_was_learned_holds_at_once_and_is_bounded() -> None:
    """The drafter's parameters are those that ``learn`` made of all answers so far."""
    seen: list[Any] = []

    def learn(params: tuple, tokens: list[int]) -> tuple:
        seen.append((params[0], tokens))
        return remember(params[0], tokens), params[1]

    drafter = first_of(suffix(3), draft_model(TARGET, 3))
    start = past_outputs(40)
    list(many(PROMPTS, drafter=drafter, drafter_params=(start, CLOSE), learn=learn))
    past = start
    for held, tokens in seen:
        np.testing.assert_array_equal(held.tokens, past.tokens)
        past = remember(past, tokens)
    assert len(seen) == len(PROMPTS) and past.tokens.shape == (40,)
    assert not np.any(start.tokens != -1), "the caller's are left alone"


def test_learning_does_not_recompile() -> None:
    target = TARGET._replace(name="counted, learning")
    before = generate._refill._cache_size(), generate.decode_state._cache_size()
    many_more = partial(
        specjax.generate_many, target, TABLE, PROMPTS, max_new_tokens=9, max_length=SLOTS,
        batch=4, refill=3, sampling=SAMPLED, key=KEY, learn=remember, **LEARNING,
    )  # fmt: skip
    assert len(list(many_more())) == len(
        list(many_more(drafter_params=remember(past_outputs(64), [1])))
    )
    after = generate._refill._cache_size(), generate.decode_state._cache_size()
    assert tuple(np.subtract(after, before)) == (1, 1)


def test_learning_keeps_the_law(seed: int) -> None:
    """The joint of three tokens by block verification, of many prompts that are all the same."""
    vocab, count, prompt = 3, 3, [0, 1]
    target, table = testing.scripted_target(vocab), testing.scripted_table(1, vocab, scale=1.0)
    finished = specjax.generate_many(
        target, table, [prompt] * 6000, max_new_tokens=count, max_length=16, batch=500,
        refill=500, sampling=SAMPLED, key=jax.random.key(seed), drafter=suffix(2, growth=None),
        drafter_params=past_outputs(30), learn=remember,
    )  # fmt: skip
    finished = list(finished)
    assert 0.2 < sum(one.accepted for one in finished) / sum(one.drafted for one in finished) < 0.8
    law = support.joint_law(table, prompt, count)
    assert support.p_value([one.tokens for one in finished], law, vocab) > support.SIGNIFICANCE


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (past_outputs(65), r"learn made int32 \(65,\) of int32 \(64,\) in drafter_params; shapes"),
        (PastOutputs(jnp.zeros([64])), r"learn made float32 \(64,\) of int32 \(64,\)"),
        (None, r"learn made PyTreeDef\(None\) of drafter_params .*their structure must stay"),
    ],
)
def test_what_learn_must_keep(made: Any, message: str) -> None:
    answers = many(PROMPTS, batch=1, **LEARNING, learn=lambda past, tokens: made)
    assert next(answers).number == 0, "what is finished comes before the error"
    with pytest.raises(ValueError, match=message):
        next(answers)


def test_no_prompts() -> None:
    assert list(many([])) == []


# --- bad input ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch=0; it must be at least 1"),
        ({"rounds": 1.5}, "rounds=1.5; it must be an int"),
        ({"refill": -1}, "refill=-1; it must be at least 1"),
        ({"batch": True}, "batch=True; it must be an int"),
        ({"max_length": None}, "max_length=None; it must be an int here"),
        ({"max_length": 128.0}, "max_length=128.0; it must be an int"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_length": 18}, "max_length=18 can't hold 1 prompt tokens, 18 new tokens"),
        ({"eos_ids": (99,)}, "eos_ids holds 99"),
        ({"sampling": SAMPLED}, "key=None with a temperature above 0"),
        ({"sampling": Sampling(temperature=[1.0] * 4), "key": KEY}, "temperature has shape"),
        ({"sampling": SAMPLED, "key": jax.random.split(KEY, 4)}, "it must be one key"),
        ({"sampling": SAMPLED, "key": 3}, "key=3; it must be a typed key"),
        ({"learn": remember}, "learn without a drafter; pass drafter="),
        ({"learn": 3, "drafter": ngram(2)}, "learn=3; it must be a function of drafter_params"),
        ({"drafter": testing.oracle(2)}, r"the drafter has an array of shape \(\) in its state"),
    ],
)
def test_bad_arguments_are_named_at_once(changes: dict[str, Any], message: str) -> None:
    if changes.get("drafter") is testing.oracle(2):
        changes = changes | {"drafter_params": jnp.zeros([4, SLOTS], jnp.int32)}
    with pytest.raises(ValueError, match=message):
        many([[1]], **changes)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "prompt 2 has length 0"),
        ([99], "prompt 2 holds id 99"),
        ([1] * 111, "prompt 2: max_length=128 can't hold 111 prompt tokens, 18 new tokens"),
        (5, "prompts holds 5"),
        (Prompt(-1, [1]), "number -1"),
        (Prompt(2**32, [1]), "number 4294967296"),
        (Prompt(0.5, [1]), "number 0.5; it must be an int"),
        (Prompt("1", [1]), "number '1'; it must be an int"),
    ],
)
def test_a_bad_prompt_is_named_when_it_comes(bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(many([[1], [2], bad]))
    assert len(list(many([[1], [2], [1] * 110]))) == 3


def test_bad_logits_are_named() -> None:
    bad = TABLE.at[:, 5].set(jnp.where(jnp.arange(997) % 40 == 0, jnp.nan, TABLE[:, 5]))
    with pytest.raises(ValueError, match=r"NaN, .* in prompt \d+ after \d+ new tokens"):
        list(specjax.generate_many(TARGET, bad, PROMPTS, max_new_tokens=18, max_length=SLOTS))


def test_a_numpy_batch_and_length() -> None:
    assert len(list(many([[1], [2]], batch=np.int64(2), max_length=np.int32(SLOTS)))) == 2


@pytest.mark.parametrize("bad", [[99], OSError("the disk is gone")])
def test_what_is_finished_comes_before_the_error(bad: Any) -> None:
    def prompts() -> Iterator[list[int]]:
        yield from PROMPTS[:2]
        if isinstance(bad, Exception):
            raise bad
        yield bad

    seen = []
    with pytest.raises(ValueError if isinstance(bad, list) else OSError, match=r"99|the disk"):
        for one in many(prompts(), batch=1, refill=1):
            seen.append(one.number)
    assert seen == [0, 1]


def test_bad_logits_leave_the_good_rows() -> None:
    """Rows that end in the same look: two are answered, one breaks between them."""
    bad = TABLE.at[:].set(jnp.where(jnp.arange(997)[:, None] % 40 == 0, jnp.nan, TABLE))
    good, broken = [], []
    for number, prompt in enumerate(PROMPTS):
        try:
            [one] = many_of(bad, [prompt])
            good.append((prompt, one.tokens))
        except ValueError:
            broken.append(PROMPTS[number])
    assert len(good) > 1 and broken
    seen = []
    with pytest.raises(ValueError, match="in prompt 1 after"):
        for one in many_of(bad, [good[0][0], broken[0], good[1][0]]):
            seen.append((one.number, one.tokens))
    assert sorted(seen) == [(0, good[0][1]), (2, good[1][1])]


def many_of(table: jax.Array, prompts: list[list[int]]) -> Iterator[generate.Finished]:
    # refill=3: a look at the rows comes when all of them are finished.
    return specjax.generate_many(
        TARGET, table, prompts, max_new_tokens=6, max_length=SLOTS, batch=3, refill=3
    )
