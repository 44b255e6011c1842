"""What a run will hold, said before it is read: against what is held when it was."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import speedup_smollm2
from eval import chat, preflight, settings
from eval.chat import Chat
from eval.models import load_draft, load_head
from specjax import device
from specjax.heads import EagleConfig, MedusaConfig, MedusaHeads, formats
from specjax.models import linear, students
from tests.eval import tiny
from train import eagle_init

VOCAB, WIDTH = 257, 32
# Draft vocabularies that fill panels, and one that doesn't.
EAGLE = EagleConfig(
    version=3, target_width=WIDTH, layers=(1, 2), draft_vocab_size=64, width=32, num_heads=4,
    num_kv_heads=4, head_dim=8, ffn_width=48,
)  # fmt: skip
HEADS = {
    "own": EAGLE,
    "rows": dataclasses.replace(EAGLE, own_head=False),
    "rows without panels": dataclasses.replace(EAGLE, own_head=False, draft_vocab_size=65),
    "medusa own": MedusaConfig(WIDTH, 3, 1, 64),
    "medusa shared": MedusaConfig(WIDTH, 3, 2, 64, projection="shared"),
    "medusa target": MedusaConfig(WIDTH, 3, 1, 128, projection="target"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Of targets."""
    made = tmp_path_factory.mktemp("models")
    tied = {"tied": True, "untied": False}
    return {n: tiny.make_folder(made / n, tie_word_embeddings=x) for n, x in tied.items()}


def save_head(folder: pathlib.Path, name: str) -> pathlib.Path:
    config = HEADS[name]
    if isinstance(config, EagleConfig):
        head = eagle_init.random(config, jax.random.key(0))
    else:
        one = jnp.zeros([1, WIDTH])
        rows = jnp.zeros([WIDTH, config.draft_vocab_size]), None
        head = MedusaHeads(config).init(jax.random.key(0), one, rows)["params"]
    ids = np.arange(config.draft_vocab_size, dtype=np.int32)
    formats.save(folder, config, head, ids, VOCAB)
    return folder


def items(monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path, **changes: Any) -> dict[str, int]:
    """The bytes of each part of the table."""
    config = speedup_smollm2.get_config().to_dict() | {"target": str(folder), "draft": ""}
    for name, value in changes.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    said: dict[str, int] = {}
    monkeypatch.setattr(device, "preflight", lambda items, memory: said.update(items) or "")
    preflight.table(settings.read(config), slots=256, memory=2**30)
    return said


def held(target: Chat, *trees: Any) -> int:
    """Bytes of what isn't the target's."""
    arrays = {id(x): x for x in jax.tree.leaves(trees)}
    for x in jax.tree.leaves(target.params):
        arrays.pop(id(x), None)
    return sum(x.nbytes for x in arrays.values())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in HEADS), ("rows", "bfloat16"), ("medusa shared", "bfloat16")],
)
def test_a_head_and_the_rows_it_takes_of_its_target(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    folders: dict[str, pathlib.Path],
    name: str,
    dtype: str,
) -> None:
    folder = folders["untied"]
    mode = "medusa" if "medusa" in name else "eagle"
    own = {"folder": str(save_head(tmp_path, name))}
    said = items(monkeypatch, folder, modes=("plain", mode), dtype=dtype, **{mode: own})
    target = chat.load(str(folder), dtype)
    head = load_head(str(tmp_path), target.config)
    assert said[f"head ({mode})"] == held(target, head.weights, head.params(target.params))


@pytest.mark.parametrize(
    ("name", "size"), [("tied", 64), ("tied", 65), ("tied", VOCAB), ("untied", VOCAB)]
)
def test_a_student_and_the_rows_it_takes_of_its_target(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    folders: dict[str, pathlib.Path],
    name: str,
    size: int,
) -> None:
    folder = folders[name]
    target = chat.load(str(folder), "float32")
    config = students.config_of(target.config, (1,), size)
    ids = np.arange(size, dtype=np.int32) if size < VOCAB else None
    own = students.from_target(linear.drop_panels(target.params), (1,))
    students.save(tmp_path, config, own, ids)
    said = items(monkeypatch, folder, modes=("plain", "draft_model"), draft=str(tmp_path))
    model, params = load_draft(str(tmp_path), target)
    assert said["draft weights"] == held(target, params) > 0
    cache = model.init_cache(1, 256, jnp.float32)
    assert said["draft KV cache"] == sum(x.nbytes for x in jax.tree.leaves(cache))


def test_a_copy_of_the_target_has_no_weights(
    monkeypatch: pytest.MonkeyPatch, folders: dict[str, pathlib.Path]
) -> None:
    said = items(monkeypatch, folders["tied"], modes=("plain", "draft_model"))
    assert said["draft weights (the target's)"] == 0
    assert said["draft KV cache"] == said["target KV cache"] > 0


def test_a_file_of_heads_that_is_cut_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, folders: dict[str, pathlib.Path]
) -> None:
    path = save_head(tmp_path, "medusa own") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    words = r"config\.medusa\.folder='.*' holds no head: .* is not a whole safetensors file"
    with pytest.raises(ValueError, match=words):
        own = {"folder": str(tmp_path)}
        items(monkeypatch, folders["tied"], modes=("plain", "medusa"), medusa=own)
