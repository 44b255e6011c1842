"""A tiny Llama with a byte-level BPE tokenizer, as a GGUF file made like the real one."""

import pathlib
from typing import Any

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, KV_HEADS, MIDDLE = 64, 2, 4, 2, 96
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 w", "1 2"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


def bytes_to_characters() -> list[str]:
    """Returns the character that byte-level BPE writes each of the 256 bytes as."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def vocabulary() -> list[str]:
    return SPECIAL + bytes_to_characters() + [merge.replace(" ", "") for merge in MERGES]


def hf_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Returns random weights under Hugging Face names, `[out, in]`."""
    rng = np.random.default_rng(seed)
    head = WIDTH // HEADS
    shapes = {"model.embed_tokens": (len(vocabulary()), WIDTH), "model.norm": (WIDTH,)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "input_layernorm": (WIDTH,),
            layer + "self_attn.q_proj": (WIDTH, WIDTH),
            layer + "self_attn.k_proj": (KV_HEADS * head, WIDTH),
            layer + "self_attn.v_proj": (KV_HEADS * head, WIDTH),
            layer + "self_attn.o_proj": (WIDTH, WIDTH),
            layer + "post_attention_layernorm": (WIDTH,),
            layer + "mlp.gate_proj": (MIDDLE, WIDTH),
            layer + "mlp.up_proj": (MIDDLE, WIDTH),
            layer + "mlp.down_proj": (WIDTH, MIDDLE),
        }
    return {
        f"{name}.weight": rng.standard_normal(shape).astype(np.float32) * 0.2
        for name, shape in shapes.items()
    }


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's own order of q and k rows, as in its convert_hf_to_gguf.py."""
    return (
        array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        .swapaxes(1, 2)
        .reshape(array.shape)
    )


def write(
    path: pathlib.Path,
    weights: dict[str, np.ndarray] | None = None,
    architecture: str = "llama",
    pre: str = "smollm",
    extra: dict[str, Any] | None = None,
    quantisation: gguf.GGMLQuantizationType | None = None,
) -> pathlib.Path:
    """Writes the model; `extra` adds uint32 fields, or removes those that are None."""
    names = {v + ".weight": k for k, v in _names().items()}
    writer = gguf.GGUFWriter(path, architecture)
    fields = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": WIDTH,
        "feed_forward_length": MIDDLE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": WIDTH // HEADS,
    }
    fields = {f"{architecture}.{name}": value for name, value in fields.items()} | (extra or {})
    for name, value in fields.items():
        if value is not None:
            writer.add_uint32(name, value)
    writer.add_float32(f"{architecture}.rope.freq_base", 100000.0)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary())
    types = [3] * len(SPECIAL) + [1] * (len(vocabulary()) - len(SPECIAL))
    writer.add_token_types(types)
    writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, array in (weights or hf_weights()).items():
        if "q_proj" in name:
            array = permute(array, HEADS)
        elif "k_proj" in name:
            array = permute(array, KV_HEADS)
        if quantisation is not None and array.ndim == 2:
            data = gguf.quantize(array, quantisation)
            writer.add_tensor(names.get(name, name), data, raw_dtype=quantisation)
        else:
            writer.add_tensor(names.get(name, name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _names() -> dict[str, str]:
    names = {"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm"}
    for i in range(LAYERS):
        for ours, theirs in {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }.items():
            names[f"blk.{i}.{ours}.weight"] = f"model.layers.{i}.{theirs}"
    return names
