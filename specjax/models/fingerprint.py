"""Fingerprints: whether data, features or a head belong to the target, tokenizer or template."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Iterable


def target(folder: pathlib.Path) -> str:
    """SHA-256 of a model folder's config.json and weights (half a second a gigabyte, or two)."""
    return _files([folder / "config.json", *sorted(folder.glob("*.safetensors"))])


def tokenizer(folder: str | os.PathLike[str]) -> str:
    """SHA-256 of a model folder's tokenizer files."""
    patterns = "tokenizer*", "vocab.json", "merges.txt", "special_tokens_map.json"
    files = pathlib.Path(folder)
    return _files(path for pattern in patterns for path in sorted(files.glob(pattern)))


def text(content: str) -> str:
    """SHA-256 of a text, such as a chat template."""
    return hashlib.sha256(content.encode()).hexdigest()


def _files(paths: Iterable[pathlib.Path]) -> str:
    """Of names and contents, in the order given."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.name} {digest}\n".encode())
    return whole.hexdigest()
