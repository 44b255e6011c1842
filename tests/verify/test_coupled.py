"""Coupled verification: plain sampling token for token, and its own formula for acceptance."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from eval import toy
from specjax import Sampling, testing, verify
from specjax.drafters import draft_model, ngram
from specjax.round import run_round
from tests import support

VOCAB = 8
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(3, VOCAB, scale=1.0)
CLOSE = TABLE + testing.scripted_table(4, VOCAB, scale=0.5)
PROMPTS = [[1, 2, 1, 2, 1], [3], [5, 6, 7, 5, 6], [0, 0, 4]] * 3  # with keys of their own
KEYS = jax.random.split(jax.random.key(5), len(PROMPTS))
decode = partial(
    specjax.sample,
    TARGET,
    TABLE,
    max_new_tokens=24,
    verifier=verify.coupled,
    eos_ids=(6,),
)
SAMPLING = Sampling(temperature=1.0, top_p=0.95)


@pytest.fixture(scope="module")
def plain() -> specjax.SampleOutput:
    return decode(PROMPTS, key=KEYS, sampling=SAMPLING)


DRAFTERS: dict[str, tuple[Any, Any]] = {
    "prompt lookup 1": (ngram(1), None),
    "prompt lookup 6": (ngram(6, n_max=2), None),
    "draft model 1": (draft_model(TARGET, 1), CLOSE),
    "draft model 4": (draft_model(TARGET, 4), CLOSE),
    "draft model 7": (draft_model(TARGET, 7), CLOSE),
    "another model": (draft_model(TARGET, 3), testing.scripted_table(9, VOCAB)),
    "by the last token": (
        support.markov(3),
        support.MarkovParams(testing.scripted_table(8, VOCAB, rows=VOCAB), jnp.zeros(VOCAB, bool)),
    ),
    "junk": (testing.oracle(3), jnp.full((len(PROMPTS), 128), 2, jnp.int32)),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_sampled_output_is_that_of_plain_sampling(name: str, plain: specjax.SampleOutput) -> None:
    drafter, params = DRAFTERS[name]
    out = decode(PROMPTS, key=KEYS, sampling=SAMPLING, drafter=drafter, drafter_params=params)
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    np.testing.assert_array_equal(out.lengths, plain.lengths)
    np.testing.assert_array_equal(out.finish_reason, plain.finish_reason)
    if name.startswith("draft model"):
        assert int(out.stats.accepted.sum()) > 10, "the drafts must matter"


def test_batch_and_neighbours_change_nothing(plain: specjax.SampleOutput) -> None:
    drafting = {"drafter": draft_model(TARGET, 4), "drafter_params": CLOSE}
    for rows in ([2], [3, 0]):
        prompts, keys = [PROMPTS[row] for row in rows], KEYS[jnp.asarray(rows)]
        out = decode(prompts, key=keys, sampling=SAMPLING, **drafting)
        np.testing.assert_array_equal(out.tokens, plain.tokens[jnp.asarray(rows)])


def test_match_and_coupled_are_one_without_a_drafter(plain: specjax.SampleOutput) -> None:
    out = decode(PROMPTS, key=KEYS, sampling=SAMPLING, verifier=verify.match)
    np.testing.assert_array_equal(out.tokens, plain.tokens)


def test_a_drafter_of_the_same_law_is_always_right() -> None:
    """Same noise and same law: the same token, where match would often see another."""
    drafting = {"drafter": draft_model(TARGET, 4), "drafter_params": TABLE}
    coupled = decode(PROMPTS, key=KEYS, sampling=SAMPLING, **drafting)
    assert specjax.stats.acceptance_rate(coupled.stats) == 1
    match = decode(PROMPTS, key=KEYS, sampling=SAMPLING, verifier=verify.match, **drafting)
    assert specjax.stats.acceptance_rate(match.stats) < 0.8
    np.testing.assert_array_equal(coupled.tokens, match.tokens)


def coupled_acceptance(p: np.ndarray, q: np.ndarray) -> float:
    """sum_i 1 / sum_j max(p_j / p_i, q_j / q_i): Daliri et al. 2024."""
    ratio = np.maximum(p[None] / p[:, None], q[None] / q[:, None])
    return float(np.sum(1 / np.sum(ratio, 1)))


@pytest.mark.parametrize("context", range(toy.VOCAB))
def test_acceptance_follows_the_formula(context: int) -> None:
    """20,000 rounds of one token after each context of the toy language, within four sigma."""
    p, q = (table[context] for table in toy.tables())
    batch, formula = 20_000, coupled_acceptance(p, q)
    run = specjax.start(
        toy.bigram(),
        toy.log_table(toy.tables().target),
        np.full((batch, 1), context),
        max_new_tokens=8,
        sampling=Sampling(temperature=1.0),
        verifier=verify.coupled,
        key=jax.random.key(context),
        **toy.arguments(1),
    )
    rate = specjax.stats.acceptance_rate(specjax.decode(run, rounds=1).state.stats)
    distance = np.abs(p - q).sum() / 2
    assert (1 - distance) / (1 + distance) <= formula <= 1 - distance
    assert abs(rate - formula) < 4 * np.sqrt(formula * (1 - formula) / batch)


def test_what_coupled_says_of_itself() -> None:
    assert verify.coupled.name == "coupled"
    assert verify.coupled.coupled
    assert verify.coupled.lossless
    assert not verify.coupled.uses_q
    assert verify.BY_NAME["coupled"] is verify.coupled


def test_the_noise_is_made_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafter and target share it: all nodes and ids are too many numbers to make twice."""
    made = []
    gumbel = jax.random.gumbel

    def counted(key: jax.Array, shape: Any, *more: Any, **settings: Any) -> jax.Array:
        made.append(shape)
        return gumbel(key, shape, *more, **settings)

    drafter, params = DRAFTERS["draft model 4"]
    run = specjax.start(
        TARGET, TABLE, PROMPTS, max_new_tokens=8, verifier=verify.coupled, key=KEYS,
        sampling=SAMPLING, drafter=drafter, drafter_params=params,
    )  # fmt: skip
    monkeypatch.setattr(jax.random, "gumbel", counted)
    jax.eval_shape(partial(run_round, run.engine), run.params, run.request, run.state)
    assert made == [[VOCAB]]
