"""Match verification through the whole loop: plain sampling path by path, and in law."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, testing, verify
from specjax.drafters import draft_model, ngram, suffix
from tests import support

VOCAB = 8
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB, scale=1.0)
CLOSE = TABLE + testing.scripted_table(1, VOCAB, scale=0.5)  # a draft model that is often right
PROMPTS = [[1, 2, 1, 2, 1], [3], [5, 6, 7, 5, 6]]
KEY = jax.random.key(11)
decode = partial(
    specjax.sample,
    TARGET,
    TABLE,
    PROMPTS,
    max_new_tokens=24,
    verifier=verify.match,
    sampling=Sampling(temperature=[0.8, 1.2, 0.0], top_k=6),
    key=KEY,
)

DRAFTERS: dict[str, tuple[Any, Any]] = {
    "ngram 1": (ngram(1, match="first"), None),
    "ngram 4": (ngram(4), None),
    "suffix 4": (suffix(4), support.past_of([[1, 2, 3], [5, 6, 7, 5], [3] * 9], 30)),
    "draft model 2": (draft_model(TARGET, 2), CLOSE),
    "draft model 5": (draft_model(TARGET, 5), CLOSE),
    "junk": (testing.oracle(3), jnp.full((3, 128), 2, jnp.int32)),
}


@pytest.fixture(scope="module")
def plain() -> specjax.SampleOutput:
    return decode()


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_and_k_gives_the_tokens_of_plain_decoding(
    name: str, plain: specjax.SampleOutput
) -> None:
    """Path by path, rows at their own temperatures; the target's noise is the position's own."""
    drafter, params = DRAFTERS[name]
    out = decode(drafter=drafter, drafter_params=params)
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    np.testing.assert_array_equal(out.lengths, plain.lengths)
    if name.startswith("draft model"):
        assert int(out.stats.accepted.sum()) > 10, "the drafts must matter"


def test_plain_decoding_draws_the_argmax_of_logits_and_noise(plain: specjax.SampleOutput) -> None:
    """The same tokens from the numpy reference and the noise of each absolute position."""
    row_keys = specjax.keys.row_keys(KEY, 3)
    for row, (prompt, temperature) in enumerate(zip(PROMPTS, (0.8, 1.2, 0.0), strict=True)):
        tokens = list(prompt)
        for position in range(len(prompt), len(prompt) + 6):
            noise = specjax.keys.Noise(row_keys[row : row + 1], jnp.array([position], jnp.int32))
            gumbel = specjax.keys.target_gumbel(noise, jnp.zeros([1], jnp.int32), VOCAB)[0, 0]
            probs = support.warp(support.logits_after(TABLE, tokens), temperature, top_k=6)
            with np.errstate(divide="ignore"):
                tokens.append(int(np.argmax(np.log(probs) + np.asarray(gumbel))))
        assert tokens[len(prompt) :] == plain.tokens[row, :6].tolist()


def test_temperature_0_rows_are_greedy(plain: specjax.SampleOutput) -> None:
    assert plain.tokens[2].tolist() == support.plain_greedy(TABLE, PROMPTS[2], 24)
    assert plain.tokens[0].tolist() != support.plain_greedy(TABLE, PROMPTS[0], 24)
