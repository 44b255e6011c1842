import jax
import numpy as np
import pytest

import specjax
from eval.synthetic import synthetic
from specjax import stats, testing
from specjax.drafters import draft_model

VOCAB = 11
TARGET, PARAMS = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
DRAFT = testing.scripted_table(1, VOCAB)  # another model altogether


def decode(alpha, temperature=None, new=400):
    return specjax.sample(
        TARGET,
        PARAMS,
        [[1, 2, 3], [4]],
        max_new_tokens=new,
        drafter=draft_model(TARGET, 4),
        drafter_params=DRAFT,
        verifier=synthetic(alpha, greedy=temperature is None),
        sampling=specjax.Sampling(temperature=temperature),
        key=jax.random.key(0),
    ).stats


@pytest.mark.parametrize("temperature", [None, 0.8])
def test_drafts_are_accepted_at_the_rate_asked_for(temperature):
    out = decode(0.7, temperature)
    judged = int(out.judged.sum())
    spread = (0.7 * 0.3 / judged) ** 0.5
    assert abs(stats.acceptance_rate(out) - 0.7) < 5 * spread
    by_position = np.asarray(stats.acceptance_by_position(out))
    assert np.all(np.abs(by_position - 0.7) < 0.2)  # the same at every position


@pytest.mark.parametrize(("alpha", "per_pass"), [(0.0, 1.0), (1.0, 5.0)])
def test_none_and_all(alpha, per_pass):
    assert stats.tokens_per_pass(decode(alpha, new=50)) == per_pass


def test_it_calls_itself_lossy_and_equal_arguments_give_one_object():
    assert not synthetic(0.5).lossless and not synthetic(0.5, greedy=False).lossless
    assert synthetic(0.5) is synthetic(0.5)
    assert synthetic(0.5).name == "synthetic 0.5"


def test_a_rate_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"alpha=1\.2; it must be 0 to 1"):
        synthetic(1.2)
