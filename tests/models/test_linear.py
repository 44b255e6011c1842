"""Panels: which matrices are held as such too, the same whoever makes the parameters."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval import random_models
from specjax.models import ModelConfig, drop_panels, init_params, linear, load, saving, weights

FITS = {"width": 64, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16, "ffn_width": 192}


def config_of(**changes: Any) -> ModelConfig:
    return ModelConfig(
        **{"vocab_size": 128, "num_layers": 2, "max_positions": 256, **FITS, **changes}
    )


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
    tmp_path: pathlib.Path, changes: dict[str, Any], count: int
) -> None:
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
