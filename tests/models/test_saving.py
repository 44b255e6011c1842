"""Configurations and tensors out and in again."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

from specjax.models import ModelConfig, RopeConfig, init_params, load, saving, weights

BASE = ModelConfig(
    vocab_size=31, width=16, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=8, ffn_width=24
)
CHANGES = {
    "llama": dict(max_positions=99, norm_eps=1e-5),
    "tied, biases": dict(tied=True, qkv_bias=True, out_bias=True, mlp_bias=True),
    "linear rope": dict(rope=RopeConfig(base=5e5, scaling="linear", factor=2.0)),
    "llama 3 rope": dict(
        rope=RopeConfig(base=5e5, scaling="llama3", factor=8.0, original_positions=64)
    ),
    "mistral": dict(family="mistral"),
    "qwen 2": dict(family="qwen2", qkv_bias=True),
    "qwen 3": dict(family="qwen3", qk_norm=True),
    "smollm 3": dict(family="smollm3", rope_layers=(True, False, True, True)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_comes_back(name: str, tmp_path: pathlib.Path) -> None:
    config = dataclasses.replace(BASE, **CHANGES[name])
    params = init_params(config, jax.random.key(0))
    tensors = saving.tensors_of(weights.plan(config), params, np.float32)
    saving.write(tmp_path, saving.to_hf(config, np.float32), tensors)
    _, back, read = load(tmp_path, panels=False)
    assert read == config
    jax.tree.map(np.testing.assert_array_equal, back, params)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_what_a_family_can_t_say_is_refused() -> None:
    config = dataclasses.replace(BASE, qk_norm=True)
    with pytest.raises(ValueError, match=r"a llama config\.json has no words for ModelConfig"):
        saving.to_hf(config, np.float32)


def test_nothing_is_left_of_a_write_that_fails(tmp_path: pathlib.Path) -> None:
    saving.write(tmp_path, {"a": 1}, {"x": np.ones(2)})
    with pytest.raises(TypeError):
        saving.write(tmp_path, {"a": object()}, {"x": np.zeros(2)})
    assert json.loads((tmp_path / "config.json").read_text()) == {"a": 1}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_what_a_killed_write_left_goes_at_the_next(tmp_path: pathlib.Path) -> None:
    left = tmp_path / ".model-abcd1234"
    left.mkdir()
    (left / "model.safetensors").write_text("half of it")
    with saving.swept(tmp_path, "nothing"):  # another one is writing: it may be theirs
        saving.write(tmp_path, {"a": 1}, {"x": np.ones(2)})
        assert left.exists()
    (tmp_path / ".model-mine").mkdir()
    saving.write(tmp_path, {"a": 1}, {"x": np.ones(2)})
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        ".model-mine",
        "config.json",
        "model.safetensors",
    ]
