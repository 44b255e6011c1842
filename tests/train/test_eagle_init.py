"""What a new head takes of its target, and what it says it doesn't."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.heads import EagleConfig
from specjax.models import ModelConfig
from specjax.models.transformer import init_params
from train import eagle_init

MODEL = ModelConfig(
    vocab_size=12, width=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, ffn_width=24
)
HEAD = EagleConfig(
    version=3, target_width=16, layers=(1, 2), draft_vocab_size=5, width=16, num_heads=2,
    num_kv_heads=1, head_dim=8, ffn_width=24,
)  # fmt: skip
FIRST = dataclasses.replace(HEAD, version=1, layers=(-1,), own_head=False)


def new(config, **changes):
    model = dataclasses.replace(MODEL, **changes)
    params = init_params(model, jax.random.key(0))
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(16, 5)), jnp.float32)
    head = eagle_init.new("target", config, model, params, rows, jax.random.key(1))
    return head, params["block_1"], rows


def test_a_head_begins_as_the_last_block(capsys) -> None:
    for config, qkv in ((HEAD, slice(16, None)), (FIRST, slice(None))):
        head, last, rows = new(config)
        for name in ("out", "mlp_norm", "gate_up", "down"):
            np.testing.assert_array_equal(head[name], last[name])
        np.testing.assert_array_equal(head["qkv"][qkv], last["qkv"])
        if config.own_head:
            np.testing.assert_array_equal(head["head"], rows)
            assert not capsys.readouterr().out, "all of the block was taken"


LEFT_OUT = {
    "Qwen3": (HEAD, dict(qk_norm=True), "k_norm, q_norm"),
    "Qwen2": (HEAD, dict(qkv_bias=True), "qkv_bias"),
    "SmolLM3": (HEAD, dict(rope_layers=(True, False)), "attention without positions"),
    "EAGLE-1": (FIRST, dict(out_bias=True), "attention_norm, out_bias"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_told(capsys, name) -> None:
    config, changes, what = LEFT_OUT[name]
    new(config, **changes)
    said = f"last block without its {what}, which an EAGLE-{config.version} head doesn't have\n"
    assert capsys.readouterr().out.endswith(said)


def test_a_rotation_in_the_last_block_alone_is_taken(capsys) -> None:
    new(HEAD, rope_layers=(False, True))
    assert not capsys.readouterr().out


def test_a_block_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ffn_width 24; the head has 16 and 20: take config\.ffn"):
        new(dataclasses.replace(HEAD, ffn_width=20))
