"""Noise: no stream twice, rows apart, and draws that follow their weights into the tail."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import keys
from tests import support

BELOW_ONE = np.float32(1 - 2.0**-24)


def noise_at(length: int, key: int = 0, rows: int = 1) -> keys.Noise:
    return keys.Noise(
        jax.random.split(jax.random.key(key), rows), jnp.full([rows], length, jnp.int32)
    )


# --- keys and streams ---


def test_one_key_is_folded_with_the_row() -> None:
    key = jax.random.key(3)
    rows = keys.row_keys(key, 4)
    data = jax.random.key_data(rows).tolist()
    assert len({tuple(row) for row in data}) == 4
    for row in range(4):
        assert data[row] == jax.random.key_data(jax.random.fold_in(key, row)).tolist()
    assert jax.random.key_data(keys.row_keys(rows, 4)).tolist() == data, "[B] keys are kept"
    assert jax.random.key_data(keys.row_keys(key, 2)).tolist() == data[:2]


def test_no_two_uses_share_noise() -> None:
    """F8: over lengths, offsets and streams, everything is distinct.

    Length 5 with offset 2 and length 6 with offset 1 are the same absolute position: a position
    that is drafted again after a rejection gets new noise.
    """
    seen: dict[tuple, tuple] = {}
    uses = itertools.product(
        range(4, 10), range(5), (keys.DRAFT, keys.ACCEPT, keys.RESIDUAL, keys.TARGET)
    )
    draw = jax.jit(keys.uniforms, static_argnums=(2, 3))
    for use in uses:
        length, offset, stream = use
        numbers = tuple(np.asarray(draw(noise_at(length), offset, stream, 2))[0].tolist())
        assert all(0 <= number < 1 for number in numbers)
        for number in numbers:
            assert number not in seen, f"{use} and {seen[number]} share {number}"
            seen[number] = use


def test_noise_of_a_row_depends_on_nothing_but_the_row() -> None:
    noise = keys.Noise(jax.random.split(jax.random.key(0), 3), jnp.array([4, 9, 9], jnp.int32))
    all_rows = keys.uniforms(noise, 1, keys.ACCEPT, 3), keys.target_gumbel(noise, jnp.arange(2), 5)
    for row in range(3):
        one = jax.tree.map(lambda x, row=row: x[row : row + 1], noise)
        alone = keys.uniforms(one, 1, keys.ACCEPT, 3), keys.target_gumbel(one, jnp.arange(2), 5)
        for ours, theirs in zip(alone, all_rows, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[row])
    assert np.all(np.asarray(all_rows[0])[1] != np.asarray(all_rows[0])[2])


def test_other_keys_give_other_noise() -> None:
    """F57: the seed is used, and so is the position."""
    numbers = {
        float(keys.uniforms(noise_at(length, key), 0, keys.ACCEPT, 1)[0, 0])
        for key in range(4)
        for length in range(4)
    }
    assert len(numbers) == 16


def test_target_stream_is_keyed_by_absolute_position() -> None:
    depths = jnp.arange(4, dtype=jnp.int32)
    first, second = (np.asarray(keys.target_gumbel(noise_at(at), depths, 6))[0] for at in (5, 7))
    np.testing.assert_array_equal(first[2:], second[:2])
    assert len(np.unique(first)) == first.size
    siblings = keys.target_gumbel(noise_at(5), jnp.array([0, 1, 1], jnp.int32), 6)[0]
    np.testing.assert_array_equal(siblings[1], siblings[2])


# --- the tail of the Gumbel noise ---


def tail_hits(mode: str | None, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """How often a tail of 49,000 ids of 1e-7 each wins, and how often it should."""
    if mode is not None:
        gumbel = jax.random.gumbel
        monkeypatch.setattr(
            jax.random,
            "gumbel",
            lambda key, shape, dtype, **_: gumbel(key, shape, dtype, mode=mode),
        )
    vocab, batch, steps = 49_001, 18, 1000
    log_p = jnp.full([vocab], np.log(1e-7), jnp.float32).at[0].set(np.log(1 - 4.9e-3))
    row_keys = jax.random.split(jax.random.key(7), batch)

    @jax.jit
    def count() -> jax.Array:
        def step(length: jax.Array, hits: jax.Array) -> jax.Array:
            noise = keys.Noise(row_keys, jnp.full([batch], length, jnp.int32))
            gumbel = keys.target_gumbel(noise, jnp.zeros([1], jnp.int32), vocab)[:, 0]
            return hits + jnp.sum(keys.argmax(log_p + gumbel) > 0, dtype=jnp.int32)

        return jax.lax.fori_loop(0, steps, step, jnp.zeros([], jnp.int32))

    return int(count()), batch * steps * 4.9e-3


@pytest.mark.long
def test_target_gumbel_is_right_in_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail of mass 0.0049, 88 hits expected: jax's default mode gives half of them."""
    hits, expected = tail_hits(None, monkeypatch)
    assert abs(hits - expected) < 3 * expected**0.5
    assert tail_hits("low", monkeypatch)[0] < expected - 3 * expected**0.5, "the test has no power"


def test_target_gumbel_has_a_fine_upper_tail() -> None:
    """Near its top the default mode's values lie 0.4 apart and end at 16.6; these must not."""
    noise = noise_at(1, rows=64)

    @jax.jit
    def largest() -> jax.Array:
        def step(length: jax.Array, top: jax.Array) -> jax.Array:
            noise_here = noise._replace(length=jnp.full([64], length, jnp.int32))
            gumbel = keys.target_gumbel(noise_here, jnp.zeros([1], jnp.int32), 20_000)
            return jnp.maximum(top, jnp.max(gumbel))

        return jax.lax.fori_loop(0, 60, step, jnp.float32(0))

    # 77 million numbers: the largest is above 16.7 but for a chance of exp(-4.3).
    assert float(largest()) > 16.7


# --- the two-level draw ---


def drawn(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    batch = np.broadcast_to(weights, (len(uniform), len(weights)))
    return np.asarray(jax.jit(keys.draw)(jnp.asarray(batch, jnp.float32), jnp.asarray(uniform)))


@pytest.mark.parametrize("vocab", [1, 3, 256, 257, 700])
def test_draw_follows_its_weights(vocab: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.gamma(0.3, size=vocab) * 10.0 ** rng.integers(-3, 2, vocab)
    weights[rng.random(vocab) < 0.3] = 0
    weights[-1] = weights.sum() / 3 + 1  # the last id of the last, partly filled block
    uniform = rng.random((100_000, 2), np.float32)
    counts = np.bincount(drawn(weights, uniform), minlength=vocab)
    assert support.p_value_of_counts(counts, weights / weights.sum()) > support.SIGNIFICANCE


def test_draw_reaches_a_tail_of_tiny_weights(seed: int) -> None:
    """5,000 ids of 1e-6 each: the tail's mass and its spread are right."""
    weights = jnp.full([200, 5001], 1e-6, jnp.float32).at[:, 0].set(1 - 5e-3)
    uniform = np.random.default_rng(seed).random((500, 200, 2), np.float32)
    ids = np.asarray(jax.jit(lambda u: jax.lax.map(partial(keys.draw, weights), u))(uniform))
    hits = ids[ids > 0]
    assert abs(len(hits) - 500) < 5 * 500**0.5
    by_thousand = np.bincount((hits - 1) // 1000, minlength=5)
    assert support.p_value_of_counts(by_thousand, np.full(5, 0.2)) > support.SIGNIFICANCE
    assert len(np.unique(hits)) > 430, "the ids of a block are told apart"


@pytest.mark.parametrize("vocab", [2, 5, 255, 256, 257, 520, 1030, 50_000])
def test_weight_zero_is_never_drawn(vocab: int, seed: int) -> None:
    """At the ends of the uniforms, just around every step of the cumulative sum, anywhere."""
    rng = np.random.default_rng(seed)
    ends = np.array(list(itertools.product([0, BELOW_ONE, 2.0**-24, 0.5], repeat=2)), np.float32)
    for share in (0.1, 0.9, 0.999):
        weights = np.where(rng.random(vocab) < share, 0, rng.random(vocab)).astype(np.float32)
        weights[rng.integers(vocab)] = 1e-20
        uniform = np.concatenate([ends, rng.random((48, 2), np.float32)])
        ids = drawn(weights, uniform)
        assert np.all((ids >= 0) & (ids < vocab))
        assert np.all(weights[ids] > 0)


def on_the_steps(weights: np.ndarray) -> list[np.ndarray]:
    """Uniforms ``[B]`` that sit on steps of the float32 cumulative sum, or just beside them."""
    cumulative = np.asarray(jax.jit(lambda w: jnp.cumsum(w, -1))(weights))
    found = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.999):
        uniform = cumulative[:, int(share * weights.shape[1])] / cumulative[:, -1]
        for toward in (0, 1):
            found.append(np.nextafter(uniform, np.float32(toward)))
        found.append(uniform)
    return [np.clip(uniform, 0, BELOW_ONE) for uniform in found]


def sparse_weights(seed: int, batch: int, size: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    weights = rng.random((batch, size)) * (rng.random((batch, size)) < 0.3)
    weights[:, 1] = rng.random(batch)  # at least one is positive
    return weights.astype(np.float32)


@pytest.mark.parametrize("size", [5, 192, 256, 1000])
def test_no_step_of_the_cumulative_sum_picks_a_zero(size: int, seed: int) -> None:
    """XLA sums in a tree: the sum may step where the weight is 0."""
    weights = sparse_weights(seed, 2000, size)
    first_above = jax.jit(keys.first_above)
    for uniform in on_the_steps(weights):
        picked = np.asarray(first_above(weights, uniform))
        assert np.all(np.take_along_axis(weights, picked[:, None], 1) > 0)


def test_no_block_of_zeros_is_picked(seed: int) -> None:
    """The same through the whole draw, at the vocabulary of Gemma: 1000 blocks, most of them 0."""
    blocks = sparse_weights(seed, 16, 1000)
    weights = np.zeros((16, 1000, 256), np.float32)
    weights[:, :, 3] = blocks
    weights = weights.reshape(16, -1)
    draw = jax.jit(keys.draw)
    for uniform in on_the_steps(blocks):
        ids = np.asarray(draw(weights, np.stack([uniform, np.full_like(uniform, 0.5)], 1)))
        assert np.all(np.take_along_axis(weights, ids[:, None], 1) > 0)


def test_first_above_is_strict_and_has_a_last_resort() -> None:
    weights = jnp.array([[0.0, 1.0, 0.0, 3.0, 0.0]], jnp.float32)
    picks = [
        int(keys.first_above(weights, jnp.array([u]))[0]) for u in (0.0, 0.249, 0.25, BELOW_ONE)
    ]
    assert picks == [1, 1, 3, 3]
    # Nothing exceeds a uniform of 1 (rounding can bring one about): the last positive weight.
    assert int(keys.first_above(weights, jnp.array([1.0]))[0]) == 3


def test_draw_needs_no_normalised_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights, uniform = rng.random(300).astype(np.float32), rng.random((500, 2), np.float32)
    for scale in (2.0**-60, 2.0**40):
        np.testing.assert_array_equal(drawn(weights, uniform), drawn(weights * scale, uniform))


# --- argmax ---


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_argmax_is_the_first_largest(dtype: jnp.dtype, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 5, (3, 4, 50)).astype(np.float32)
    values[0, 0] = -np.inf
    values[0, 0, 17] = -3
    got = keys.argmax(jnp.asarray(values, dtype))
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, np.argmax(values, -1))


def test_argmax_stays_in_range_on_logits_that_are_none() -> None:
    values = jnp.array([[jnp.nan, 1.0], [-jnp.inf, -jnp.inf], [jnp.inf, jnp.inf]], jnp.float32)
    assert keys.argmax(values).tolist() == [1, 0, 0]
