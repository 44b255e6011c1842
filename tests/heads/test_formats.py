"""Heads on disk."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.heads import formats
from tests.drafters.test_eagle import CONFIGS, IDS
from train import eagle_init


@pytest.fixture(params=CONFIGS)
def saved(request: pytest.FixtureRequest, tmp_path: pathlib.Path):
    config = CONFIGS[request.param]
    head = eagle_init.random(config, jax.random.key(0))
    formats.save(tmp_path, config, head, IDS, 24)
    return tmp_path, config, head


def test_there_and_back(saved) -> None:
    folder, config, head = saved
    again, loaded, ids = formats.load(folder)
    assert again == config
    np.testing.assert_array_equal(ids, IDS)
    assert loaded.keys() == head.keys()
    for name, value in head.items():
        np.testing.assert_allclose(loaded[name], value, rtol=2**-8)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_the_layout_others_read(tmp_path: pathlib.Path) -> None:
    config = CONFIGS["3"]
    head = eagle_init.random(config, jax.random.key(0))
    formats.save(tmp_path, config, head, IDS, 24)
    tensors = load_file(tmp_path / "model.safetensors")
    shapes = {name: value.shape for name, value in tensors.items()}
    assert shapes == {
        "fc.weight": (16, 48),
        "midlayer.input_layernorm.weight": (16,),
        "midlayer.hidden_norm.weight": (16,),
        "midlayer.post_attention_layernorm.weight": (16,),
        "midlayer.self_attn.q_proj.weight": (16, 32),
        "midlayer.self_attn.k_proj.weight": (8, 32),
        "midlayer.self_attn.v_proj.weight": (8, 32),
        "midlayer.self_attn.o_proj.weight": (16, 16),
        "midlayer.mlp.gate_proj.weight": (24, 16),
        "midlayer.mlp.up_proj.weight": (24, 16),
        "midlayer.mlp.down_proj.weight": (16, 24),
        "norm.weight": (16,),
        "lm_head.weight": (18, 16),
        "d2t": (18,),
        "t2d": (24,),
    }
    assert tensors["d2t"].dtype == np.int64 and tensors["t2d"].dtype == bool
    np.testing.assert_array_equal(tensors["d2t"] + np.arange(18), IDS)
    np.testing.assert_array_equal(np.flatnonzero(tensors["t2d"]), IDS)
    about = json.loads((tmp_path / "config.json").read_text())
    assert about["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, -1]
    assert about["architectures"] == ["LlamaForCausalLMEagle3"]
    assert about["draft_vocab_size"] == 18 and about["vocab_size"] == 24


FAULTS = {
    "missing": (lambda t: t.pop("fc.weight"), r"no tensor fc\.weight"),
    "unknown": (lambda t: t.update(extra=np.zeros(2, np.float32)), "holds extra"),
    "shape": (
        lambda t: t.update({"fc.weight": np.zeros((2, 2), np.float32)}),
        r"fc\.weight has shape \(2, 2\)",
    ),
    "d2t short": (lambda t: t.update(d2t=t["d2t"][:-1]), "d2t has 17 entries"),
    "d2t unsorted": (
        lambda t: t.update(d2t=t["d2t"][::-1].copy()),
        "d2t has 18 entries; it must give 18 ascending",
    ),
    "d2t missing": (
        lambda t: t.pop("d2t"),
        "has no tensor d2t, and config.json cuts the vocabulary of 24 to 18",
    ),
    "d2t past the target's": (
        lambda t: t.update(d2t=t["d2t"] + 24 - IDS[-1]),
        "d2t has 18 entries; it must give 18 ascending ids of the target's 24",
    ),
    "t2d of another": (lambda t: t.update(t2d=~t["t2d"]), "t2d and d2t name different tokens"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_files(tmp_path: pathlib.Path, name: str) -> None:
    config = CONFIGS["3"]
    formats.save(tmp_path, config, eagle_init.random(config, jax.random.key(0)), IDS, 24)
    tensors = load_file(tmp_path / "model.safetensors")
    spoil, message = FAULTS[name]
    spoil(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        formats.load(tmp_path)


FIELDS = {
    "hidden_size": (None, "hidden_size=None; it must be an integer of at least 1"),
    "num_attention_heads": (None, "num_attention_heads=None; it must be an integer"),
    "intermediate_size": ("24", "intermediate_size='24'; it must be an integer"),
    "num_key_value_heads": (0, "num_key_value_heads=0; it must be an integer"),
    "draft_vocab_size": (-1, "draft_vocab_size=-1; it must be an integer"),
    "eagle_config": (
        None,
        "eagle_config.eagle_aux_hidden_state_layer_ids=None; it must be a list of the target's",
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_faulty_fields(tmp_path: pathlib.Path, name: str) -> None:
    config = CONFIGS["3"]
    formats.save(tmp_path, config, eagle_init.random(config, jax.random.key(0)), IDS, 24)
    path = tmp_path / "config.json"
    value, message = FIELDS[name]
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(ValueError, match=rf"{tmp_path}: config\.json: {re.escape(message)}"):
        formats.load(tmp_path)


def test_no_size_of_a_vocabulary(tmp_path: pathlib.Path) -> None:
    config = CONFIGS["3"]
    formats.save(tmp_path, config, eagle_init.random(config, jax.random.key(0)), IDS, 24)
    path = tmp_path / "config.json"
    about = json.loads(path.read_text())
    del about["draft_vocab_size"], about["vocab_size"]
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"config\.json: vocab_size=None; it must be an integer"):
        formats.load(tmp_path)


@pytest.mark.parametrize("text, message", [("{", "is not valid JSON"), ("[1]", "holds a list")])
def test_a_config_that_is_no_object(tmp_path: pathlib.Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    for read in (formats.load, formats.is_head):
        with pytest.raises(ValueError, match=f"{path} {message}"):
            read(tmp_path)


def test_a_file_of_the_whole_vocabulary_needs_no_map(tmp_path: pathlib.Path) -> None:
    config = dataclasses.replace(CONFIGS["3"], draft_vocab_size=24)
    ids = np.arange(24, dtype=np.int32)
    formats.save(tmp_path, config, eagle_init.random(config, jax.random.key(0)), ids, 24)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["d2t"], tensors["t2d"]
    save_file(tensors, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(formats.load(tmp_path)[2], ids)


def test_truncated_and_absent(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        formats.load(tmp_path)
    config = CONFIGS["3"]
    formats.save(tmp_path, config, eagle_init.random(config, jax.random.key(0)), IDS, 24)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        formats.load(tmp_path)
