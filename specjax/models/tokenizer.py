"""Tokenizers: loading one from a folder or the hub, and building one from a GGUF file's metadata.

Only byte-level BPE is built here, which is what GGUF calls "gpt2".
"""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

# How text is cut before BPE, by "tokenizer.ggml.pre". They differ in digits alone: these split
# "1234" into four tokens.
_SPLITS_DIGITS = {"smollm": True, "gpt-2": False}

# Values of "tokenizer.ggml.token_type".
_CONTROL, _USER_DEFINED = 3, 4


def load(name_or_path: str | os.PathLike[str], revision: str | None = None) -> Any:
    """Loads a tokenizer (a transformers `PreTrainedTokenizerBase`).

    Args:
        name_or_path: A local folder or a hub id; "owner/name@revision" is understood.
        revision: A branch, tag or commit of the hub repository.

    Raises:
        ValueError: There is no tokenizer there, or it can't be read.
    """
    # Otherwise the import prints that there is no PyTorch, which is as it should be.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    import transformers

    name = os.fspath(name_or_path)
    if not os.path.isdir(name) and revision is None and "@" in name:
        name, revision = name.rsplit("@", 1)
    try:
        return transformers.AutoTokenizer.from_pretrained(name, revision=revision)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(
            f"there is no tokenizer to load at {name!r}: give a folder with a tokenizer.json, or "
            f"the id of a repository on the hub ({reason})"
        ) from error


def from_gguf(metadata: Mapping[str, Any]) -> Any:
    """Builds the tokenizer (a `tokenizers.Tokenizer`) that a GGUF file describes.

    Args:
        metadata: The file's key-value pairs (`gguf_file.GGUFFile.metadata`).

    Raises:
        ValueError: The kind of tokenizer isn't supported, or a field is missing.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    kind, pre = _field(metadata, "model"), _field(metadata, "pre")
    if kind != "gpt2":
        raise ValueError(f"tokenizer.ggml.model is {kind!r}; only 'gpt2' (byte-level BPE) works")
    if pre not in _SPLITS_DIGITS:
        raise ValueError(f"tokenizer.ggml.pre is {pre!r}; supported are {sorted(_SPLITS_DIGITS)}")
    tokens, types = _field(metadata, "tokens"), _field(metadata, "token_type")
    # Two tokens never hold a space: byte-level BPE writes it as another character.
    merges = [tuple(merge.split(" ")) for merge in _field(metadata, "merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ValueError("tokenizer.ggml.tokens names a token twice; the file is damaged")

    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(metadata.get("tokenizer.ggml.add_space_prefix", False)),
        trim_offsets=True,
        use_regex=True,
    )
    digits = [pre_tokenizers.Digits(individual_digits=True)] if _SPLITS_DIGITS[pre] else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    for token, token_type in zip(tokens, types, strict=True):
        if token_type == _CONTROL:
            tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True)])
        elif token_type == _USER_DEFINED:
            tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False)])
    return tokenizer


def save_from_gguf(metadata: Mapping[str, Any], folder: str | os.PathLike[str]) -> list[str]:
    """Writes the tokenizer files of a Hugging Face folder; returns their names.

    Args:
        metadata: As for `from_gguf`.
        folder: An existing folder.
    """
    folder = pathlib.Path(folder)
    tokens = _field(metadata, "tokens")
    special = {
        f"{name}_token": tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("pad", "padding"),
            ("unk", "unknown"),
        )
        if f"tokenizer.ggml.{key}_token_id" in metadata
    }
    settings = {
        # The class that takes tokenizer.json as it is. The model-specific ones of transformers 5
        # build a pre-tokenizer of their own instead, which wouldn't split digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": bool(metadata.get("tokenizer.ggml.add_space_prefix", False)),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(
            f"{metadata.get('general.architecture')}.context_length", 2**30
        ),
        **special,
    }
    from_gguf(metadata).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "special_tokens_map.json", special)
    names = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
    if template := metadata.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        names.append("chat_template.jinja")
    return names


def _field(metadata: Mapping[str, Any], name: str) -> Any:
    name = f"tokenizer.ggml.{name}"
    if name not in metadata:
        raise ValueError(f"the GGUF metadata lacks the field {name!r}; download the file again")
    return metadata[name]


def _write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
