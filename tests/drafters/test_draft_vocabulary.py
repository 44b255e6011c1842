"""A draft model of few blocks and a draft vocabulary, in the loop: what it drafts, what comes out."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, verify
from specjax.drafters import DraftModelParams, draft_model, first_of, ngram
from specjax.models import students, transformer_target
from tests import support
from tests.drafters.test_eagle import IDS, MODEL, PROMPTS, TARGET, weights

K = 3
CONFIG = students.config_of(MODEL, (1,), len(IDS))
STUDENT = transformer_target(CONFIG)


@cache
def params_of() -> DraftModelParams:
    own = students.from_target(weights(), (1,))
    return DraftModelParams(students.assemble(CONFIG, own, weights(), IDS), jnp.asarray(IDS))


def sample(prompts: Any = PROMPTS, plain: bool = False, **arguments: Any) -> specjax.SampleOutput:
    ours = {} if plain else dict(drafter=draft_model(STUDENT, K), drafter_params=params_of())
    return specjax.sample(TARGET, weights(), prompts, **{"max_new_tokens": 12, **ours, **arguments})


def test_greedy_output_is_plain_decoding_s() -> None:
    prompts = [[(a + b * 5) % 24 for b in range(1 + a % 4)] for a in range(48)]
    ours = sample(prompts, eos_ids=(5,))
    np.testing.assert_array_equal(ours.tokens, sample(prompts, plain=True, eos_ids=(5,)).tokens)
    accepted, judged = int(ours.stats.accepted.sum()), int(ours.stats.judged.sum())
    assert 0 < accepted < judged, "all or nothing was accepted: nothing was tested"


def test_coupled_output_is_plain_decoding_s() -> None:
    """The draft vocabulary takes the target's noise by the target's ids."""
    same = dict(sampling=Sampling(temperature=1.0), verifier=verify.coupled, key=jax.random.key(3))
    ours = sample(**same)
    np.testing.assert_array_equal(ours.tokens, sample(plain=True, **same).tokens)
    assert int(ours.stats.accepted.sum()) > 0


def test_drafts_are_of_the_draft_vocabulary() -> None:
    """And what it drafts is what it would say without a cache."""
    run = specjax.start(
        TARGET, weights(), PROMPTS, drafter=draft_model(STUDENT, K), drafter_params=params_of(),
        max_new_tokens=12, max_length=24,
    )  # fmt: skip
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    assert set(np.unique(draft.tokens)) <= set(IDS.tolist())
    for prompt, drafted in zip(PROMPTS, np.asarray(draft.tokens), strict=True):
        text = list(prompt)
        for token in drafted:
            cache = STUDENT.init_cache(1, 16, jnp.float32)
            tokens = jnp.array([text], jnp.int32)
            logits = STUDENT.apply(params_of().model, tokens, cache)[0][0, -1]
            assert token == IDS[int(jnp.argmax(logits))]
            text.append(int(token))


@pytest.mark.parametrize("rule", [pytest.param("token", marks=pytest.mark.long), "block"])
def test_the_law_of_two_tokens_is_the_target_s(rule: str) -> None:
    """Chi-square on pairs through the loop; drafts from 18 of 24 tokens."""
    rows, prompt = 8192, [3, 8, 2]
    out = sample(
        np.tile(prompt, (rows, 1)), max_new_tokens=2, sampling=Sampling(temperature=0.8),
        verifier=verify.BY_NAME[rule], key=jax.random.key(11),
    )  # fmt: skip
    first, second = _law([prompt]), _law([[*prompt, token] for token in range(24)])
    counts = np.bincount(np.asarray(out.tokens) @ [24, 1], minlength=24 * 24)
    law = (first[0][:, None] * second).ravel()
    assert support.p_value_of_counts(counts, law) > support.SIGNIFICANCE


def _law(prompts: list[list[int]]) -> np.ndarray:
    tokens = jnp.array(prompts, jnp.int32)
    cache = TARGET.init_cache(len(prompts), 8, jnp.float32)
    logits = TARGET.apply(weights(), tokens, cache)[0][:, -1]
    return np.asarray(jax.nn.softmax(logits.astype(jnp.float32) / 0.8), np.float64)


def test_after_a_lookup_in_turn() -> None:
    """It catches up with what another drafter's draft added."""
    drafter = first_of(ngram(4, n_min=2), draft_model(STUDENT, K))
    ours = sample(drafter=drafter, drafter_params=(None, params_of()))
    np.testing.assert_array_equal(ours.tokens, sample(plain=True).tokens)


def test_ids_that_are_not_the_logits_are_refused() -> None:
    wrong = params_of()._replace(ids=jnp.asarray(IDS[1:]))
    with pytest.raises(ValueError, match=r"ids has shape \(17,\); the model has logits of 18 ids"):
        sample(drafter_params=wrong)
