"""A draft model must guess what it would guess without a cache: then acceptance is what it can be."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, policies, stats, testing
from specjax.drafters import check_same_tokenizer, draft_model
from tests import support

VOCAB, BUDGET = 16, 25
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
PROMPTS = [[int(i * 5 + n) % VOCAB for i in range(n)] for n in (1, 2, 5, 9)]


def corrupted(seed: int) -> jax.Array:
    """The target's table with another best id in a fifth of its rows."""
    wrong = np.random.default_rng(seed).random((len(TABLE), 1)) < 0.2
    return jnp.where(wrong, jnp.roll(TABLE, 1, 1), TABLE)


@pytest.mark.parametrize("k", range(1, 9))
def test_a_copy_of_the_target_is_always_accepted(k: int) -> None:
    """F14: 100.0%, and when rejections are forced in between, just those drafts fail.

    The expected rounds come from a simulation that has no cache to get wrong: one hole, one stale
    or one missing entry, and some draft token differs.
    """
    greedy = partial(
        specjax.sample,
        TARGET,
        TABLE,
        PROMPTS,
        drafter=draft_model(TARGET, k),
        max_new_tokens=BUDGET,
        widths=(k + 1,),
    )
    out = greedy(drafter_params=TABLE)
    assert stats.acceptance_rate(out.stats) == 1.0
    assert out.stats.rounds.tolist() == [-(-BUDGET // (k + 1))] * len(PROMPTS)

    forced = corrupted(k)
    out = greedy(drafter_params=forced)
    refusals, counts = 0, set()
    for row, prompt in enumerate(PROMPTS):
        assert out.tokens[row].tolist() == support.plain_greedy(TABLE, prompt, BUDGET)
        rounds = support.greedy_rounds(TABLE, forced, prompt, k, BUDGET)
        assert out.stats.rounds[row] == len(rounds)
        assert out.stats.drafted[row] == sum(r.drafted for r in rounds)
        accepted = [sum(r.accepted > i for r in rounds) for i in range(k)]
        assert out.stats.accepted[row].tolist() == accepted
        judged = [sum(min(r.accepted + 1, r.drafted) > i for r in rounds) for i in range(k)]
        assert out.stats.judged[row].tolist() == judged
        refusals += sum(r.accepted < r.drafted for r in rounds)
        counts |= {r.accepted for r in rounds}
    assert refusals > 5
    assert counts >= set(range(min(k, 4) + 1))


@pytest.mark.parametrize(
    ("silent", "room"), [(1, 99), (2, 99), (6, 99), (17, 99), (40, 99), (6, 0)]
)
def test_after_a_long_silence_a_copy_is_accepted_all_the_same(silent: int, room: int) -> None:
    """It reads what it has missed, many tokens a pass: F14 again, and few passes for it.

    Unless the cache has no room for so many, used or not.
    """
    passes: list[int] = []

    def apply(params: jax.Array, tokens: jax.Array, cache: Any, **how: Any) -> Any:
        jax.debug.callback(lambda tokens=tokens.shape[1]: passes.append(tokens))
        return TARGET.apply(params, tokens, cache, **how)

    def choose(costs: None, rounds: jax.Array, context: Any) -> jax.Array:
        return jnp.where(rounds < silent, 0, 3)[:, None]

    policy = policies.Policy(
        lambda costs, batch, *_: jnp.zeros([batch], jnp.int32), choose,
        lambda costs, rounds, outcome: rounds + 1, "late",
    )  # fmt: skip
    out = specjax.sample(
        TARGET, TABLE, PROMPTS, max_new_tokens=silent + 5,
        max_length=len(PROMPTS[-1]) + silent + 5 + 3 + room,
        drafter=specjax.adaptive(draft_model(TARGET._replace(apply=apply), 3), policy=policy),
        drafter_params=specjax.AdaptiveParams((TABLE,)),
    )  # fmt: skip
    jax.effects_barrier()
    assert stats.acceptance_rate(out.stats) == 1.0
    assert out.stats.rounds.tolist() == [silent + 2] * len(PROMPTS)  # 3 + 1 tokens, and one
    # Unseen are the pending token and those of the silent rounds.
    wide, rest = 0, silent + 1
    while rest > 2 and room:
        wide, rest = wide + 1, max(rest - 16, 0)
    assert passes.count(16) == wide and passes.count(2) == -(-rest // 2)


@pytest.mark.parametrize(
    "dtype",
    [
        jnp.float32,
        jnp.bfloat16,
    ],
)
def test_a_copy_is_accepted_in_sampling_too(dtype: jnp.dtype) -> None:
    """F2: p and q go through one warp in float32; equal laws never reject."""
    out = specjax.sample(
        TARGET,
        TABLE.astype(dtype),
        PROMPTS,
        drafter=draft_model(TARGET, 3),
        drafter_params=TABLE.astype(dtype),
        max_new_tokens=BUDGET,
        sampling=Sampling(temperature=0.9, top_k=9, top_p=0.97),
        key=jax.random.key(0),
    )
    assert stats.acceptance_rate(out.stats) == 1.0


def test_acceptance_in_sampling_is_one_minus_the_distance(seed: int) -> None:
    """Independent of context, k = 1: the rate is the sum of min(p, q)."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(VOCAB), 2)
    tables = [jnp.asarray(np.tile(np.log(law), (7, 1)), jnp.float32) for law in (p, q)]
    out = specjax.sample(
        TARGET,
        tables[0],
        [[1]] * 500,
        drafter=draft_model(TARGET, 1),
        drafter_params=tables[1],
        max_new_tokens=20,
        sampling=Sampling(temperature=1.0),
        key=jax.random.key(seed),
    )
    judged = int(out.stats.judged.sum())
    want = np.minimum(p, q).sum()
    assert abs(stats.acceptance_rate(out.stats) - want) < 5 * (0.25 / judged) ** 0.5


@pytest.mark.parametrize("vocab", [12, 20])
def test_the_padded_vocabularies_may_differ(vocab: int) -> None:
    """F44: ids the drafter lacks have q = 0, ids the target lacks are never drafted."""
    law = np.random.default_rng(0).normal(size=20) * 0.5
    law[16:] = 6.0  # what the target does not know would be drafted nearly always
    law -= 9.0  # and so would what the drafter lacks, if it were filled with zeros
    tables = [jnp.asarray(np.tile(law[:n], (7, 1)), jnp.float32) for n in (16, vocab)]
    out = specjax.sample(
        TARGET,
        tables[0],
        [[1]] * 2000,
        drafter=draft_model(testing.scripted_target(vocab), 3),
        drafter_params=tables[1],
        max_new_tokens=10,
        sampling=Sampling(temperature=1.0),
        key=jax.random.key(1),
    )
    counts = np.bincount(np.asarray(out.tokens).reshape(-1), minlength=20)
    assert not np.any(counts[16:])
    p = support.warp(law[:16])
    assert support.p_value_of_counts(counts[:16], p) > support.SIGNIFICANCE
    known = min(vocab, 16)
    want = np.minimum(p[:known], support.warp(law[:known])).sum()
    assert stats.acceptance_rate(out.stats) == pytest.approx(want, abs=0.02)


def test_a_greedy_draft_model_ignores_ids_the_target_lacks() -> None:
    model = testing.scripted_target(20)
    table = jnp.concatenate([TABLE, jnp.full((len(TABLE), 4), 99.0)], 1)
    out = specjax.sample(
        TARGET,
        TABLE,
        PROMPTS,
        drafter=draft_model(model, 3),
        drafter_params=table,
        max_new_tokens=9,
    )
    assert stats.acceptance_rate(out.stats) == 1.0


def test_a_drafter_of_nan_logits_costs_speed_not_exactness() -> None:
    out = specjax.sample(
        TARGET,
        TABLE,
        PROMPTS,
        drafter=draft_model(TARGET, 3),
        drafter_params=jnp.full_like(TABLE, jnp.nan),
        max_new_tokens=9,
        sampling=Sampling(temperature=[0.0, 0.7, 0.0, 0.7]),
        key=jax.random.key(0),
    )
    assert out.lengths.tolist() == [9] * len(PROMPTS)
    for row in (0, 2):
        assert out.tokens[row].tolist() == support.plain_greedy(TABLE, PROMPTS[row], 9)


def test_equal_arguments_give_the_same_drafter() -> None:
    assert draft_model(TARGET, 3) is draft_model(TARGET, 3)
    assert draft_model(TARGET, 3) is not draft_model(TARGET, 2)


@pytest.mark.parametrize("k", [0, -1])
def test_bad_k_is_named(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k}; it must be at least 1.*drafter=None"):
        draft_model(TARGET, k)


def test_the_same_tokenizer_passes() -> None:
    check_same_tokenizer({"a": 0, "b": 1}, {"b": 1, "a": 0})
    check_same_tokenizer({}, {})


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({"a": 0, "c": 1, "b": 2}, "first at id 1: 'c' against 'b'"),
        ({"b": 0, "a": 1, "c": 2}, "first at id 0: 'b' against 'a'"),
        ({"a": 0, "b": 1}, "first at id 2: None against 'c'"),
        ({"a": 0, "b": 1, "c": 2, "d": 3}, "first at id 3: 'd' against None"),
        ({"a": 0, "b": 1, "c": 5}, "first at id 2: None against 'c'"),
    ],
)
def test_another_tokenizer_is_refused(theirs: dict, words: str) -> None:
    """F44: the first id that differs is named, and the fix."""
    with pytest.raises(ValueError, match=f"{words}; use a drafter of the same tokenizer"):
        check_same_tokenizer({"a": 0, "b": 1, "c": 2}, theirs)
