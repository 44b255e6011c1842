import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.drafters import test_eagle, test_medusa
from train import eagle_init, optim
from train.settings import LoopSettings


def test_schedule_warms_up_and_follows_the_cosine() -> None:
    s = LoopSettings(steps=110, warmup_steps=10, final_lr=0.2)
    rate = optim.schedule(3.0, s)
    assert rate(0) == pytest.approx(0.3)
    assert rate(4) == pytest.approx(1.5)
    assert rate(9) == pytest.approx(3.0)
    assert rate(59) == pytest.approx(3 * (0.2 + 0.8 / 2))
    assert rate(109) == pytest.approx(0.6)
    assert rate(500) == pytest.approx(0.6)


def test_schedule_without_warm_up_and_of_one_step() -> None:
    assert optim.schedule(2.0, LoopSettings(steps=10, warmup_steps=0))(0) <= 2
    assert np.isfinite(optim.schedule(2.0, LoopSettings(steps=1, warmup_steps=1))(0))


def _params():
    return {"w": jnp.full((4, 3), 2.0), "b": jnp.full(3, 2.0)}


def _update(s, grads, params):
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optim.make(s)
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
    return updates


def test_decay_shrinks_matrices_only() -> None:
    s = LoopSettings(steps=10, warmup_steps=1, lr=0.1, weight_decay=0.5)
    params = _params()
    updates = _update(s, jax.tree.map(jnp.zeros_like, params), params)
    np.testing.assert_allclose(updates["w"], -0.1 * 0.5 * 2.0, rtol=1e-6)
    np.testing.assert_array_equal(updates["b"], 0)


def test_first_adam_step_is_the_rate_in_the_gradients_direction() -> None:
    s = LoopSettings(steps=10, warmup_steps=1, lr=0.1, weight_decay=0.0, clip_norm=0.0)
    params = _params()
    grads = {"w": jnp.full((4, 3), -5.0), "b": jnp.full(3, 0.01)}
    updates = _update(s, grads, params)
    np.testing.assert_allclose(updates["w"], 0.1, rtol=1e-4)
    np.testing.assert_allclose(updates["b"], -0.1, rtol=1e-4)


def test_clipping_bounds_the_global_norm() -> None:
    s = LoopSettings(steps=10, warmup_steps=1, lr=1.0, weight_decay=0.0, clip_norm=1e-9, eps=1.0)
    params = _params()
    grads = {"w": jnp.full((4, 3), 1e3), "b": jnp.zeros(3)}
    # With so large an eps AdamW's step is nearly the clipped gradient itself.
    updates = _update(s, grads, params)
    assert float(optax.tree.norm(updates)) == pytest.approx(1e-9, rel=1e-3)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (3, 5, 4)])
def test_muon_makes_matrices_nearly_orthogonal(shape, seed) -> None:
    s = LoopSettings(steps=10, warmup_steps=1, optimizer="muon", lr=1.0, weight_decay=0.0)
    params = {"w": jnp.zeros(shape)}
    grads = {"w": jax.random.normal(jax.random.key(seed), shape)}
    update = np.asarray(_update(s, grads, params)["w"])
    values = np.linalg.svd(update, compute_uv=False)
    scale = max(1, shape[-1] / shape[-2]) ** 0.5
    assert (values > 0.5 * scale).all() and (values < 1.3 * scale).all()


def test_muon_leaves_vectors_and_named_matrices_to_adam() -> None:
    s = LoopSettings(
        steps=10, warmup_steps=1, optimizer="muon", lr=1.0, adam_lr=0.01, weight_decay=0.0
    )
    params = {"block": {"w": jnp.ones((4, 4)), "norm": jnp.ones(4)}, "lm_head": jnp.ones((4, 8))}
    assert optim.labels(params, s.adam_names) == {
        "block": {"w": "muon", "norm": "adam"},
        "lm_head": "adam",
    }
    updates = _update(s, jax.tree.map(jnp.ones_like, params), params)
    np.testing.assert_allclose(updates["block"]["norm"], -0.01, rtol=1e-4)
    np.testing.assert_allclose(updates["lm_head"], -0.01, rtol=1e-4)
    assert np.abs(updates["block"]["w"]).max() > 0.1


HEADS = {
    "eagle": (lambda: eagle_init.random(test_eagle.CONFIGS["3"], jax.random.key(0)), {"head"}),
    "own": (lambda: test_medusa.random("own"), {f"projection_{i}" for i in range(3)}),
    "shared": (lambda: test_medusa.random("shared"), {"projection"}),
}


@pytest.mark.parametrize("kind", HEADS)
def test_output_matrices_of_every_head_are_adams(kind) -> None:
    make, matrices = HEADS[kind]
    params = make()
    labels = optim.labels(params, LoopSettings().adam_names)
    ours = {name for name, label in labels.items() if label == "adam" and params[name].ndim > 1}
    assert ours == matrices < params.keys()
