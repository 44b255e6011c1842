"""Reading llama.cpp's GGUF files: configuration and weights under their Hugging Face names.

GGUF differs from a Hugging Face folder in three ways: names, quantised blocks, and the row order
of the q and k projections. llama.cpp rotates neighbouring pairs of a head (2i, 2i+1), the Hugging
Face layout rotates (i, i + D/2); its converter therefore interleaves each head's two halves
(`LlamaModel.permute` in convert_hf_to_gguf.py), and `weights` undoes that.
"""

import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFFile(NamedTuple):
    """An open GGUF file.

    Attributes:
        path: Where it lies.
        metadata: Its key-value pairs, such as "llama.block_count".
        tensors: The `gguf` package's tensors by their GGUF name; their data is memory-mapped.
    """

    path: pathlib.Path
    metadata: dict[str, Any]
    tensors: dict[str, Any]


def open_file(path: str | os.PathLike[str]) -> GGUFFile:
    """Opens a GGUF file; weights are read later, one at a time.

    Raises:
        ValueError: There is no such file, it is no GGUF file, or it is cut short.
    """
    import gguf

    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(f"there is no GGUF file at {path}; give the path of one")
    with path.open("rb") as file:
        if (magic := file.read(4)) != b"GGUF":
            raise ValueError(
                f"{path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'; "
                "give the path of a file that llama.cpp can read"
            )
    try:
        reader = gguf.GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(
            f"{path} is damaged or cut short at {path.stat().st_size} bytes ({error}); "
            "download it again"
        ) from error
    return GGUFFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def config(file: GGUFFile) -> dict[str, Any]:
    """Returns the contents of the config.json that a Hugging Face folder of this model has.

    Raises:
        ValueError: The architecture or a setting isn't supported, or a field is missing.
    """
    architecture = _field(file, "general.architecture")
    if architecture != "llama":
        raise ValueError(
            f"{file.path} has general.architecture {architecture!r}; only 'llama' is supported: "
            "use the model's Hugging Face folder instead"
        )
    for name in file.metadata:
        if name.startswith("llama.rope.scaling") or name == "llama.expert_count":
            raise ValueError(
                f"{file.path} sets {name}, which is not supported in a GGUF file: "
                "use the model's Hugging Face folder instead"
            )
    heads = _field(file, "llama.attention.head_count")
    width = _field(file, "llama.embedding_length")
    head_dim = file.metadata.get("llama.attention.key_length", width // heads)
    rotated = file.metadata.get("llama.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ValueError(
            f"{file.path} has llama.rope.dimension_count {rotated} for heads of size {head_dim}; "
            "only heads that are rotated whole are supported"
        )
    theta = _rounded(file.metadata.get("llama.rope.freq_base", 10000.0))
    token_ids = {
        f"{name}_token_id": file.metadata[f"tokenizer.ggml.{key}_token_id"]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in file.metadata
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": _field(file, "llama.feed_forward_length"),
        "num_hidden_layers": _field(file, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _field(file, "llama.context_length"),
        "rms_norm_eps": _rounded(_field(file, "llama.attention.layer_norm_rms_epsilon")),
        # transformers 5 reads the first, everything older the second.
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rope_theta": theta,
        "attention_bias": any(name.endswith("attn_q.bias") for name in file.tensors),
        "mlp_bias": any(name.endswith("ffn_up.bias") for name in file.tensors),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": int(_tensor(file, "token_embd.weight").shape[-1]),
        "dtype": "float32",
        **token_ids,
    }


def weights(file: GGUFFile) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (Hugging Face name, float32 array in the layout `[out, in]`), a tensor at a time.

    float32 holds every dequantised value exactly as llama.cpp computes it; the 16-bit types don't.

    Raises:
        ValueError: A tensor has no place in a Llama model, or a quantisation isn't known.
    """
    import gguf

    shape = config(file)
    heads = {"attn_q": shape["num_attention_heads"], "attn_k": shape["num_key_value_heads"]}
    for name, tensor in file.tensors.items():
        hf_name = _hf_name(file, name)
        try:
            array = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ValueError(
                f"{file.path} stores {name} as {tensor.tensor_type.name}, which the gguf package "
                "can't read; use a file with another quantisation, such as Q8_0"
            ) from error
        array = np.asarray(array, np.float32).reshape([int(n) for n in reversed(tensor.shape)])
        kind = name.split(".")[-2]
        yield hf_name, unpermute(array, heads[kind]) if kind in heads else array


def unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    """Puts the rows of a q or k projection (or bias) back into the Hugging Face order.

    Args:
        array: `[heads * D, in]` or `[heads * D]`, each head's rows interleaved: 0, D/2, 1, ...
        heads: How many heads the rows are of.

    Returns:
        The same shape, each head's rows in the order 0, 1, ..., D - 1.
    """
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def _hf_name(file: GGUFFile, name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if suffix in ("weight", "bias"):
        if stem in _TENSORS:
            return f"{_TENSORS[stem]}.{suffix}"
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        if block and block[2] in _BLOCK_TENSORS:
            return f"model.layers.{block[1]}.{_BLOCK_TENSORS[block[2]]}.{suffix}"
    raise ValueError(
        f"{file.path} holds the tensor {name!r}, which has no place in a Llama model: "
        "use the model's Hugging Face folder instead"
    )


def _field(file: GGUFFile, name: str) -> Any:
    if name not in file.metadata:
        raise ValueError(f"{file.path} lacks the field {name!r}; download or convert it again")
    return file.metadata[name]


def _tensor(file: GGUFFile, name: str) -> Any:
    if name not in file.tensors:
        raise ValueError(f"{file.path} lacks the tensor {name!r}; download or convert it again")
    return file.tensors[name]


def _rounded(value: float) -> float:
    """Returns the shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
