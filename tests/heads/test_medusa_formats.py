"""Medusa heads on disk, in both layouts."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.heads import formats
from tests.drafters.test_eagle import IDS
from tests.drafters.test_medusa import CONFIGS, random

FILES = {"vllm": "model.safetensors", "original": "medusa_lm_head.safetensors"}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("layout", FILES)
def test_there_and_back(tmp_path: pathlib.Path, name: str, layout: str) -> None:
    config, heads = CONFIGS[name], random(name)
    formats.save(tmp_path, config, heads, IDS, 24, layout)
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", FILES[layout]}
    again, loaded, ids = formats.load(tmp_path)
    assert again == config
    np.testing.assert_array_equal(ids, IDS)
    assert loaded.keys() == heads.keys()
    for key, value in heads.items():
        np.testing.assert_allclose(loaded[key], value, rtol=2**-8)


def test_the_layout_of_vllm(tmp_path: pathlib.Path) -> None:
    formats.save(tmp_path, CONFIGS["own"], random("own"), IDS, 24)
    tensors = load_file(tmp_path / "model.safetensors")
    want = {"token_map": (18,)} | {f"lm_heads.{i}.weight": (18, 16) for i in range(3)}
    for i in range(3):
        for j in range(2):
            at = f"blocks.{i}.layers.{j}"
            want |= {f"{at}.weight": (16, 16), f"{at}.bias": (16,)}
    assert {name: value.shape for name, value in tensors.items()} == want
    np.testing.assert_array_equal(tensors["token_map"], IDS)
    np.testing.assert_allclose(
        tensors["blocks.1.layers.0.weight"].astype(np.float32).T, random("own")["block_1_0"],
        rtol=2**-8,
    )  # fmt: skip
    about = json.loads((tmp_path / "config.json").read_text())
    assert about["architectures"] == ["MedusaModel"] and about["model_type"] == "medusa"
    assert about["num_heads"] == 3 and about["num_hidden_layers"] == 2
    assert about["vocab_size"] == 24 and about["truncated_vocab_size"] == 18
    assert about["medusa_fc_bias"] and not about["original_lm_head"]


def test_the_original_layout(tmp_path: pathlib.Path) -> None:
    formats.save(tmp_path, CONFIGS["own"], random("own"), IDS, 24, "original")
    tensors = load_file(tmp_path / FILES["original"])
    want = {"token_map", *(f"{i}.2.weight" for i in range(3))}
    want |= {f"{i}.{j}.linear.{x}" for i in range(3) for j in range(2) for x in ("weight", "bias")}
    assert tensors.keys() == want
    assert tensors["0.2.weight"].shape == (18, 16)
    about = json.loads((tmp_path / "config.json").read_text())
    assert about["medusa_num_heads"] == 3 and about["medusa_num_layers"] == 2


def test_one_matrix_for_all_heads(tmp_path: pathlib.Path) -> None:
    for name, kept in (("shared", {"lm_heads.0.weight"}), ("target", set())):
        formats.save(tmp_path / name, CONFIGS[name], random(name), IDS, 24)
        tensors = load_file(tmp_path / name / "model.safetensors")
        assert {x for x in tensors if x.startswith("lm_heads")} == kept
        assert json.loads((tmp_path / name / "config.json").read_text())["original_lm_head"]


def test_a_published_head(tmp_path: pathlib.Path) -> None:
    """As those about: fewer heads in its config than in the file, no sizes, and no extra words."""
    config, heads = CONFIGS["own"], random("own")
    formats.save(tmp_path, config, heads, np.arange(18, dtype=np.int32), 18, "original")
    about = {"base_model_name_or_path": "x", "medusa_num_heads": 2, "medusa_num_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(about))
    again, loaded, ids = formats.load(tmp_path)
    assert again == config and loaded.keys() == heads.keys()
    np.testing.assert_array_equal(ids, np.arange(18))


def test_a_published_head_of_vllm(tmp_path: pathlib.Path) -> None:
    """No biases, a map in order of frequency, and matrices that are not cut to it."""
    config, heads = CONFIGS["own"], random("own")
    formats.save(tmp_path, config, heads, IDS, 24)
    tensors = load_file(tmp_path / "model.safetensors")
    order = IDS[::-1]
    for name in list(tensors):
        if name.endswith(".bias"):
            del tensors[name]
        if name.startswith("lm_heads"):
            whole = np.zeros((24, 16), tensors[name].dtype)
            whole[IDS] = tensors[name]
            tensors[name] = whole
    tensors["token_map"] = order.astype(np.int64)
    save_file({f"medusa_heads.{n}": x for n, x in tensors.items()}, tmp_path / "model.safetensors")
    about = json.loads((tmp_path / "config.json").read_text())
    del about["medusa_config"], about["medusa_fc_bias"]
    (tmp_path / "config.json").write_text(json.dumps(about))
    again, loaded, ids = formats.load(tmp_path)
    assert again == config
    np.testing.assert_array_equal(ids, IDS)
    assert not loaded["block_0_0_bias"].any()
    np.testing.assert_allclose(loaded["projection_1"], heads["projection_1"], rtol=2**-8)


def resized(name: str):
    return lambda t: t.update({name: np.zeros((2, 2), np.float32)})


FAULTS = {
    "missing": (
        lambda t: t.pop("blocks.2.layers.0.weight"),
        r"no tensor blocks\.2\.layers\.0\.wei",
    ),
    "no bias": (lambda t: t.pop("blocks.0.layers.1.bias"), r"no tensor blocks\.0\.layers\.1\.bias"),
    "unknown": (
        lambda t: t.update({"lm_heads.3.weight": np.zeros((18, 16), np.float32)}),
        r"holds lm_heads\.3\.weight",
    ),
    "shape": (resized("lm_heads.1.weight"), r"lm_heads\.1\.weight has shape \(2, 2\)"),
    "no map": (lambda t: t.pop("token_map"), "has no tensor token_map"),
    "map short": (
        lambda t: t.update(token_map=t["token_map"][:-1]),
        r"token_map has shape \(17,\)",
    ),
    "map twice": (lambda t: t.update(token_map=0 * t["token_map"]), "must give 18 different ids"),
    "map beyond": (lambda t: t.update(token_map=t["token_map"] + 9), "of the target's 24"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_files(tmp_path: pathlib.Path, name: str) -> None:
    formats.save(tmp_path, CONFIGS["own"], random("own"), IDS, 24)
    tensors = load_file(tmp_path / "model.safetensors")
    spoil, message = FAULTS[name]
    spoil(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        formats.load(tmp_path)


def test_a_fault_in_the_original_layout(tmp_path: pathlib.Path) -> None:
    formats.save(tmp_path, CONFIGS["own"], random("own"), IDS, 24, "original")
    tensors = load_file(tmp_path / FILES["original"])
    del tensors["2.1.linear.weight"]
    save_file(tensors, tmp_path / FILES["original"])
    with pytest.raises(ValueError, match=r"no tensor 2\.1\.linear\.weight"):
        formats.load(tmp_path)
    (tmp_path / FILES["original"]).unlink()
    with pytest.raises(ValueError, match=r"medusa_lm_head\.safetensors is missing"):
        formats.load(tmp_path)


def test_an_unknown_layout(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="layout='gguf'; it must be 'vllm' or 'original'"):
        formats.save(tmp_path, CONFIGS["own"], random("own"), IDS, 24, "gguf")
    assert not list(tmp_path.iterdir())
