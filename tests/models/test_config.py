"""config.json of each family, in old and new spellings; what is not supported is named."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import ModelConfig, RopeConfig, rope, transformer_target

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 20,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 8,
}


def read(**changes: Any) -> ModelConfig:
    return ModelConfig.from_hf({**LLAMA, **changes})


def test_one_configuration_is_one_target() -> None:
    """Programs are keyed by the target's functions: an equal config must not recompile."""
    assert transformer_target(read()) is transformer_target(read())
    assert transformer_target(read()) is not transformer_target(read(vocab_size=98))


@pytest.mark.parametrize(("given", "heads"), [(None, 4), (1, 1), (2, 2), (4, 4)])
def test_key_value_heads(given: int | None, heads: int) -> None:
    """F65: absent means as many as query heads; the head size is not hidden / heads."""
    config = read() if given is None else read(num_key_value_heads=given)
    assert (config.num_kv_heads, config.head_dim) == (heads, 8)


def test_rope_in_both_styles() -> None:
    """F52: a base read from one field only would silently be 10000."""
    old = read(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    new = read(rope_parameters={"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0})
    assert old.rope == new.rope == RopeConfig(base=5e5, scaling="linear", factor=2.0)
    positions = jnp.array([[0, 3, 900]], jnp.int32)
    cos, sin = rope.cos_sin(positions, rope.frequencies(new.rope, 8))
    plain = rope.cos_sin(positions, rope.frequencies(RopeConfig(base=5e5), 8))
    assert not np.allclose(cos, plain[0]) and not np.allclose(sin, plain[1])
    angle = 3 / 2 / 5e5 ** (np.arange(4) / 4)
    np.testing.assert_allclose(np.ravel(cos[0, 1])[:4], np.cos(angle), rtol=1e-5)


def test_families() -> None:
    assert read(model_type="qwen2").qkv_bias and not read(model_type="qwen2").out_bias
    assert read(model_type="qwen3").qk_norm
    smollm3 = read(model_type="smollm3", num_hidden_layers=8)
    assert smollm3.rope_layers == (True, True, True, False) * 2
    assert smollm3.tied and smollm3.rope.base == 2e6
    assert read(attention_bias=True).out_bias and read(mlp_bias=True).mlp_bias


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2'"),
        ({"model_type": "mistral"}, "sliding_window=4096"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding_window=64"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9},
            "sliding_window=9",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type='yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor'"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"num_local_experts": 8}, "num_local_experts=8"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_kv_heads=3"),
        ({"head_dim": 7}, "head_dim=7"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"num_attention_heads": 0, "head_dim": None}, "num_attention_heads=0; it must be an int"),
        ({"num_attention_heads": "4"}, "num_attention_heads='4'; it must be an integer"),
        ({"hidden_size": [20], "head_dim": None}, "hidden_size=[20]; it must be an integer"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps='small'; it must be a number above 0"),
        ({"rope_scaling": "yarn"}, "rope_scaling='yarn'; it must be an object"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor='2'; it must be a number"),
        ({"layer_types": 3}, "layer_types=3; it must be a list"),
        ({"model_type": "mistral", "sliding_window": "x"}, "sliding_window='x'"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        read(**changes)


def test_a_window_that_never_acts_is_fine() -> None:
    assert read(model_type="mistral", sliding_window=None).family == "mistral"
    window = {"sliding_window": 4096, "max_position_embeddings": 4096}
    assert read(model_type="mistral", **window).max_positions == 4096


def test_counts_its_parameters() -> None:
    """What the preflight multiplies by the dtype's size."""
    w, q, f = 20, 32, 48
    layer = 2 * w + w * 3 * q + q * w + 3 * w * f
    assert read().num_parameters == 2 * layer + w + 2 * 97 * w
    assert read(tie_word_embeddings=True).num_parameters == 2 * layer + w + 97 * w
