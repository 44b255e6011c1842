"""Loading: one file or several, tied or not, and one clear sentence for what is wrong."""

from __future__ import annotations

import json
import pathlib
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax import machine
from specjax.models import ModelConfig, drop_panels, linear, load, loading, transformer_target

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 31,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
LAYER = {
    "input_layernorm": (8,),
    "post_attention_layernorm": (8,),
    "self_attn.q_proj": (8, 8),
    "self_attn.k_proj": (8, 8),
    "self_attn.v_proj": (8, 8),
    "self_attn.o_proj": (8, 8),
    "mlp.gate_proj": (12, 8),
    "mlp.up_proj": (12, 8),
    "mlp.down_proj": (8, 12),
}


def tensors(seed: int, head: str) -> dict[str, np.ndarray]:
    """``head``: "absent", "own", or "equal" to the embedding."""
    rng = np.random.default_rng(seed)
    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in LAYER.items()}
    shapes |= {"model.embed_tokens.weight": (31, 8), "model.norm.weight": (8,)}
    if head != "absent":
        shapes["lm_head.weight"] = (31, 8)
    out = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    if head == "equal":
        out["lm_head.weight"] = out["model.embed_tokens.weight"].copy()
    return out


def write(folder: pathlib.Path, weights: dict[str, np.ndarray], *, shards: int, tied: bool) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": tied}))
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return
    where = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(sorted(weights))}
    for file in set(where.values()):
        part = {name: weights[name] for name in weights if where[name] == file}
        save_file(part, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def logits_of(folder: pathlib.Path) -> np.ndarray:
    target, params, _ = load(folder)
    tokens = jnp.array([[1, 2, 3]], jnp.int32)
    cache = target.init_cache(1, 8, jnp.float32)
    return np.asarray(jax.jit(target.apply)(params, tokens, cache)[0])


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("tied", "head"), [(True, "absent"), (True, "equal"), (False, "own"), (False, "equal")]
)
def test_files_and_heads(tmp_path: pathlib.Path, seed: int, shards: int, tied: bool, head: str):
    """F64: whatever the files look like, the logits are those of the weights in them."""
    weights = tensors(seed, head)
    write(tmp_path, weights, shards=shards, tied=tied)
    target, params, config = load(tmp_path)
    assert target is transformer_target(config) and config.tied == tied
    want = weights["model.layers.0.self_attn.q_proj.weight"].T
    np.testing.assert_array_equal(params["block_0"]["qkv"][:, :8], want)
    np.testing.assert_array_equal(params["block_0"]["down"].shape, (12, 8))
    one = tmp_path / "one"
    one.mkdir()
    own = {**weights, "lm_head.weight": weights.get("lm_head.weight", weights[EMBED])}
    write(one, own, shards=1, tied=False)
    np.testing.assert_allclose(logits_of(tmp_path), logits_of(one), rtol=0, atol=1e-5)


EMBED = "model.embed_tokens.weight"


@pytest.mark.parametrize(("tied", "head"), [(True, "own"), (False, "absent")])
def test_config_and_files_that_disagree(
    tmp_path: pathlib.Path, seed: int, tied: bool, head: str
) -> None:
    write(tmp_path, tensors(seed, head), shards=1, tied=tied)
    with pytest.raises(ValueError, match=r"lm_head\.weight.*tie_word_embeddings|tie_word_emb"):
        load(tmp_path)


def test_dtype_asked_for(tmp_path: pathlib.Path, seed: int) -> None:
    write(tmp_path, tensors(seed, "own"), shards=1, tied=False)
    for dtype in (jnp.float32, jnp.bfloat16):
        _, params, _ = load(tmp_path, dtype)
        assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(dtype)}


def test_missing_unknown_and_mis_shaped_tensors(tmp_path: pathlib.Path, seed: int) -> None:
    good = tensors(seed, "own")
    name = "model.layers.0.mlp.up_proj.weight"
    for change, words in (
        ({name: None}, f"no tensor {name}"),
        ({"model.layers.0.extra.weight": np.zeros(3, np.float32)}, "extra"),
        ({name: np.zeros((8, 12), np.float32)}, r"\(8, 12\), expected \(12, 8\)"),
    ):
        weights = {k: v for k, v in {**good, **change}.items() if v is not None}
        write(tmp_path, weights, shards=1, tied=False)
        with pytest.raises(ValueError, match=words):
            load(tmp_path)


def test_truncated_and_missing_files(tmp_path: pathlib.Path, seed: int) -> None:
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        load(tmp_path)
    write(tmp_path, tensors(seed, "own"), shards=2, tied=False)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-1\.safetensors, which is missing"):
        load(tmp_path)
    write(tmp_path, tensors(seed, "own"), shards=1, tied=False)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load(tmp_path)
    file.unlink()
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(ValueError, match="has neither"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        load(tmp_path)


def test_no_such_folder() -> None:
    with pytest.raises(ValueError, match="no folder 'nowhere'"):
        load("nowhere")


def hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[str, str | None]]:
    """Puts a hub in place that answers with a folder or an error; returns what it is asked."""
    import huggingface_hub

    asked: list[tuple[str, str | None]] = []

    def download(repo: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert "*.bin" not in allow_patterns
        asked.append((repo, revision))
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_hub_ids(tmp_path: pathlib.Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, tensors(seed, "own"), shards=1, tied=False)
    asked = hub(monkeypatch, tmp_path)
    assert isinstance(load("owner/name")[2], ModelConfig)
    load("owner/name@v1.0")
    assert asked == [("owner/name", None), ("owner/name", "v1.0")]


def test_a_refused_download_names_the_licence_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import errors

    hub(monkeypatch, errors.GatedRepoError("gated", response=mock.MagicMock()))
    with pytest.raises(PermissionError, match=r"https://huggingface\.co/o/n and set HF_TOKEN"):
        load("o/n")


def test_every_tensor_is_read(tmp_path: pathlib.Path, seed: int) -> None:
    """Each weight changes the logits: none is dropped or read twice."""
    write(tmp_path, tensors(seed, "own"), shards=1, tied=False)
    base, file = logits_of(tmp_path), tmp_path / "model.safetensors"
    good = load_file(file)
    for name, value in good.items():
        save_file({**good, name: value + np.float32(0.5)}, file)
        assert np.max(np.abs(logits_of(tmp_path) - base)) > 1e-3, name


@pytest.mark.parametrize("lacks_avx512", [True, False])
def test_small_models_on_cpu_hold_their_matrices_as_panels_too(
    tmp_path: pathlib.Path, seed: int, lacks_avx512: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "lacks_avx512", lambda: lacks_avx512)
    width, sizes = 128, dict(hidden_size=128, intermediate_size=192, vocab_size=256)
    config = {**CONFIG, **sizes, "num_attention_heads": 4, "num_key_value_heads": 2}
    config |= {"head_dim": 32, "num_hidden_layers": 1, "tie_word_embeddings": True}
    rng = np.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (256, width), "model.norm.weight": (width,)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes |= {
            at + f"{norm}_layernorm.weight": (width,) for norm in ("input", "post_attention")
        }
        shapes |= {at + f"self_attn.{x}_proj.weight": (128, width) for x in "qo"}
        shapes |= {at + f"self_attn.{x}_proj.weight": (64, width) for x in "kv"}
        shapes |= {at + f"mlp.{x}_proj.weight": (192, width) for x in ("gate", "up")}
        shapes |= {at + "mlp.down_proj.weight": (width, 192)}
    save_file(
        {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, params, _ = load(tmp_path)
    for name in ("qkv", "out", "gate_up", "down"):
        block = params["block_0"]
        np.testing.assert_array_equal(block[f"{name}_panels"], linear.to_panels(block[name]))
    np.testing.assert_array_equal(params["head_panels"], linear.to_panels(params["embed"].T))
    for panels in (True, False):
        asked = load(tmp_path, jnp.bfloat16, panels=panels)
        shapes = loading.shapes(asked[2], jnp.bfloat16, panels=panels)
        assert jax.tree.map(jnp.shape, asked[1]) == jax.tree.map(lambda x: x.shape, shapes)
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.bfloat16)}
    plain = load(tmp_path, panels=False)[1]
    assert jax.tree.structure(drop_panels(params)) == jax.tree.structure(plain)
    assert not any("panels" in str(path) for path, _ in jax.tree_util.tree_leaves_with_path(plain))
    monkeypatch.setattr(loading, "_PANELS_UP_TO", 1000)
    _, params, _ = load(tmp_path)
    assert "head_panels" not in params and "qkv_panels" not in params["block_0"]
