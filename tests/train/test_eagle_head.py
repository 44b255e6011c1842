"""The whole way on a tiny target: shards, training, a head on disk, its evaluation."""

from __future__ import annotations

import json
import pathlib
import runpy

import numpy as np
import pytest

from eval import heads
from specjax.heads import formats
from specjax.models import fingerprint
from tests.eval import tiny
from tests.train.whole_config import check_what_a_run_says_of_itself, titles  # noqa: F401
from train import data, eagle_head, loop, start, vocabulary
from train.material import Material


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tiny.make_folder(tmp_path_factory.mktemp("target") / "model")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, folder: pathlib.Path) -> pathlib.Path:
    return tiny.make_shards(tmp_path_factory.mktemp("data") / "shards", folder)


def config_of(folder: pathlib.Path, shards: pathlib.Path, **changes):
    config = runpy.run_path("configs/eagle3_smollm2.py")["get_config"]()
    with config.unlocked():
        config.update(
            target=str(folder), data=str(shards), layers=(1, 2, -1), draft_vocab_size=64, own_head=True,
            length=64, batch=2, held_out=0.2, held_out_rows=2, eval_steps=2,
        )  # fmt: skip
        config.update(changes)
        loop.smoke(config.loop)
    return config


@pytest.mark.parametrize("source", ["online", "cached"])
def test_from_shards_to_an_evaluated_head(
    folder: pathlib.Path,
    shards: pathlib.Path,
    tmp_path: pathlib.Path,
    source: str,
    titles: list[str],  # noqa: F811
) -> None:
    config_made = config_of(folder, shards, features=source, steps=2)
    summary = eagle_head.run(config_made, str(tmp_path))
    assert summary.step == 6 and not summary.stopped
    config, head, ids = formats.load(tmp_path / "best")
    assert config.layers == (1, 2, -1) and len(ids) == config.draft_vocab_size == 64
    assert set(range(97, 105)) <= set(ids.tolist()), "what the target said is in the vocabulary"
    assert head["head"].shape == (32, 64)
    if source == "online":
        return
    check_what_a_run_says_of_itself(tmp_path, config_made, eagle_head.read)
    assert titles == ["EAGLE-3 head for model"]
    assert (tmp_path / "features" / "features.bf16").exists()
    assert json.loads((tmp_path / "features" / "about.json").read_text())["dtype"] == "float32"
    about = dict(
        target=str(folder), head=str(tmp_path / "best"), k=3, prompts="", prompts_per_category=1,
        max_new_tokens=6, batch=4, seed=0,
    )  # fmt: skip
    assert heads.run(about, tmp_path / "eval") == []
    results = json.loads((tmp_path / "eval" / "results.json").read_text())
    total = results["rows"][-1]
    assert total["category"] == "all" and total["prompts"] == 8
    ranks = {f"top{n}_{i}{where}" for n in (1, 5) for i in (1, 3) for where in ("", "_anywhere")}
    assert ranks <= total.keys()  # whose numbers are tests/eval/test_ranks.py's
    assert (tmp_path / "eval" / "heads.png").stat().st_size > 1000


def test_a_head_of_version_1(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """It learns the target's features, too: only with a loss of them is there much to lose."""
    changes = dict(version=1, layers=(-1,), own_head=False, feature_weight=100.0, eval_steps=1)
    config = config_of(folder, shards, features="online", steps=1, **changes)
    summary = eagle_head.run(config, str(tmp_path))
    assert summary.step == 6 and not summary.stopped
    losses = [r["loss"] for r in summary.records if r["split"] == "held_out"]
    assert losses[0] > 2 * np.log(64), "more than not knowing which of 64 tokens it is"
    made, head, _ = formats.load(tmp_path / "best")
    assert (made.version, made.layers) == (1, (-1,)) and "head" not in head


def test_a_head_that_is_trained_on_keeps_its_vocabulary(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path, capsys
) -> None:
    """Its output matrix belongs to its tokens, whatever is frequent in the new data."""
    other = tiny.make_head(tmp_path / "other")
    was = formats.load(other)
    changes = {"start": str(other), "layers": (1, 2), "features": "online", "draft_vocab_size": 32}
    config = config_of(folder, shards, **changes)
    config.loop.update(steps=1, lr=1e-12, adam_lr=1e-12)
    eagle_head.run(config, str(tmp_path / "run"))
    said = (
        "start keeps its draft vocabulary of 64 tokens: config.draft_vocab_size=32 is that of a new"
    )
    assert said in capsys.readouterr().out
    _, head, ids = formats.load(tmp_path / "run" / "last")
    np.testing.assert_array_equal(ids, was[2])
    np.testing.assert_allclose(head["head"], was[1]["head"], atol=1e-6)


def test_what_is_gone_on_from_may_move_but_not_change(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path, monkeypatch
) -> None:
    """A checkpoint knows it by its weights."""
    monkeypatch.setattr(loop, "fit", lambda task, *args: task)

    def fingerprint_of(start):
        config = config_of(folder, shards, start=str(start), layers=(1, 2), features="online")
        return eagle_head.run(config, str(tmp_path)).fingerprint

    one = fingerprint_of(tiny.make_head(tmp_path / "one"))
    moved = (tmp_path / "one").rename(tmp_path / "two")
    assert fingerprint_of(moved) == one
    config, head, ids = formats.load(moved)
    formats.save(moved, config, head | {"fuse": head["fuse"] + 1}, ids, 257)
    changed = fingerprint_of(moved)
    assert {name for name in one if changed[name] != one[name]} == {"start"}
    assert fingerprint_of("random")["start"] == "random"


def test_cached_and_online_features_train_the_same(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Up to the rounding of what is kept in bfloat16."""
    losses = []
    for source in ("online", "cached"):
        config = config_of(folder, shards, features=source)
        config.loop.steps = 2
        summary = eagle_head.run(config, str(tmp_path / source))
        losses.append([r["loss"] for r in summary.records if "loss" in r])
    np.testing.assert_allclose(*losses, rtol=0.02)


def test_features_of_something_else_are_refused(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    store = str(tmp_path / "store")
    config = config_of(folder, shards, features="cached", feature_store=store)
    eagle_head.run(config, str(tmp_path / "one"))
    config.layers = (2, 1, -1)
    with pytest.raises(ValueError, match=r"made with layers=\[1, 2, -1, -1\], but now.*delete"):
        eagle_head.run(config, str(tmp_path / "two"))


BAD = {
    "loss": (dict(loss="mse"), "config.loss='mse'; it must be one of ce, kl"),
    "features": (dict(features="ram"), "config.features='ram'; it must be one of"),
    "steps": (dict(steps=0), "config.steps=0; it must be at least 1"),
    "layers": (dict(layers=(1, 2, 9)), r"holds 9; the target has streams 0 to 2"),
    "supervise": (dict(supervise="half"), "config.supervise='half'; it must be one of"),
    "version 1": (
        dict(version=1, layers=(-1,), own_head=False, feature_weight=0.0),
        r"config.feature_weight=0.0 with config.version=1, .* give it a weight, such as 1.0",
    ),
    "no data": (dict(data=""), "config.data is empty; make data"),
    "vocabulary": (dict(draft_vocab_size=10**6), "draft_vocab_size=1000000; it must be 1 to"),
    "held out": (dict(held_out=1.5), "config.held_out=1.5; it is a fraction"),
    "no start": (dict(start=""), "config.start=''; it must be 'target', 'random', or the folder"),
    "start": (dict(start="/nowhere"), r"start='/nowhere' is no head .*config\.json is missing"),
    "version": (dict(version=2), "version=2; an EAGLE head is of version 1 or 3"),
    "layers of version 1": (
        dict(version=1, feature_weight=1.0, own_head=False),
        r"it needs .* one layer; got .*layers=\(1, 2, -1\)",
    ),
    "the embedding": (dict(layers=(0, 1)), r"layers=\(0, 1\); .*the embedding is read anyway"),
    "a block of another size": (
        dict(ffn_width=64),
        r"of width 32 and ffn_width 48; the head has 32 and 64: take config\.ffn_width=0",
    ),
    "a mesh": (dict(mesh="data:2"), r"loop\.mesh asks for 2 device\(s\), but there are 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path, name: str
) -> None:
    changes, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        eagle_head.run(config_of(folder, shards, **changes), str(tmp_path))
    assert not list(tmp_path.iterdir()), "work was done before it was said"


def test_a_batch_that_cannot_be_cut_is_refused(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = config_of(folder, shards, batch=3)
    config.loop.accumulation = 2
    with pytest.raises(ValueError, match=r"a batch of 3 can't be cut into .* 2 \* 1 equal parts"):
        eagle_head.run(config, str(tmp_path))
    assert not list(tmp_path.iterdir()), "work was done before it was said"


def test_a_head_of_something_else_is_no_start(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    other = tiny.make_head(tmp_path / "other")
    few = tiny.make_folder(tmp_path / "few", vocab_size=250)
    medusa = tiny.make_medusa(tmp_path / "medusa")
    cases = [
        (dict(start=str(other)), r"with layers=\(1, 2\), but this run has layers=\(1, 2, -1\)"),
        (
            dict(start=str(other), layers=(1, 2), target=str(few)),
            "drafts token 252, but the target has 0 to 249; start from a head that was made for it",
        ),
        (dict(start=str(medusa)), "of another kind: it is Medusa, and this command trains Eagle"),
    ]
    for changes, message in cases:
        with pytest.raises(ValueError, match=message):
            eagle_head.run(config_of(folder, shards, **changes), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists(), "work was done before it was said"


def test_a_smoke_run_computes_no_features_ahead(
    folder: pathlib.Path, shards: pathlib.Path, tmp_path: pathlib.Path, monkeypatch, capsys
) -> None:
    """Of the 24 documents it trains on a dozen: two for each of its six steps."""
    monkeypatch.setattr(loop, "fit", lambda task, *args: task)
    config = config_of(folder, shards, features="cached", smoke=True)
    task = eagle_head.run(config, str(tmp_path))
    said = capsys.readouterr().out
    assert "documents cut: 0 of 24 are longer than config.length=64" in said
    assert "the draft vocabulary covers 100.0% of what the target says in held-out text" in said
    assert not list(tmp_path.iterdir())
    assert task.frozen["target"] and task.fingerprint["smoke"] is True
    known = set(map(tuple, data.read(shards).tokens.reshape(24, 32).tolist()))
    for batches, most in (([task.batch(step) for step in range(6)], 12), (task.held_out, 2)):
        assert all("features" not in batch for batch in batches)
        rows = [row for batch in batches for row in batch["tokens"].reshape(-1, 32).tolist()]
        used = {tuple(row) for row in rows if any(row)}
        assert used <= known and 0 < len(used) <= most


def test_features_are_not_kept_in_a_bucket(folder: pathlib.Path, shards: pathlib.Path) -> None:
    config = config_of(folder, shards, features="cached")
    for workdir, store in (("gs://bucket/run", ""), ("runs/x", "gs://bucket/features")):
        config.feature_store = store
        message = r"kept in gs://bucket/.*local folder, config\.feature_store=FOLDER.*'online'"
        with pytest.raises(ValueError, match=message):
            eagle_head.run(config, workdir)


def test_tokens_of_another_tokenizer_are_refused(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    other = tiny.make_shards(tmp_path / "other", folder, tokenizer="abc")
    with pytest.raises(
        ValueError, match=r"of another tokenizer \(fingerprint abc, the target's is"
    ):
        eagle_head.run(config_of(folder, other), str(tmp_path))
    assert not (tmp_path / "features").exists()


@pytest.mark.parametrize("author", ["other", "same", "unknown"])
def test_answers_of_another_target_are_told(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys, author: str
) -> None:
    ours = fingerprint.target(folder)
    authors = {"other": {"target": 64 * "a", "target_name": "big"}, "same": {"target": ours}}
    shards = tiny.make_shards(tmp_path / "shards", folder)
    about = json.loads((shards / "manifest.json").read_text()) | authors.get(author, {})
    (shards / "manifest.json").write_text(json.dumps(about))
    Material(eagle_head.read(config_of(folder, shards, features="online")), (-1,), "")
    said = f"{shards} holds answers of another target (big, fingerprint {12 * 'a'}; this one's is {ours[:12]})"
    out = capsys.readouterr().out
    assert (said in out) == ("another target" in out) == (author == "other")


def test_held_out_text_has_no_say_in_the_vocabulary(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys
) -> None:
    """Every document says a token of its own: those of the held-out ones are never chosen."""
    samples = [data.Sample(str(i), [97 + i] * 8, [True] * 8) for i in range(20)]
    data.write(tmp_path, samples, {"tokenizer": fingerprint.tokenizer(folder)})
    settings = eagle_head.read(config_of(folder, tmp_path, features="online"))
    material = Material(settings, (-1,), "")
    held_out = {int(token) for batch in material.held_out() for token in np.unique(batch["tokens"])}
    ids = start.draft_vocabulary(None, 16, material)
    assert len(ids) == 16 and held_out - {0} and not held_out & set(ids.tolist())
    assert set(ids.tolist()) <= set(range(97, 117))
    assert "covers 0.0% of what the target says in held-out text" in capsys.readouterr().out


def test_the_most_frequent_tokens(shards: pathlib.Path) -> None:
    documents = data.read(shards)
    ids = vocabulary.most_frequent(documents, 3, 300)
    counts = np.bincount(documents.tokens[documents.mask], minlength=300)
    assert np.all(np.diff(ids) > 0)
    assert counts[ids].min() >= np.sort(counts)[-3]
    assert vocabulary.coverage(documents, ids) == counts[ids].sum() / counts.sum()
    assert len(vocabulary.most_frequent(documents, 0, 300)) == 300
