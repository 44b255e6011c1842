"""Draft models that borrow from their target: made of it, written, read, and put together."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specjax
from specjax import stats
from specjax.drafters import DraftModelParams, draft_model
from specjax.models import (
    ModelConfig,
    fingerprint,
    init_params,
    linear,
    load,
    saving,
    students,
    transformer_target,
)

TIED = ModelConfig(
    vocab_size=128, width=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, ffn_width=64,
    tied=True,
)  # fmt: skip
MODELS = {"tied": TIED, "untied": dataclasses.replace(TIED, tied=False)}
IDS = np.arange(64, dtype=np.int32) * 2 + 1
TOKENS = jnp.array([[1, 2, 3, 77, 5], [120, 9, 8, 7, 6]], jnp.int32)


@cache
def weights(name: str = "tied") -> Any:
    """Far from uniform, and such that bfloat16 holds them."""
    params = init_params(MODELS[name], jax.random.key(0))
    params = jax.tree.map(lambda x: x * 4 if x.ndim > 1 else x * 1.5, params)
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)


def logits_of(config: ModelConfig, params: Any) -> np.ndarray:
    target = transformer_target(config)
    cache = target.init_cache(2, 8, jnp.float32)
    return np.asarray(jax.jit(target.apply)(params, TOKENS, cache)[0])


def saved(
    folder: pathlib.Path, layers: tuple[int, ...] = (0, 2), name: str = "tied"
) -> ModelConfig:
    config = students.config_of(MODELS[name], layers, len(IDS))
    students.save(folder, config, students.from_target(weights(name), layers), IDS)
    return config


def test_it_begins_as_the_target_s_blocks() -> None:
    own = students.from_target(weights(), (2, 0))
    assert sorted(own) == ["block_0", "block_1", "norm"]
    for ours, theirs in (("block_0", "block_2"), ("block_1", "block_0"), ("norm", "norm")):
        jax.tree.map(np.testing.assert_array_equal, own[ours], weights()[theirs])


def test_blocks_keep_their_way_to_rotate() -> None:
    """SmolLM3 leaves some blocks without RoPE."""
    target = dataclasses.replace(TIED, rope_layers=(True, False, True))
    assert students.config_of(target, (1, 2)).rope_layers == (False, True)


def test_new_blocks_have_the_shapes_of_old_ones() -> None:
    config = students.config_of(TIED, (0, 2), 64)
    shapes = [
        jax.tree.map(jnp.shape, own)
        for own in (
            students.random(config, jax.random.key(0)),
            students.from_target(weights(), (0, 2)),
        )
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", MODELS)
def test_one_of_all_blocks_is_the_target(name: str, tmp_path: pathlib.Path) -> None:
    """Through the file, and in the loop, where each of its drafts must be accepted."""
    layers, params = (0, 1, 2), weights(name)
    config = students.config_of(MODELS[name], layers)
    assert config == MODELS[name]
    students.save(tmp_path, config, students.from_target(params, layers), None)
    model, whole, ids = students.load(tmp_path, params, MODELS[name], panels=False)
    assert ids is None and model is transformer_target(MODELS[name])
    assert whole["embed"] is params["embed"]
    np.testing.assert_array_equal(logits_of(config, whole), logits_of(config, params))
    out = specjax.sample(
        model, params, [[1, 2, 3], [5]], drafter=draft_model(model, 3),
        drafter_params=DraftModelParams(whole, ids), max_new_tokens=12,
    )  # fmt: skip
    assert stats.acceptance_rate(out.stats) == 1.0


@pytest.mark.parametrize("panels", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_draft_vocabulary_takes_the_target_s_rows(
    name: str, panels: bool, tmp_path: pathlib.Path
) -> None:
    config, params = saved(tmp_path, (0, 1, 2), name), weights(name)
    model, whole, ids = students.load(tmp_path, params, MODELS[name], panels=panels)
    assert model.vocab_size == config.num_logits == 64 and config.vocab_size == 128
    np.testing.assert_array_equal(ids, IDS)
    want = logits_of(MODELS[name], params)[..., IDS]
    np.testing.assert_allclose(logits_of(config, whole), want, atol=1e-5)
    if panels:
        np.testing.assert_array_equal(whole["head_panels"], linear.to_panels(whole["head"]))
        assert "qkv_panels" in whole["block_1"]
    else:
        assert linear.drop_panels(whole).keys() == whole.keys()


def test_what_was_written_is_read(tmp_path: pathlib.Path) -> None:
    config = saved(tmp_path)
    loaded = students.read(tmp_path)
    assert loaded.config == config
    jax.tree.map(np.testing.assert_array_equal, loaded.own, students.from_target(weights(), (0, 2)))
    np.testing.assert_array_equal(loaded.ids, IDS)
    assert students.is_student(tmp_path) and not students.is_student(tmp_path / "nowhere")
    tensors = load_file(tmp_path / "model.safetensors")
    assert not any("embed" in name or "head" in name for name in tensors)
    assert json.loads((tmp_path / "config.json").read_text())["specjax"]["embedding"] == "target"


def test_the_real_one_is_small_enough(tmp_path: pathlib.Path) -> None:
    """Two blocks of SmolLM2-135M and 8192 tokens: at most 16 MB."""
    real = ModelConfig(
        vocab_size=49152, width=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
        ffn_width=1536, tied=True,
    )  # fmt: skip
    config = students.config_of(real, (0, 29), 8192)
    own = students.random(config, jax.random.key(0))
    students.save(tmp_path, config, own, np.arange(8192, dtype=np.int32))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 16e6


def test_it_takes_the_dtype_of_the_target(tmp_path: pathlib.Path) -> None:
    saved(tmp_path)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights())
    _, whole, _ = students.load(tmp_path, half, TIED)
    assert {x.dtype for x in jax.tree.leaves(whole)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(width=32, head_dim=8), "a target of width=64; this target's is 32"),
        (dict(vocab_size=130), "vocab_size=128; this target's is 130: take the target it was"),
    ],
)
def test_another_target_is_refused(tmp_path: pathlib.Path, changes: dict, words: str) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match=words):
        students.load(tmp_path, weights(), dataclasses.replace(TIED, **changes))


def made_for(folder: pathlib.Path, content: bytes) -> str:
    """The fingerprint of a target's folder that holds these weights."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    return fingerprint.target(folder)


def test_a_target_of_other_weights_is_refused(tmp_path: pathlib.Path) -> None:
    """Where the student says whose it is, and the caller which target this is."""
    mark, other = made_for(tmp_path / "a", b"one"), made_for(tmp_path / "b", b"two")
    config = students.config_of(TIED, (0,), len(IDS))
    draft, own = tmp_path / "draft", students.from_target(weights(), (0,))
    students.save(draft, config, own, IDS, target=mark)
    words = (
        f"borrows the embedding of a target of fingerprint {mark[:12]}; the one in .*b has other"
    )
    with pytest.raises(ValueError, match=rf"{words} weights \({other[:12]}\): take the target it"):
        students.load(draft, weights(), TIED, target_folder=tmp_path / "b")
    with pytest.raises(ValueError, match=words):
        students.check_pair(draft, config, TIED, tmp_path / "b")
    students.load(draft, weights(), TIED, target_folder=tmp_path / "a")
    students.load(draft, weights(), TIED)
    students.save(draft, config, own, IDS)  # of nobody knows which
    students.load(draft, weights(), TIED, target_folder=tmp_path / "b")


def test_the_target_s_files_are_left_alone_if_the_student_does_not_say_whose_it_is(
    tmp_path: pathlib.Path,
) -> None:
    """A fingerprint takes a second a gigabyte."""
    saved(tmp_path)
    students.load(tmp_path, weights(), TIED, target_folder=tmp_path / "nowhere")


@pytest.mark.parametrize("layers", [(), (0, 3), (-1,)])
def test_blocks_the_target_lacks(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"layers=\(.*one of the target's blocks, 0 to 2"):
        students.config_of(TIED, layers)


UP = "model.layers.1.mlp.up_proj.weight"
FAULTS = {
    "missing": ({UP: None}, f"no tensor {UP}"),
    "no map": ({"token_map": None}, "no tensor token_map"),
    "unknown": ({"model.layers.2.mlp.up_proj.weight": np.zeros(3)}, "holds model.layers.2.mlp.up"),
    "a head": ({"lm_head.weight": np.zeros(3)}, "holds lm_head.weight, which a llama model"),
    "shape": ({UP: np.zeros((64, 63))}, rf"{UP} has shape \(64, 63\), expected \(64, 64\)"),
    "short map": ({"token_map": IDS[1:]}, r"token_map has shape \(63,\), expected \(64,\)"),
    "falling": ({"token_map": IDS[::-1].copy()}, "token_map must hold ascending ids"),
    "too large": ({"token_map": IDS + 2}, "token_map must hold ascending ids.*0 to 127"),
    "no numbers": ({"token_map": IDS.astype(np.float32)}, "token_map must hold ascending ids"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_files(tmp_path: pathlib.Path, name: str) -> None:
    saved(tmp_path)
    changes, words = FAULTS[name]
    path = tmp_path / "model.safetensors"
    tensors = {k: v for k, v in {**load_file(path), **changes}.items() if v is not None}
    save_file(tensors, path)
    with pytest.raises(ValueError, match=words):
        students.load(tmp_path, weights(), TIED)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (
            None,
            "this is no draft model as train.draft_model makes it: its config.json has no specj",
        ),
        (
            {"embedding": "own"},
            "has no specjax.embedding='target' .a whole model is loaded with sp",
        ),
        ({"embedding": "target", "draft_vocab_size": 129}, "draft_vocab_size=129; it must be 1"),
        ({"embedding": "target"}, "draft_vocab_size=None; it must be 1 to 128"),
        ({"embedding": "target", "family": "gpt2"}, "config.json: model_type='gpt2' is not supp"),
    ],
)
def test_faulty_configurations(tmp_path: pathlib.Path, about: Any, words: str) -> None:
    saved(tmp_path)
    path = tmp_path / "config.json"
    family = {"family": "llama"} if about else {}
    about = about and family | about
    config = json.loads(path.read_text()) | {"specjax": about}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=words):
        students.read(tmp_path)


@pytest.mark.parametrize("lacks", ["config.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_named(tmp_path: pathlib.Path, lacks: str) -> None:
    saved(tmp_path)
    (tmp_path / lacks).unlink()
    with pytest.raises(
        ValueError, match=rf"^{tmp_path}: this is no draft model .*: {lacks} is missing$"
    ):
        students.read(tmp_path)
    with pytest.raises(
        ValueError, match=r"nowhere: this is no draft model .*: config.json is missing .there is no"
    ):
        students.read(tmp_path / "nowhere")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "smollm3"])
def test_folders_of_earlier_versions_are_read(tmp_path: pathlib.Path, family: str) -> None:
    """They had the names of a whole model."""
    target = dataclasses.replace(TIED, family=family, qkv_bias=family == "qwen2")
    target = dataclasses.replace(target, qk_norm=family == "qwen3")
    if family == "smollm3":
        target = dataclasses.replace(target, rope_layers=(True, True, False))
    config = students.config_of(target, (0, 2), len(IDS))
    students.save(tmp_path, config, students.random(config, jax.random.key(0)), IDS)
    now = students.read(tmp_path)
    assert now.config == config
    path = tmp_path / "config.json"
    about = json.loads(path.read_text()) | saving.to_hf(config, np.float32)
    del about["specjax"]["family"]
    path.write_text(json.dumps(about))
    was = students.read(tmp_path)
    assert was.config == config
    jax.tree.map(np.testing.assert_array_equal, was.own, now.own)


def test_a_truncated_file(tmp_path: pathlib.Path) -> None:
    saved(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        students.read(tmp_path)


def test_it_is_no_whole_model(tmp_path: pathlib.Path) -> None:
    saved(tmp_path)
    refused = r"model_type='specjax_student' is not supp.*\(.*specjax.models.students\)"
    with pytest.raises(ValueError, match=refused):
        load(tmp_path)


def test_transformers_takes_it_for_no_model(tmp_path: pathlib.Path) -> None:
    """As a llama it would get a random embedding, and a warning."""
    transformers = pytest.importorskip("transformers")
    saved(tmp_path)
    with pytest.raises(ValueError, match="specjax_student"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="specjax_student"):
        transformers.AutoConfig.from_pretrained(tmp_path)
