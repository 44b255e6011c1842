"""The whole way on a tiny target: shards, distillation, a draft model on disk, decoding with it."""

from __future__ import annotations

import json
import pathlib
import runpy

import jax
import numpy as np
import pytest

import specjax
from specjax.drafters import DraftModelParams, draft_model
from specjax.models import load, students
from tests.eval import tiny
from tests.train.whole_config import check_what_a_run_says_of_itself, titles  # noqa: F401
from train import draft_model as command
from train import loop


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tiny.make_folder(tmp_path_factory.mktemp("target") / "model")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, folder: pathlib.Path) -> pathlib.Path:
    return tiny.make_shards(tmp_path_factory.mktemp("data") / "shards", folder)


def config_of(folder: pathlib.Path, shards: pathlib.Path, **changes):
    config = runpy.run_path("configs/draft_smollm2.py")["get_config"]()
    with config.unlocked():
        config.update(
            target=str(folder), data=str(shards), layers=(1,), draft_vocab_size=64, length=64,
            batch=2, held_out=0.2, held_out_rows=2, features="online",
        )  # fmt: skip
        config.update(changes)
        loop.smoke(config.loop)
    return config


def test_from_shards_to_decoding(
    folder: pathlib.Path,
    shards: pathlib.Path,
    tmp_path: pathlib.Path,
    titles: list[str],  # noqa: F811
) -> None:
    """Features from a store that was made for a head which reads other streams too."""
    store = tmp_path / "store"
    changes = dict(features="cached", feature_store=str(store), cached_layers=(1, 2, -1))
    made = config_of(folder, shards, **changes)
    summary = command.run(made, str(tmp_path))
    assert summary.step == 6 and not summary.stopped and summary.best_score is not None
    check_what_a_run_says_of_itself(tmp_path, made, command.read)
    assert titles == ["draft model for model"]
    assert json.loads((store / "about.json").read_text())["layers"] == [1, 2, -1]
    held_out = [record for record in summary.records if record["split"] == "held_out"][-1]
    assert {"loss", "top1_1", "overlap_1", "accept_length"} <= held_out.keys()
    assert 0 <= held_out["accept_length"] <= 3

    target, params, config = load(folder)
    model, whole, ids = students.load(tmp_path / "best", params, config)
    assert ids is not None and set(range(97, 105)) <= set(ids.tolist()) and len(ids) == 64
    prompts = [[97, 98, 99, 100], [101, 97]]
    plain = specjax.sample(target, params, prompts, max_new_tokens=10)
    ours = specjax.sample(
        target, params, prompts, drafter=draft_model(model, 3),
        drafter_params=DraftModelParams(whole, ids), max_new_tokens=10,
    )  # fmt: skip
    np.testing.assert_array_equal(ours.tokens, plain.tokens)


def test_the_loss_falls(folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With the whole vocabulary, from new blocks."""
    config = config_of(folder, shards, draft_vocab_size=0, start="random")
    config.loop.update(steps=30, warmup_steps=2, eval_every=15, log_every=5, checkpoint_every=0)
    summary = command.run(config, str(tmp_path))
    losses = [record["loss"] for record in summary.records if record["split"] == "train"]
    assert losses[-1] < 0.8 * losses[0]
    assert students.read(tmp_path / "last").ids is None


@pytest.mark.parametrize("whole", [True, False])
def test_all_blocks_have_nothing_to_learn(
    whole: bool, folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The objective of a student that is its target: no loss, and full agreement.

    But of what the target says outside of a draft vocabulary, which no draft ever is.
    """
    config = config_of(folder, shards, layers=(0, 1))
    config.draft_vocab_size = 0 if whole else config.draft_vocab_size
    config.loop.update(lr=1e-9, adam_lr=1e-9, weight_decay=0.0)
    summary = command.run(config, str(tmp_path))
    record = [record for record in summary.records if record["split"] == "held_out"][-1]
    assert record["loss"] == pytest.approx(0, abs=1e-5)
    if whole:
        assert record["top1_1"] == 1 and record["overlap_1"] == pytest.approx(1, abs=1e-5)
    else:
        assert 0 < record["top1_1"] < 1 and 0 < record["overlap_1"] < 0.999


def test_going_on_keeps_the_vocabulary(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Whatever is frequent in the new data."""
    _, params, model = load(folder, panels=False)
    config, ids = students.config_of(model, (0,), 64), np.arange(64, dtype=np.int32) * 4
    students.save(tmp_path / "was", config, students.from_target(params, (0,)), ids)
    changes = config_of(folder, shards, start=str(tmp_path / "was"), layers=(0,))
    changes.loop.update(lr=1e-12, adam_lr=1e-12, weight_decay=0.0)
    command.run(changes, str(tmp_path / "run"))
    was, now = students.read(tmp_path / "was"), students.read(tmp_path / "run" / "last")
    np.testing.assert_array_equal(now.ids, ids)
    jax.tree.map(np.testing.assert_array_equal, now.own, was.own)
    with pytest.raises(
        ValueError, match="made with num_layers=1, but this run has num_layers=2; give the run"
    ):
        command.run(
            config_of(folder, shards, start=str(tmp_path / "was"), layers=(0, 1)),
            str(tmp_path / "other"),
        )


BAD = {
    "loss": (dict(loss="mse"), "config.loss='mse'; it must be one of ce, kl"),
    "positions": (dict(positions=0), "config.positions=0; it must be an integer of at least 1"),
    "layers": (dict(layers=(0, 2)), r"config.layers=\(0, 2\); name at least one of.*0 to 1"),
    "no layers": (dict(layers=()), r"config.layers=\(\); name at least one of"),
    "cache": (dict(cached_layers=(1, 2)), r"cached_layers=\(1, 2\); the last one must be -1"),
    "vocabulary": (
        dict(draft_vocab_size=10**6),
        "config.draft_vocab_size=1000000; it must be 0 to",
    ),
    "start": (dict(start="/nowhere"), r"config\.json is missing"),
    "no data": (dict(data=""), "config.data is empty; make data"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path, name: str
) -> None:
    changes, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        command.run(config_of(folder, shards, features="cached", **changes), str(tmp_path))
    assert not list(tmp_path.iterdir()), "work was done before it was said"


def test_a_batch_that_cannot_be_cut_is_refused(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = config_of(folder, shards, features="cached", batch=3)
    config.loop.accumulation = 2
    with pytest.raises(ValueError, match=r"a batch of 3 can't be cut into .* 2 \* 1 equal parts"):
        command.run(config, str(tmp_path))
    assert not list(tmp_path.iterdir()), "work was done before it was said"


def test_a_whole_model_is_no_start(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match=r"this is no draft model as train\.draft_model"):
        command.run(config_of(folder, shards, start=str(folder)), str(tmp_path))
