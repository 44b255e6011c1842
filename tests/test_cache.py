"""The key-value buffer: writes land per row, nothing valid is ever overwritten."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import cache as kv


def random_cache(seed: int, capacity: int = 8) -> kv.KVCache:
    rng = np.random.default_rng(seed)
    empty = kv.init(layers=2, batch=3, kv_heads=2, capacity=capacity, head_dim=4, dtype=jnp.float32)
    fill = lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype)  # noqa: E731
    return kv.KVCache(tuple(map(fill, empty.keys)), tuple(map(fill, empty.values)), empty.length)


def test_a_new_cache_is_empty_and_finite() -> None:
    cache = kv.init(layers=3, batch=2, kv_heads=1, capacity=5, head_dim=4, dtype=jnp.bfloat16)
    assert len(cache.keys) == len(cache.values) == 3
    assert cache.capacity == 5
    assert cache.length.dtype == jnp.int32
    assert cache.length.tolist() == [0, 0]
    for buffer in (*cache.keys, *cache.values):
        assert buffer.shape == (2, 1, 5, 4)
        assert buffer.dtype == jnp.bfloat16
        assert not np.any(buffer)


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_write_puts_each_row_at_its_own_slot_and_drops_the_rest(count: int, seed: int) -> None:
    """F32: with slot 6 of 8 and 4 entries, slots 0 to 5 must not move."""
    buffer = random_cache(seed).keys[0]
    new = jnp.asarray(np.random.default_rng(seed).normal(size=(3, 2, count, 4)), jnp.float32)
    start = jnp.array([0, 6, 8], jnp.int32)
    want = np.array(buffer)
    for row in range(3):
        for t in range(count):
            if start[row] + t < 8:
                want[row, :, start[row] + t] = new[row, :, t]
    np.testing.assert_array_equal(jax.jit(kv.write)(buffer, new, start), want)


def test_write_keeps_the_dtype_of_the_buffer() -> None:
    buffer = jnp.zeros((1, 1, 4, 2), jnp.bfloat16)
    out = kv.write(buffer, jnp.full((1, 1, 1, 2), 1.5, jnp.float32), jnp.array([2], jnp.int32))
    assert out.dtype == jnp.bfloat16
    assert float(out[0, 0, 2, 0]) == 1.5


def test_rollback_moves_the_length_and_nothing_else(seed: int) -> None:
    """F15, F32: buffers of the same shape; a row is never lengthened."""
    cache = random_cache(seed)._replace(length=jnp.array([5, 5, 2], jnp.int32))
    after = kv.rollback(cache, jnp.array([3, 5, 7], jnp.int32))
    assert after.length.tolist() == [3, 5, 2]
    assert after.length.dtype == jnp.int32
    for ours, theirs in zip(after[:2], cache[:2], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_keep_moves_a_path_together(seed: int) -> None:
    cache = random_cache(seed)._replace(length=jnp.array([8, 8, 8], jnp.int32))
    start = jnp.array([0, 3, 5], jnp.int32)
    path = jnp.array([[0, 2, 5], [0, 1, 2], [0, 2, 2]], jnp.int32)
    after = kv.keep(cache, start, path)
    assert after.length.tolist() == [8, 8, 8]
    for buffers, moved in ((cache.keys, after.keys), (cache.values, after.values)):
        for before, got in zip(buffers, moved, strict=True):
            want = np.array(before)
            for row in range(3):
                for depth in range(3):
                    slot = int(start[row] + path[row, depth])
                    want[row, :, start[row] + depth] = before[row, :, slot]
            np.testing.assert_array_equal(got, want)


def test_keep_at_the_end_of_the_buffer_touches_no_valid_entry(seed: int) -> None:
    """A row that is finished may have its node 0 in the last slot: its path leads outside."""
    cache = random_cache(seed)
    start = jnp.array([7, 7, 7], jnp.int32)
    after = kv.keep(cache, start, jnp.array([[0, 1, 2]] * 3, jnp.int32))
    np.testing.assert_array_equal(after.keys[0], cache.keys[0])
