"""Reading GGUF files, with tiny ones written here."""

import gguf
import numpy as np
import pytest

from specjax.models import gguf_file
from tests.models import tiny_gguf


def test_weights_come_back_as_they_were(tmp_path):
    expected = tiny_gguf.hf_weights()
    file = gguf_file.open_file(tiny_gguf.write(tmp_path / "a.gguf", expected))
    found = dict(gguf_file.weights(file))
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_quantised_weights_are_dequantised(tmp_path):
    expected = tiny_gguf.hf_weights()
    kind = gguf.GGMLQuantizationType.Q8_0
    file = gguf_file.open_file(tiny_gguf.write(tmp_path / "a.gguf", expected, quantisation=kind))
    for name, array in gguf_file.weights(file):
        # Q8_0 keeps 127 steps up to each block's largest value.
        assert np.abs(array - expected[name]).max() <= np.abs(expected[name]).max() / 127


@pytest.mark.parametrize("heads, size", [(1, 2), (3, 8), (9, 64)])
@pytest.mark.parametrize("rest", [(), (5,)])
def test_unpermute_inverts_llama_cpps_permutation(heads, size, rest):
    array = np.arange(heads * size * int(np.prod(rest))).reshape(heads * size, *rest)
    np.testing.assert_array_equal(
        gguf_file.unpermute(tiny_gguf.permute(array, heads), heads), array
    )


def test_config(tmp_path):
    found = gguf_file.config(gguf_file.open_file(tiny_gguf.write(tmp_path / "a.gguf")))
    expected = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "vocab_size": len(tiny_gguf.vocabulary()),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert found == found | expected


def test_an_output_tensor_unties_the_head(tmp_path):
    weights = tiny_gguf.hf_weights()
    weights["output.weight"] = weights["model.embed_tokens.weight"]
    file = gguf_file.open_file(tiny_gguf.write(tmp_path / "a.gguf", weights))
    assert not gguf_file.config(file)["tie_word_embeddings"]
    assert "lm_head.weight" in dict(gguf_file.weights(file))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"architecture": "mamba"}, "general.architecture 'mamba'; only 'llama'"),
        ({"extra": {"llama.rope.scaling.factor": 2}}, "sets llama.rope.scaling.factor"),
        ({"extra": {"llama.expert_count": 8}}, "sets llama.expert_count"),
        ({"extra": {"llama.rope.dimension_count": 8}}, "dimension_count 8 for heads of size 16"),
        ({"extra": {"llama.block_count": None}}, "lacks the field 'llama.block_count'"),
    ],
)
def test_unsupported_settings_are_named(tmp_path, options, message):
    file = gguf_file.open_file(tiny_gguf.write(tmp_path / "a.gguf", **options))
    with pytest.raises(ValueError, match=message):
        gguf_file.config(file)


def test_an_unknown_tensor_is_named(tmp_path):
    weights = tiny_gguf.hf_weights() | {"rope_freqs.weight": np.ones(8, np.float32)}
    file = gguf_file.open_file(tiny_gguf.write(tmp_path / "a.gguf", weights))
    with pytest.raises(ValueError, match=r"tensor 'rope_freqs\.weight'"):
        dict(gguf_file.weights(file))


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="there is no GGUF file at"):
        gguf_file.open_file(tmp_path / "nothing.gguf")


def test_another_kind_of_file(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(ValueError, match="is not a GGUF file: it starts with"):
        gguf_file.open_file(path)


def test_truncated_at_any_length(tmp_path):
    whole = tiny_gguf.write(tmp_path / "a.gguf").read_bytes()
    path = tmp_path / "b.gguf"
    lengths = [5, 9, 16, 23, 24, 40, 200, 1000, *np.linspace(2000, len(whole) - 1, 20, dtype=int)]
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged or cut short at"):
            gguf_file.open_file(path)
