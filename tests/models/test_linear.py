"""Products of a few rows; which matrices are held as panels too, whoever makes the parameters."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval import random_models
from specjax import machine
from specjax.models import ModelConfig, drop_panels, init_params, linear, load, saving, weights

FITS = {"width": 64, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16, "ffn_width": 192}


def config_of(**changes: Any) -> ModelConfig:
    return ModelConfig(
        **{"vocab_size": 128, "num_layers": 2, "max_positions": 256, **FITS, **changes}
    )


@pytest.fixture(params=["AVX-512", "AVX2"])
def upright(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs a test with each processor's form of panels."""
    lacks = request.param == "AVX2"
    monkeypatch.setattr(machine, "lacks_avx512", lambda: lacks)
    return lacks


@pytest.mark.parametrize(("inner", "outer"), [(6, 4), (7, 4), (1, 3)])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_products_without_panels(
    seed: int, rows: int, inner: int, outer: int, upright: bool
) -> None:
    del upright
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 1, inner), np.float32)
    w = rng.standard_normal((inner, outer), np.float32)
    out = linear.linear(jnp.asarray(x), jnp.asarray(w))
    np.testing.assert_allclose(out, x @ w, atol=1e-5)
    assert out.shape == (rows, 1, outer)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 1), (2, 1), (1, 3), (1, 5), (2, 3), (3, 3), (1, 32), (3, 11)]
)
def test_products_by_panels(
    seed: int, shape: tuple[int, int], transposed: bool, upright: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*shape, 12), np.float32)
    w = rng.standard_normal((12, 3 * linear.PANEL), np.float32)
    panels = linear.to_panels(jnp.asarray(w))
    assert panels.shape == ((2, 96, 12) if upright else (3, 12, linear.PANEL))
    weight = jnp.asarray(w.T if transposed else w)
    out = linear.linear(jnp.asarray(x), weight, panels, transposed=transposed)
    np.testing.assert_allclose(out, x @ w, atol=1e-5)


def test_panels_of_another_processor_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    w = jnp.ones([4, 64])
    panels = linear.to_panels(w)
    there = not machine.lacks_avx512()
    monkeypatch.setattr(machine, "lacks_avx512", lambda: there)
    with pytest.raises(ValueError, match=r"another processor's form; here they are .*drop_panels"):
        linear.linear(jnp.ones([1, 1, 4]), w, panels)


@pytest.mark.parametrize(
    ("avx2", "transposed", "rows"),
    [
        (False, False, range(1, 6)),
        (False, True, range(1, 6)),
        (True, False, range(3, 33)),
        (True, True, range(1, 33)),
    ],
)
def test_which_rows_read_the_panels(
    avx2: bool, transposed: bool, rows: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "lacks_avx512", lambda: avx2)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    w = jnp.ones([4, 64])
    panels, weight = 2 * linear.to_panels(w), w.T if transposed else w
    for count in (1, 2, 3, 5, 6, 16, 32, 33):
        out = linear.linear(jnp.ones([1, count, 4]), weight, panels, transposed=transposed)
        np.testing.assert_array_equal(out, 8 if count in rows else 4, err_msg=str(count))


@pytest.mark.parametrize(
    ("columns", "places"),
    [
        ({("block_0", "down"): (128,)}, {("block_0", "down"): ("block_0", "down_panels")}),
        ({("block_0", "down"): (100,)}, {}),
        ({("block_0", "qkv"): (128, 64, 64)}, {("block_0", "qkv"): ("block_0", "qkv_panels")}),
        ({("block_0", "qkv"): (96, 16, 16)}, {}),  # 128 in all, and no part fills its panels
        ({("embed",): (128,)}, {("embed",): ("head_panels",)}),
        ({("embed",): (100,)}, {}),
        ({("embed",): (128,), ("head",): (128,)}, {("head",): ("head_panels",)}),
        ({("embed",): (128,), ("head",): (100,)}, {}),  # it isn't the table that is multiplied by
    ],
)
def test_what_panels_are_of(columns: dict, places: dict) -> None:
    assert linear.panels_for(columns) == places


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 9),
        ({"tied": False}, 9),
        ({"vocab_size": 100}, 8),
        # 64 + 32 + 32 columns are two panels, but none of the last two parts is one.
        ({"num_kv_heads": 2}, 7),
        ({"ffn_width": 96}, 7),
    ],
)
def test_random_models_hold_what_loaded_ones_do(
    tmp_path: pathlib.Path, changes: dict[str, Any], count: int, upright: bool
) -> None:
    del upright
    config = config_of(**{"tied": True, **changes})
    params = init_params(config, jax.random.key(0))
    tensors = saving.tensors_of(weights.plan(config), params, np.float32)
    saving.write(tmp_path, saving.to_hf(config, np.float32), tensors)
    _, loaded, read = load(tmp_path)
    params = random_models.target("tiny", read, jnp.float32, 0).params
    as_shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert as_shapes(params) == as_shapes(loaded)
    assert len(jax.tree.leaves(params)) - len(jax.tree.leaves(drop_panels(params))) == count
    if "head_panels" in params:
        head = params["embed"].T if config.tied else params["head"]
        np.testing.assert_array_equal(params["head_panels"], linear.to_panels(head))
    down = params["block_1"]
    np.testing.assert_array_equal(down["down_panels"], linear.to_panels(down["down"]))
