"""A chat model of random weights, small enough to compile in a second, as a folder."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from specjax.drafters import corpus_table
from specjax.heads import EagleConfig, MedusaConfig, MedusaHeads, formats
from specjax.models import fingerprint, loading, students
from tests import support
from train import data, eagle_init

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}
END = "<|end|>"


def make_folder(folder: pathlib.Path, seed: int = 0, **changes) -> pathlib.Path:
    """Writes config, weights, tokenizer and chat template; returns the folder.

    Args:
        folder: Made if it isn't there.
        seed: Of the weights.
        **changes: Fields of config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    config = {**CONFIG, "vocab_size": tokenizer.get_vocab_size(), **changes}
    end = tokenizer.token_to_id(END)
    write = lambda name, value: (folder / name).write_text(json.dumps(value))  # noqa: E731
    write("config.json", config | {"eos_token_id": end})
    write("generation_config.json", {"eos_token_id": [end]})
    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END})
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}" + END
        + "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )  # fmt: skip
    save_file(_weights(config, seed), folder / "model.safetensors")
    return folder


def make_shards(folder: pathlib.Path, target: pathlib.Path, **about: str) -> pathlib.Path:
    """Writes 24 documents for that model to learn: each repeats a few tokens of its own.

    Args:
        folder: Made if it isn't there.
        target: Whose tokens they are.
        **about: Entries of the manifest to have instead.
    """
    rng = np.random.default_rng(0)
    samples = []
    for number in range(24):
        tokens = np.tile(rng.integers(97, 105, 4), 8)
        samples.append(data.Sample(str(number), tokens, np.arange(32) >= 8))
    data.write(folder, samples, {"tokenizer": fingerprint.tokenizer(target)} | about)
    return folder


def make_head(folder: pathlib.Path) -> pathlib.Path:
    """Writes an EAGLE-3 head of random weights for that model; returns the folder."""
    config = EagleConfig(
        version=3,
        target_width=CONFIG["hidden_size"],
        layers=(1, 2),
        draft_vocab_size=64,
        width=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        ffn_width=48,
    )
    vocab = _tokenizer().get_vocab_size()
    ids = np.arange(config.draft_vocab_size, dtype=np.int32) * 4
    formats.save(folder, config, eagle_init.random(config, jax.random.key(0)), ids, vocab)
    return folder


def make_medusa(folder: pathlib.Path) -> pathlib.Path:
    """Writes three Medusa heads of random output matrices for that model; returns the folder."""
    config = MedusaConfig(CONFIG["hidden_size"], 3, 1, 64)
    vocab = _tokenizer().get_vocab_size()
    ids = np.arange(config.draft_vocab_size, dtype=np.int32) * 4
    one = np.zeros([1, config.target_width], np.float32)
    heads = MedusaHeads(config).init(jax.random.key(0), one)["params"]
    formats.save(folder, config, heads, ids, vocab)
    return folder


def make_corpus(folder: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Writes a corpus table for that model, of what follows some bytes; returns the folder."""
    counts = {(a,): {(a + 1) % 64: 3, a: 1} for a in range(256)} | {(1, 2): {5: 2}}
    table = support.table_of(counts, [0.5, 0.5])
    about = {"tokenizer": fingerprint.tokenizer(target)}
    corpus_table.save(folder, dataclasses.replace(table, about=about))
    return folder


def make_student(folder: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Writes a draft model of all blocks of that model, as if distilled; returns the folder.

    Its draft vocabulary is all ids but one, so a draft is refused only where that one belongs.
    """
    model = loading.read_config(target)
    layers, size = range(model.num_layers), model.vocab_size - 1
    params = loading.load_params(target, model, panels=False)
    own = students.from_target(params, layers)
    ids = np.arange(size, dtype=np.int32)
    students.save(folder, students.config_of(model, layers, size), own, ids)
    return folder


def _tokenizer() -> tokenizers.Tokenizer:
    """Bytes, and the token that ends a message."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(END, special=True)])
    return tokenizer


def _weights(config: dict, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    width, ffn, heads = config["hidden_size"], config["intermediate_size"], 4
    kv = width // heads * config["num_key_value_heads"]

    def matrix(*shape: int) -> np.ndarray:
        return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    ones = np.ones(width, np.float32)
    # A large embedding, so that the logits differ clearly: rounding must decide nothing.
    out = {
        "model.norm.weight": ones,
        "model.embed_tokens.weight": 8 * matrix(config["vocab_size"], width),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        out |= {
            at + "input_layernorm.weight": ones,
            at + "post_attention_layernorm.weight": ones,
            at + "self_attn.q_proj.weight": matrix(width, width),
            at + "self_attn.k_proj.weight": matrix(kv, width),
            at + "self_attn.v_proj.weight": matrix(kv, width),
            at + "self_attn.o_proj.weight": matrix(width, width),
            at + "mlp.gate_proj.weight": matrix(ffn, width),
            at + "mlp.up_proj.weight": matrix(ffn, width),
            at + "mlp.down_proj.weight": matrix(width, ffn),
        }
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = 8 * matrix(config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}.self_attn."
        if config["model_type"] == "qwen2":
            sizes = {"q": width, "k": kv, "v": kv}
            out |= {f"{at}{x}_proj.bias": 3 * matrix(size) for x, size in sizes.items()}
        if config["model_type"] == "qwen3":
            out |= {f"{at}{x}_norm.weight": 1 + matrix(width // heads) for x in "qk"}
    return out
