"""The transformer against PyTorch's: random tiny models of each family, and the real SmolLM2."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import load
from specjax.testing import check_target

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 2e-4  # float32, absolute
VOCAB, LENGTH = 97, 40
TINY = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, grouped": ("Llama", {"num_key_value_heads": 2}),
    "llama, one head each": ("Llama", {}),
    "llama 3 rope, one kv head, tied": (
        "Llama",
        {
            "num_key_value_heads": 1,
            "rope_parameters": LLAMA3_ROPE,
            "tie_word_embeddings": True,
        },
    ),
    "llama, linear rope and biases": (
        "Llama",
        {"rope_parameters": LINEAR_ROPE, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, explicit head size": (
        "Llama",
        {"hidden_size": 20, "head_dim": 8, "num_key_value_heads": 2},
    ),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": None}),
    "qwen 2": ("Qwen2", {"num_key_value_heads": 2}),
    "qwen 3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
    "smollm 3": (
        "SmolLM3",
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}


def reference(folder: pathlib.Path, family: str, changes: dict[str, Any], seed: int) -> Any:
    """A random PyTorch model, saved to the folder."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**TINY, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():  # norms and biases too, which start at 1 and 0
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    return model


def run_torch(model: Any, ids: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits, and the residual streams: entering each block, and the last one normed."""
    with torch.no_grad():
        out = model(torch.tensor(ids), output_hidden_states=True)
    return out.logits.numpy(), [stream.numpy() for stream in out.hidden_states]


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_pytorch(name: str, tmp_path: pathlib.Path, seed: int) -> None:
    """A whole pass, cached passes of 1 and k + 1 tokens, ragged rows, and the features."""
    model = reference(tmp_path, *FAMILIES[name], seed)
    target, params, _ = load(tmp_path)
    ids = np.random.default_rng(seed).integers(0, VOCAB, (2, LENGTH))
    logits, streams = run_torch(model, ids)
    tokens = jnp.asarray(ids, jnp.int32)
    apply = jax.jit(target.apply, static_argnames="layers")

    layers = (0, 1, -1)
    whole, features, _ = apply(params, tokens, target.init_cache(2, 64, jnp.float32), layers=layers)
    np.testing.assert_allclose(whole, logits, rtol=0, atol=TOLERANCE)
    want = np.concatenate([streams[0], streams[1], streams[-1]], -1)
    np.testing.assert_allclose(features, want, rtol=0, atol=TOLERANCE)

    cache, pieces = target.init_cache(2, 64, jnp.float32), []
    for first, last in ((0, 30), (30, 31), (31, 36), (36, 37), (37, 40)):
        piece, _, cache = apply(params, tokens[:, first:last], cache)
        pieces.append(piece)
    np.testing.assert_allclose(np.concatenate(pieces, 1), logits, rtol=0, atol=TOLERANCE)

    lengths = jnp.array([11, 29], jnp.int32)  # rows part, as after rounds of other counts
    slots = lengths[:, None] + jnp.arange(5, dtype=jnp.int32)
    ragged, _, _ = apply(
        params, jnp.take_along_axis(tokens, slots, 1), target.rollback(cache, lengths)
    )
    want = np.take_along_axis(logits, np.asarray(slots)[:, :, None], 1)
    np.testing.assert_allclose(ragged, want, rtol=0, atol=TOLERANCE)


def test_keeps_every_promise_of_a_target(tmp_path: pathlib.Path, seed: int) -> None:
    reference(tmp_path, "Qwen3", {"num_key_value_heads": 2}, seed)
    target, params, _ = load(tmp_path)
    check_target(target, params, tolerance=1e-4)


def test_a_tree_equals_its_chains(tmp_path: pathlib.Path, seed: int) -> None:
    """Positions and an ancestor mask: each branch's logits are those of its own chain."""
    reference(tmp_path, "Llama", {"num_key_value_heads": 2}, seed)
    target, params, _ = load(tmp_path)
    apply = jax.jit(target.apply)
    rng = np.random.default_rng(seed)
    prompt = jnp.asarray(rng.integers(0, VOCAB, (1, 9)), jnp.int32)
    nodes = jnp.asarray(rng.integers(0, VOCAB, (1, 6)), jnp.int32)
    parents = [-1, 0, 0, 1, 1, 2]
    depths, mask = [], np.eye(6, dtype=bool)
    for node, parent in enumerate(parents):
        depths.append(0 if parent < 0 else depths[parent] + 1)
        if parent >= 0:
            mask[node] |= mask[parent]
    _, _, cache = apply(params, prompt, target.init_cache(1, 32, jnp.float32))
    positions = 9 + jnp.asarray([depths], jnp.int32)
    tree, _, after = apply(params, nodes, cache, positions=positions, mask=jnp.asarray(mask)[None])
    for node in range(6):
        path = np.flatnonzero(mask[node])
        chain, _, _ = apply(params, nodes[:, path], cache)
        np.testing.assert_allclose(tree[0, node], chain[0, -1], rtol=0, atol=TOLERANCE)

    path = jnp.asarray([[0, 2, 5]], jnp.int32)  # keep a branch: what follows sees it alone
    assert target.keep is not None
    kept = target.rollback(target.keep(after, cache.length, path), cache.length + 3)
    follow, _, _ = apply(params, nodes[:, :1], kept)
    chain = jnp.concatenate([prompt, nodes[:, path[0]], nodes[:, :1]], 1)
    want, _, _ = apply(params, chain, target.init_cache(1, 32, jnp.float32))
    np.testing.assert_allclose(follow[0, 0], want[0, -1], rtol=0, atol=TOLERANCE)


@pytest.mark.model
def test_the_real_model_equals_pytorch(smollm2_folder: pathlib.Path, seed: int) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype="float32")
    target, params, config = load(smollm2_folder)
    ids = np.random.default_rng(seed).integers(0, config.vocab_size, (1, 24))
    logits, _ = run_torch(model.eval(), ids)
    tokens = jnp.asarray(ids, jnp.int32)
    apply = jax.jit(target.apply)
    cache, pieces = target.init_cache(1, 64, jnp.float32), []
    for first, last in ((0, 12), (12, 13), (13, 18), (18, 24)):
        piece, _, cache = apply(params, tokens[:, first:last], cache)
        pieces.append(piece)
    np.testing.assert_allclose(np.concatenate(pieces, 1), logits, rtol=0, atol=TOLERANCE)
