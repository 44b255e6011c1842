"""Medusa heads on disk, in both layouts."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.heads import MedusaConfig, formats, medusa_format
from tests.drafters.test_eagle import IDS
from tests.drafters.test_medusa import CONFIGS, random

ABSENT: Any = object()
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
    shapes = medusa_format.shapes_in(tmp_path / FILES["original"])
    assert medusa_format.read_config(about, shapes) == (config, 18)


def rewritten(folder: pathlib.Path, name: str, layout: str, **changes: Any) -> MedusaConfig:
    """Heads of a config.json with some fields changed, None: absent; what they are made of."""
    ids, vocab = (np.arange(18, dtype=np.int32), 18) if layout == "original" else (IDS, 24)
    formats.save(folder, CONFIGS[name], random(name), ids, vocab, layout)
    about = json.loads((folder / "config.json").read_text()) | changes
    about = {key: value for key, value in about.items() if value is not ABSENT}
    (folder / "config.json").write_text(json.dumps(about))
    return CONFIGS[name]


def without(folder: pathlib.Path, layout: str, prefix: str) -> None:
    path = folder / FILES[layout]
    save_file({n: x for n, x in load_file(path).items() if not n.startswith(prefix)}, path)


def test_a_published_head_that_was_cut_short(tmp_path: pathlib.Path) -> None:
    """The config says three heads, and the file has lost the last."""
    rewritten(tmp_path, "own", "original", medusa_config=ABSENT)
    without(tmp_path, "original", "2.")
    with pytest.raises(ValueError, match=r"no tensor 2\.0\.linear\.weight"):
        formats.load(tmp_path)


def test_a_published_head_with_the_fields_of_its_base_model(tmp_path: pathlib.Path) -> None:
    """How deep the base model is says nothing of the heads; nor has theirs to be said if it's 1."""
    base = {"num_hidden_layers": 32, "num_attention_heads": 4, "num_heads": 7}
    config = rewritten(tmp_path / "a", "own", "original", medusa_config=ABSENT, **base)
    assert formats.load(tmp_path / "a")[0] == config
    base["medusa_num_layers"] = ABSENT
    rewritten(tmp_path / "b", "target", "original", medusa_config=ABSENT, **base)
    config = formats.load(tmp_path / "b")[0]
    assert (config.num_heads, config.num_blocks, config.projection) == (3, 1, "target")


@pytest.mark.parametrize("extra", [{}, {"tree": []}, {"tree": None}, None])
def test_what_medusa_config_leaves_out_is_seen_in_the_file(
    tmp_path: pathlib.Path, extra: Any
) -> None:
    for layout in FILES:
        config = rewritten(tmp_path / layout, "own", layout, medusa_config=extra)
        assert formats.load(tmp_path / layout)[0] == config


def test_the_matrix_of_all_heads_by_vllm_s_other_name(tmp_path: pathlib.Path) -> None:
    """vLLM takes lm_head.weight as well, cut to the draft vocabulary or whole."""
    path = tmp_path / "model.safetensors"
    for rows in (IDS, np.arange(24)):
        config = rewritten(tmp_path, "shared", "vllm", medusa_config=ABSENT)
        tensors = load_file(path)
        matrix = tensors.pop("lm_heads.0.weight")
        whole = np.zeros((24, 16), matrix.dtype)
        whole[IDS] = matrix
        save_file(tensors | {"lm_head.weight": whole[rows]}, path)
        again, loaded, _ = formats.load(tmp_path)
        assert again == config
        np.testing.assert_array_equal(loaded["projection"], matrix.T.astype(np.float32))
    save_file(tensors | {"lm_head.weight": matrix, "lm_heads.0.weight": matrix}, path)
    with pytest.raises(ValueError, match=r"holds lm_head\.weight, which a head of this kind"):
        formats.load(tmp_path)


def test_logits_that_are_not_scaled(tmp_path: pathlib.Path) -> None:
    config = rewritten(tmp_path, "own", "vllm", logit_scale=1.0)
    assert formats.load(tmp_path)[0] == config


@pytest.mark.parametrize(
    ("layout", "changes", "words"),
    [
        ("vllm", {"num_heads": "4"}, r"json: num_heads='4'; it must be an integer of at least 1"),
        ("vllm", {"num_heads": 0}, "json: num_heads=0; it must be an integer of at least 1"),
        ("vllm", {"num_hidden_layers": True}, "json: num_hidden_layers=True; it must be an int"),
        ("original", {"medusa_num_heads": 0}, "json: medusa_num_heads=0; it must be an integer"),
        ("original", {"medusa_num_layers": [1]}, r"json: medusa_num_layers=\[1\]; it must be"),
        ("vllm", {"hidden_size": 16.0}, "json: hidden_size=16.0; it must be an integer"),
        ("vllm", {"vocab_size": "24"}, "json: vocab_size='24'; it must be an integer"),
        ("vllm", {"truncated_vocab_size": 0}, "json: truncated_vocab_size=0; it must be an int"),
        ("vllm", {"medusa_config": 3}, r"json: medusa_config=3; it must be an object, \{...\}"),
        ("vllm", {"medusa_config": {"projection": None}}, "projection=None; it must be one of own"),
        (
            "vllm",
            {"medusa_config": {"tree": "0"}},
            r"medusa_config.tree='0'; it must be a list of rank paths, such as \[\[0\], \[0, 2\]\]",
        ),
        ("vllm", {"medusa_config": {"tree": [0]}}, r"medusa_config.tree=\[0\]; it must be a list"),
        ("vllm", {"medusa_config": {"tree": [["0"]]}}, r"tree holds \('0',\); a path is a tuple"),
        ("vllm", {"logit_scale": 0.5}, "json: logit_scale=0.5; it must be 1 or absent: multiply"),
        ("original", {"logit_scale": 2}, "json: logit_scale=2; it must be 1 or absent"),
    ],
)
def test_fields_that_can_t_be(
    tmp_path: pathlib.Path, layout: str, changes: dict[str, Any], words: str
) -> None:
    rewritten(tmp_path, "own", layout, **changes)
    with pytest.raises(ValueError, match=words):
        formats.load(tmp_path)


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
    shapes = medusa_format.shapes_in(tmp_path / "model.safetensors")
    assert medusa_format.read_config(about, shapes) == (config, 24)
    assert shapes["blocks.2.layers.1.weight"].shape == (16, 16)


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
