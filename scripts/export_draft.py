"""Makes a whole Hugging Face model of a draft model that borrows from its target.

  python -m scripts.export_draft --draft=runs/draft/best --out=FOLDER
      [--target=smollm2|FOLDER|HUB_ID] [--dtype=bfloat16|float32]

The folder holds the target's embedding and output matrix too, in full, and its tokenizer:
transformers' AutoModelForCausalLM loads it, and so does specjax.models.load. Of a draft vocabulary
nothing is left: the model has logits of every token.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from absl import app, flags, logging

from eval import chat as chats
from specjax.models import ModelConfig, loading, saving, students, weights
from specjax.models.linear import EMBED, HEAD

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}
_COPIED = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template*", "generation_config.json",
)  # fmt: skip
_BESIDE = ".export-"  # all files are in a folder of this prefix, until they are whole
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def run(
    draft: str | os.PathLike[str],
    out: str | os.PathLike[str],
    target: str = "smollm2",
    dtype: str = "bfloat16",
) -> None:
    """Writes the folder.

    Args:
      draft: folder of a draft model, as ``train.draft_model`` leaves it.
      out: made if it isn't there.
      target: the target's folder, a hub id, or "smollm2", the default model.
      dtype: of the weights.

    Raises:
      ValueError: a value or a folder that can't be used; names it.
    """
    if dtype not in DTYPES:
        raise ValueError(f"--dtype={dtype}; it must be one of {', '.join(DTYPES)}")
    folder, out = chats.find(target), pathlib.Path(out)
    if out.resolve() in (folder.resolve(), pathlib.Path(draft).resolve()):
        raise ValueError(f"--out={out} is the folder of a model that is read; name another one")
    student, model = students.read(draft), loading.read_config(folder)
    students.check_pair(draft, student.config, model, folder)
    config = dataclasses.replace(student.config, draft_vocab_size=0, tied=model.tied)
    own = [entry for entry in weights.plan(config) if entry.path not in (EMBED, HEAD)]
    tensors = _borrowed(folder, model, DTYPES[dtype])
    tensors |= saving.tensors_of(own, student.own, DTYPES[dtype])
    theirs = loading.read_json(folder / "config.json")
    special = {name: theirs[name] for name in _SPECIAL if name in theirs}
    files = [file for pattern in _COPIED for file in folder.glob(pattern) if file.is_file()]
    _write(out, {**saving.to_hf(config, DTYPES[dtype]), **special}, tensors, files)


def _borrowed(folder: pathlib.Path, model: ModelConfig, dtype: np.dtype) -> dict[str, np.ndarray]:
    """The target's embedding and output matrix: of a large model no more is read, nor put on a GPU.

    Raises:
      ValueError: see ``loading.load``.
    """
    tensors, entries = loading.Tensors(folder), weights.plan(model)
    tensors.check([part for entry in entries for part in entry.parts], model)
    names = [part.name for e in entries if e.path in (EMBED, HEAD) for part in e.parts]
    return {name: tensors.read(name).astype(dtype, copy=False) for name in names}


def _write(
    out: pathlib.Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    files: Iterable[pathlib.Path],
) -> None:
    """Writes a model and copies files to it: all of them in full beside, then into place."""
    out.mkdir(parents=True, exist_ok=True)
    with saving.swept(out, f"{_BESIDE}????????"):
        beside = pathlib.Path(tempfile.mkdtemp(prefix=_BESIDE, dir=out))
        try:
            saving.write(beside, config, tensors)
            for file in files:
                shutil.copyfile(file, beside / file.name)
            for file in list(beside.iterdir()):
                file.replace(out / file.name)
        finally:
            shutil.rmtree(beside)


def main(argv: list[str]) -> None:
    """Exports what the flags name."""
    del argv
    values = {name: flags.FLAGS[name].value for name in ("draft", "out", "target", "dtype")}
    try:
        run(**values)
    except (ValueError, OSError) as error:
        print(f"export_draft: {error}", file=sys.stderr, flush=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    print(f"{values['out']} holds a whole model", flush=True)


if __name__ == "__main__":
    flags.DEFINE_string("draft", None, "Folder of a draft model.", required=True)
    flags.DEFINE_string("out", None, "The folder to write.", required=True)
    flags.DEFINE_string("target", "smollm2", "The default model, a folder, or a hub id.")
    flags.DEFINE_enum("dtype", "bfloat16", list(DTYPES), "Of the weights.")
    logging.set_verbosity(logging.WARNING)  # INFO would show jax's search for backends
    app.run(main)
