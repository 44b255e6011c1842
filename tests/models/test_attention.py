"""Attention's derivative: that of the plain formula, where the fast form has none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import ModelConfig, attention, init_params, transformer_target

CONFIG = ModelConfig(
    vocab_size=13, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, ffn_width=24
)


def arguments(seed: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(seed)
    batch, length, capacity = 2, 3, 2 * attention.BLOCK + 9
    shapes = (batch, 2, 2 * length, 8), (batch, 2, capacity, 8), (batch, 2, capacity, 8)
    arrays = [jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes]
    start = jnp.array([capacity - 40, 4], jnp.int32)
    visible = attention.visible_slots(start, None, length, capacity)
    return *arrays, visible, jnp.max(start) + length


def test_both_forms_are_one_function(seed: int) -> None:
    given = arguments(seed)
    want = attention.attend_at_once(*given)
    np.testing.assert_allclose(attention.attend(*given), want, atol=1e-6)


def test_the_derivative_is_that_of_finite_differences(seed: int) -> None:
    *arrays, visible, filled = arguments(seed)
    rng = np.random.default_rng(seed + 1)
    ways = [jnp.asarray(rng.standard_normal(x.shape, np.float32)) for x in arrays]
    weight = jnp.asarray(rng.standard_normal(arrays[0].shape, np.float32))

    def total(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(weight * attention.attend(*arrays, visible, filled))

    gradients = jax.grad(total, (0, 1, 2))(*arrays)
    for number, (gradient, way) in enumerate(zip(gradients, ways, strict=True)):
        moved = [[*arrays], [*arrays]]
        for sign, place in zip((1, -1), moved, strict=True):
            place[number] = arrays[number] + sign * 1e-2 * way
        slope = (total(*moved[0]) - total(*moved[1])) / 2e-2
        np.testing.assert_allclose(jnp.vdot(gradient, way), slope, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_weight_of_a_model_has_a_gradient(dtype: jnp.dtype) -> None:
    target, params = transformer_target(CONFIG), init_params(CONFIG, jax.random.key(0), dtype)
    tokens = jnp.array([[1, 2, 3, 4], [5, 6, 7, 8]], jnp.int32)

    def loss(params: dict) -> jax.Array:
        logits, _, _ = target.apply(params, tokens, target.init_cache(2, 4, dtype))
        return -jnp.mean(jax.nn.log_softmax(logits)[:, :, 0])

    for path, gradient in jax.tree_util.tree_leaves_with_path(jax.grad(loss)(params)):
        assert gradient.dtype == dtype, path
        assert jnp.all(jnp.isfinite(gradient)) and jnp.any(gradient != 0), path
