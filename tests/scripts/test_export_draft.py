"""A draft model as a whole Hugging Face folder, against PyTorch."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scripts import export_draft
from specjax.models import fingerprint, load, loading, students
from tests.eval import tiny

LAYERS, SIZE = (1,), 64


def make(tmp_path: pathlib.Path, **changes) -> tuple[pathlib.Path, pathlib.Path, np.ndarray]:
    """A target and a draft model of it; the folders, and the draft vocabulary."""
    folder = tiny.make_folder(tmp_path / "target", **changes)
    _, params, config = load(folder, panels=False)
    ids = np.arange(SIZE, dtype=np.int32) * 4 + 1
    own = students.from_target(params, LAYERS)
    students.save(tmp_path / "draft", students.config_of(config, LAYERS, SIZE), own, ids)
    return folder, tmp_path / "draft", ids


UNTIED = {"tie_word_embeddings": False}
SMOLLM3 = {"model_type": "smollm3", "no_rope_layers": [1, 0], "pad_token_id": 0}
TARGETS = {
    "llama": {},
    "llama, stretched": {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 5e4
    },
    "llama, untied": UNTIED,
    "mistral, untied": {"model_type": "mistral", "sliding_window": None, **UNTIED},
    "qwen2": {"model_type": "qwen2"},
    "qwen2, untied": {"model_type": "qwen2", **UNTIED},
    "qwen3": {"model_type": "qwen3", "head_dim": 8},
    "smollm3": SMOLLM3,
}  # fmt: skip


@pytest.mark.parametrize("changes", TARGETS.values(), ids=TARGETS)
def test_transformers_loads_it_and_says_the_same(tmp_path: pathlib.Path, changes: dict) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder, draft, ids = make(tmp_path, **changes)
    out = tmp_path / "out"
    export_draft.run(draft, out, str(folder), "float32")
    assert (out / "model.safetensors").stat().st_mode & 0o777 == 0o644
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="float32").eval()
    tokens = np.random.default_rng(0).integers(0, 257, (2, 20))
    with torch.no_grad():
        want = theirs(torch.tensor(tokens)).logits.numpy()

    _, params, config = load(folder)
    parts = load(out)[:2], students.load(draft, params, config)[:2]
    for (model, weights), expected in zip(parts, (want, want[..., ids]), strict=True):
        cache = model.init_cache(2, 32, jnp.float32)
        logits, _, _ = model.apply(weights, jnp.asarray(tokens, jnp.int32), cache)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-4)

    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.get_vocab() == transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    assert theirs.generation_config.eos_token_id == [256]
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == 256


def test_by_default_it_is_bfloat16(tmp_path: pathlib.Path) -> None:
    folder, draft, _ = make(tmp_path)
    export_draft.run(draft, tmp_path / "out", str(folder))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16" and "specjax" not in config
    assert config["num_hidden_layers"] == 1 and config["tie_word_embeddings"]


@pytest.mark.parametrize("changes", [{}, UNTIED], ids=["tied", "untied"])
def test_of_the_target_only_what_is_borrowed_is_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, changes: dict
) -> None:
    folder, draft, _ = make(tmp_path, **changes)
    read, names = loading.Tensors.read, []

    def recorded(self: loading.Tensors, name: str) -> np.ndarray:
        if self._folder == folder:
            names.append(name)
        return read(self, name)

    monkeypatch.setattr(loading.Tensors, "read", recorded)
    export_draft.run(draft, tmp_path / "out", str(folder), "float32")
    head = ["lm_head.weight"] if changes else []
    assert sorted(names) == [*head, "model.embed_tokens.weight"]
    theirs, ours = (load_file(x / "model.safetensors") for x in (folder, tmp_path / "out"))
    for name in names:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_a_target_that_lacks_a_tensor_is_named(tmp_path: pathlib.Path) -> None:
    folder, draft, _ = make(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"has no tensor model\.layers\.0\.mlp\.up_proj"):
        export_draft.run(draft, tmp_path / "out", str(folder))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_has_a_tokenizer_s_name_is_left_out(tmp_path: pathlib.Path) -> None:
    folder, draft, _ = make(tmp_path)
    (folder / "tokenizer_old").mkdir()
    export_draft.run(draft, tmp_path / "out", str(folder))
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {file.name for file in folder.iterdir()} - {"tokenizer_old"}


def test_a_target_of_other_weights_is_refused(tmp_path: pathlib.Path) -> None:
    folder, draft, ids = make(tmp_path)
    read = students.read(draft)
    students.save(draft, read.config, read.own, ids, target=fingerprint.target(folder))
    other = tiny.make_folder(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=r"draft holds a draft model .* has other weights"):
        export_draft.run(draft, tmp_path / "out", str(other))
    assert not (tmp_path / "out").exists()
    export_draft.run(draft, tmp_path / "out", str(folder))


def test_what_was_there_stays_until_all_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, draft, _ = make(tmp_path)
    out = tmp_path / "out"
    export_draft.run(draft, out, str(folder))
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    copy = shutil.copyfile

    def full(source: pathlib.Path, to: pathlib.Path) -> None:
        if source.name == "tokenizer_config.json":
            raise OSError("no space left")
        copy(source, to)

    monkeypatch.setattr(shutil, "copyfile", full)
    (folder / "chat_template.jinja").write_text("another")
    with pytest.raises(OSError, match="no space left"):
        export_draft.run(draft, out, str(folder), "float32")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_what_can_t_be_exported(tmp_path: pathlib.Path) -> None:
    folder, draft, _ = make(tmp_path)
    with pytest.raises(ValueError, match="--dtype=int4; it must be one of bfloat16, float32"):
        export_draft.run(draft, tmp_path / "out", str(folder), "int4")
    for taken in (draft, folder):
        with pytest.raises(ValueError, match="is the folder of a model that is read; name another"):
            export_draft.run(draft, taken, str(folder))
    with pytest.raises(ValueError, match="this is no draft model"):
        export_draft.run(folder, tmp_path / "out", str(folder))
    other = tiny.make_folder(tmp_path / "other", vocab_size=300)
    with pytest.raises(ValueError, match="vocab_size=257; this target's is 300"):
        export_draft.run(draft, tmp_path / "out", str(other))
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: pathlib.Path) -> None:
    folder, draft, _ = make(tmp_path)
    command = [sys.executable, "-m", "scripts.export_draft", f"--draft={draft}"]
    command += [f"--target={folder}", f"--out={tmp_path / 'out'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "holds a whole model" in done.stdout
    command[3] = "--draft=nowhere"
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 2 and "nowhere: this is no draft model" in done.stderr
