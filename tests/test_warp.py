"""Warping against sorts in numpy: ties, infinities, extremes, order."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Sampling, validate, warp
from tests import support

apply = jax.jit(warp.apply)


def settings(**values: Any) -> Sampling:
    """As decoding passes them on: ``[B]`` arrays."""
    batch = max([np.size(value) for value in values.values()], default=1)
    return validate.sampling(Sampling(**{"temperature": 1.0, **values}), batch)


def random_logits(seed: int, vocab: int = 40) -> np.ndarray:
    """float32 ``[2, 3, V]``: normal, with ties and -inf, and one of a single finite id."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(2, 3, vocab)) * 3
    logits[0, 1] = np.round(logits[0, 1])
    logits[1, 1] = np.where(rng.random(vocab) < 0.5, -np.inf, np.round(logits[1, 1]))
    logits[0, 2] = -np.inf
    logits[0, 2, vocab // 2] = 1.0
    return logits.astype(np.float32)


GRID = list(
    itertools.product([1.0, 0.3, 2.5], [None, 1, 3, 100], [None, 0.3, 0.9], [None, 0.0, 0.2])
)


def test_every_combination_equals_the_reference(seed: int) -> None:
    logits = random_logits(seed)
    for temperature, top_k, top_p, min_p in GRID:
        given = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
        want = support.warp(logits, temperature, **given)
        got = apply(settings(temperature=temperature, **given), jnp.asarray(logits))
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(
            got, want, rtol=2e-5, atol=1e-7, err_msg=f"{temperature} {given}"
        )
        np.testing.assert_array_equal(np.asarray(got) > 0, want > 1e-30)


def test_in_float64_it_equals_the_reference_to_rounding(seed: int) -> None:
    with jax.enable_x64(True):
        logits = random_logits(seed).astype(np.float64)
        for temperature, top_k, top_p, min_p in GRID[::5]:
            given = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
            got = apply(settings(temperature=temperature, **given), jnp.asarray(logits))
            assert got.dtype == jnp.float64
            # Settings are float32: 0.3 is not quite 0.3.
            want = support.warp(logits, float(np.float32(temperature)), **given)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_ties_with_the_kth_stay() -> None:
    """As in transformers: the ids that are as likely as the k-th are kept."""
    probs = apply(settings(top_k=2), jnp.array([[[1.0, 3.0, 2.0, 2.0, 0.0]]]))[0, 0]
    assert (np.asarray(probs) > 0).tolist() == [False, True, True, True, False]
    probs = apply(settings(top_p=0.5), jnp.log(jnp.array([[[0.4, 0.2, 0.2, 0.2]]])))[0, 0]
    np.testing.assert_allclose(probs, [0.4, 0.2, 0.2, 0.2], rtol=1e-5)


def test_top_p_keeps_the_id_that_crosses_the_mass_and_no_more() -> None:
    logits = jnp.log(jnp.array([[[0.5, 0.3, 0.15, 0.05]]], jnp.float32))
    for mass, count in ((0.01, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)):
        assert int(jnp.sum(apply(settings(top_p=mass), logits) > 0)) == count, mass


def test_order_is_temperature_top_k_top_p_min_p() -> None:
    """Two settings whose result depends on the order, each against the right one by hand."""
    logits = np.log(np.array([[[0.4, 0.3, 0.2, 0.1]]], np.float32))
    # top-p sees the three renormalised: 0.44 + 0.33 >= 0.75. Before top-k it would keep three.
    probs = apply(settings(top_k=3, top_p=0.75), jnp.asarray(logits))[0, 0]
    np.testing.assert_allclose(probs, [4 / 7, 3 / 7, 0, 0], rtol=1e-5)
    # The temperature comes first: flat at 10, so top-p 0.75 keeps three of four (of 0.5: two).
    probs = apply(settings(temperature=10.0, top_p=0.75), jnp.asarray(logits))[0, 0]
    assert int(np.sum(np.asarray(probs) > 0)) == 3
    # min-p too: at a temperature of 0.5 the ratios are squared.
    probs = apply(settings(temperature=0.5, min_p=0.3), jnp.asarray(logits))[0, 0]
    np.testing.assert_allclose(probs, [16 / 25, 9 / 25, 0, 0], rtol=1e-5)


@pytest.mark.parametrize("top_k", [5, 6, 1000, 2**31 - 1])
def test_top_k_of_the_vocabulary_or_more_changes_nothing(top_k: int) -> None:
    logits = jnp.array([[[0.0, -jnp.inf, 2.0, -3.0, 1.0]]])
    np.testing.assert_array_equal(apply(settings(top_k=top_k), logits), apply(settings(), logits))


def test_neutral_settings_keep_every_id() -> None:
    logits = jnp.array([[[0.0, -14.0, 2.0, -30.0, -80.0]]])
    probs = apply(settings(top_k=5, min_p=0.0), logits)
    np.testing.assert_allclose(probs, apply(settings(), logits), rtol=1e-6)


def test_top_p_of_1_keeps_every_id() -> None:
    """A row that wants no top-p in a [B] array says 1; transformers skips the filter there."""
    logits = jnp.array([[[0.0, -14.0, 2.0, -30.0, -80.0]]])
    np.testing.assert_allclose(
        apply(settings(top_p=1.0), logits), apply(settings(), logits), rtol=1e-6
    )


@pytest.mark.parametrize("top_p", [1e-3, 1e-30])
@pytest.mark.parametrize("min_p", [None, 1.0])
def test_the_strictest_filters_leave_the_best_id(top_p: float, min_p: float | None) -> None:
    probs = apply(settings(top_p=top_p, min_p=min_p, top_k=1), jnp.array([[[0.0, 5.0, 4.9]]]))
    assert probs.tolist() == [[[0, 1, 0]]]


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-6, 1e-3])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    """F54: nothing overflows, and -inf does not turn into NaN or +inf."""
    logits = jnp.array([[[-jnp.inf, 1e4, 2e4, -3e38, 3.0]]])
    probs = apply(Sampling(jnp.float32([temperature])), logits)
    assert probs.tolist() == [[[0, 0, 1, 0, 0]]]


def test_huge_logits_do_not_overflow() -> None:
    logits = jnp.array([[[3e38, 3e38, -3e38, -jnp.inf]]], jnp.float32)
    for temperature in (0.5, 1.0, 100.0):
        probs = apply(settings(temperature=temperature, top_p=0.9, min_p=0.1), logits)
        np.testing.assert_allclose(probs[0, 0], [0.5, 0.5, 0, 0])


def test_high_temperatures_flatten_and_keep_the_padding_out() -> None:
    probs = apply(settings(temperature=1e30), jnp.array([[[0.0, 9.0, -jnp.inf, -5.0]]]))
    np.testing.assert_allclose(probs[0, 0], [1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-6)


def test_rows_take_their_own_settings_and_temperature_0_is_argmax() -> None:
    """F54: batch temperatures [0, 1] with -inf logits; ties go to the first id."""
    logits = np.array([[[1.0, 3.0, -np.inf, 3.0]]] * 3, np.float32)
    per_row = settings(temperature=[0.0, 1.0, 0.0], top_p=[0.1, 1.0, 1.0], top_k=[1, 2, 4])
    probs = np.asarray(apply(per_row, jnp.asarray(logits)))
    assert probs[0, 0].tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(probs[1, 0], [0, 0.5, 0, 0.5], rtol=1e-6)
    assert probs[2, 0].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_logits_are_cast_to_float32_first(dtype: Any, seed: int) -> None:
    """F2, F58."""
    logits = jnp.asarray(np.random.default_rng(seed).normal(size=(2, 1, 300)), dtype)
    arguments = settings(temperature=0.7, top_k=50, top_p=0.9, min_p=0.01)
    got, want = (apply(arguments, x) for x in (logits, logits.astype(jnp.float32)))
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, want)


def test_the_law_of_a_row_does_not_depend_on_how_many_rows_are_warped(seed: int) -> None:
    """The drafter warps one node, the verifier N + 1: the same logits must give the same law."""
    logits = jnp.asarray(np.random.default_rng(seed).normal(size=(2, 5, 1000)), jnp.float32)
    arguments = settings(temperature=[0.7, 1.3], top_p=[0.9, 0.8], top_k=[90, 20])
    whole = np.asarray(apply(arguments, logits))
    for node in range(5):
        np.testing.assert_allclose(
            apply(arguments, logits[:, node : node + 1])[:, 0], whole[:, node], rtol=1e-6
        )


def test_a_filter_that_is_absent_is_not_traced() -> None:
    """Bisection is a loop; plain temperature sampling has none."""
    logits = jnp.zeros((1, 1, 8))
    bare = str(jax.make_jaxpr(warp.apply)(settings(), logits))
    filtered = str(jax.make_jaxpr(warp.apply)(settings(top_k=2), logits))
    assert "scan" not in bare
    assert "while" not in bare
    assert "scan" in filtered or "while" in filtered


def test_new_values_do_not_recompile() -> None:
    warped = jax.jit(lambda sampling, logits: warp.apply(sampling, logits))
    for temperature in (0.5, 1, np.float64(1.5), jnp.float32(2)):
        warped(settings(temperature=temperature, top_k=3), jnp.zeros((1, 1, 8)))
    assert warped._cache_size() == 1
