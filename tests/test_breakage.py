"""What a tester once broke: drafters, targets and callers that do legal but strange things."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import FinishReason, Sampling, testing, verify
from specjax.draft import Draft, Drafter
from specjax.drafters import draft_model
from specjax.loop import cache_dtype
from tests import support

VOCAB, ROWS = 8, 4000
TARGET, DRAFT = testing.scripted_target(VOCAB), testing.scripted_target(VOCAB, "draft")
TABLE, OTHER = testing.scripted_table(0, VOCAB), testing.scripted_table(5, VOCAB)
SAMPLED = Sampling(temperature=1.0)


def first_tokens_p_value(drafter: Drafter, params: Any, rule: str) -> float:
    out = specjax.sample(
        TARGET, TABLE, np.full((ROWS, 1), 3), drafter=drafter, drafter_params=params,
        max_new_tokens=4, sampling=SAMPLED, verifier=verify.BY_NAME[rule], key=jax.random.key(1),
    )  # fmt: skip
    law = np.asarray(jax.nn.softmax(testing.scripted_logits(TABLE, [3])), np.float64)
    return support.p_value_of_counts(np.bincount(out.tokens[:, 0], minlength=VOCAB), law)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_drafter_without_a_distribution_is_refused_not_believed(rule: str, value: float) -> None:
    """Rows of NaN or +inf in a draft model's logits (an id it lacks, an overflow)."""
    broken = np.array(OTHER)
    broken[::2, 2] = value
    drafter = draft_model(DRAFT, 3)
    p = first_tokens_p_value(drafter, jnp.asarray(broken), rule)
    assert p > support.SIGNIFICANCE


def drafter_by_ids(ids: list[int], k: int = 2) -> Drafter:
    """Draws k tokens from equal logits over some ids."""

    def propose(params: Any, state: Any, context: Any, limit: jax.Array) -> tuple:
        del params
        batch, array = context.tokens.shape[0], jnp.array(ids, jnp.int32)
        logits = jnp.zeros([batch, len(ids)], jnp.float32)
        drawn = [context.draw(logits, node + 1, array) for node in range(k)]
        probs = jnp.stack([q for _, q in drawn] + [jnp.zeros([batch, VOCAB])], 1)
        tokens = jnp.stack([token for token, _ in drawn], 1)
        return Draft(tokens, limit, probs), state, context.cache

    return Drafter(lambda *_: (), propose, lambda params, state, *_: state, num_nodes=k)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_an_id_named_twice_has_both_shares(rule: str) -> None:
    p = first_tokens_p_value(drafter_by_ids([1, 1, 4, 5]), None, rule)
    assert p > support.SIGNIFICANCE


def test_a_draft_longer_than_it_can_be_is_cut() -> None:
    def propose(params: Any, state: Any, context: Any, limit: jax.Array) -> tuple:
        del params
        tokens = jnp.zeros([context.tokens.shape[0], 2], jnp.int32)
        return Draft(tokens, limit + 5), state, context.cache

    boastful = Drafter(lambda *_: (), propose, lambda params, state, *_: state, num_nodes=2)
    arguments = dict(max_new_tokens=6)
    plain = specjax.sample(TARGET, TABLE, [[3]], **arguments)
    for widths in ((3,), (1, 3), (1, 2, 3)):
        ours = specjax.sample(TARGET, TABLE, [[3]], drafter=boastful, widths=widths, **arguments)
        np.testing.assert_array_equal(ours.tokens, plain.tokens)


@pytest.mark.parametrize("value", [-np.inf, np.nan])
@pytest.mark.parametrize("rule", [None, "match", "token", "block"])
def test_what_follows_an_eos_need_not_be_a_distribution(value: float, rule: str | None) -> None:
    """A grammar allows nothing after the end; drafts that go on past it must not fail the run."""
    end = 7

    def apply(params: Any, tokens: jax.Array, cache: Any, **options: Any) -> tuple:
        logits, features, cache = TARGET.apply(params, tokens, cache, **options)
        return jnp.where((tokens == end)[:, :, None], value, logits), features, cache

    dead = TARGET._replace(apply=apply, name="dead")
    how = (
        dict(sampling=SAMPLED, verifier=verify.BY_NAME[rule], key=jax.random.key(0)) if rule else {}
    )
    prompts = [[3], [1, 2], [5], [6, 1, 1], [2], [4]]
    out = specjax.sample(
        dead, TABLE, prompts, drafter=draft_model(TARGET, 3), drafter_params=TABLE,
        max_new_tokens=20, eos_ids=(end,), **how,
    )  # fmt: skip
    assert FinishReason.EOS in out.finish_reason.tolist(), "no row got to its end"
    with pytest.raises(ValueError, match="nothing finite"):  # without it, the run is broken
        specjax.sample(
            dead, TABLE, prompts, drafter=draft_model(TARGET, 3), drafter_params=TABLE,
            max_new_tokens=20, **how,
        )  # fmt: skip


def test_plain_sampling_without_jit() -> None:
    arguments = dict(max_new_tokens=2, sampling=SAMPLED, key=jax.random.key(0))
    compiled = specjax.sample(TARGET, TABLE, [[3]], **arguments)
    with jax.disable_jit():
        eager = specjax.sample(TARGET, TABLE, [[3]], **arguments)
    np.testing.assert_array_equal(eager.tokens, compiled.tokens)


def test_the_cache_is_of_floating_point_whatever_the_weights_are() -> None:
    quantised = {"w": jnp.zeros([100], jnp.int8), "scale": jnp.zeros([2], jnp.bfloat16)}
    assert cache_dtype(quantised) == jnp.bfloat16
    assert cache_dtype({"table": jnp.zeros([4], jnp.int32)}) == jnp.float32
    assert cache_dtype({"w": jnp.zeros([9], jnp.float8_e4m3fn)}) == jnp.float32
    with pytest.raises(ValueError, match="dtype='int8'; it must be of floating point"):
        specjax.sample(TARGET, TABLE, [[3]], max_new_tokens=2, dtype="int8")


def test_lengths_past_the_ends_of_lists() -> None:
    with pytest.raises(ValueError, match=r"prompt_lengths\[1\] is 2, but prompt 1 has 1 ids"):
        specjax.sample(TARGET, TABLE, [[1, 2], [3]], prompt_lengths=[2, 2], max_new_tokens=4)


def test_a_top_k_past_32_bits_does_not_wrap() -> None:
    huge = Sampling(temperature=1.0, top_k=np.int64(2**32 + 1))  # 1, cast without a look
    with pytest.raises(ValueError, match="top_k=4294967297; it must be at least 1"):
        specjax.sample(TARGET, TABLE, [[3]], sampling=huge, max_new_tokens=2, key=jax.random.key(0))


def test_finish_with_fewer_tokens_than_there_are() -> None:
    run = specjax.decode(specjax.start(TARGET, TABLE, [[3]], max_new_tokens=5))
    out = specjax.finish(run, max_new_tokens=2)
    assert out.tokens.shape == (1, 2) and out.lengths.tolist() == [5], "what was emitted"


def test_a_draft_model_must_roll_back() -> None:
    with pytest.raises(ValueError, match="has no rollback"):
        draft_model(TARGET._replace(rollback=None, name="stuck"), 2)
