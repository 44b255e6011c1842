"""Medusa heads on a tiny target, the whole way: shards, training, heads on disk, evaluation."""

from __future__ import annotations

import json
import pathlib
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval import heads as evaluation
from specjax.heads import formats
from specjax.models import loading
from specjax.models.transformer import output_rows
from tests.eval import tiny
from tests.train.test_eagle_head import folder, shards  # noqa: F401 (fixtures)
from tests.train.whole_config import check_what_a_run_says_of_itself, titles  # noqa: F401
from train import loop, medusa_heads


def config_of(folder: pathlib.Path, shards: pathlib.Path, **changes):  # noqa: F811
    config = runpy.run_path("configs/medusa_smollm2.py")["get_config"]()
    with config.unlocked():
        config.update(
            target=str(folder), data=str(shards), draft_vocab_size=64, num_heads=3, length=64,
            batch=2, held_out=0.2, held_out_rows=2,
        )  # fmt: skip
        config.update(changes)
        loop.smoke(config.loop)
    return config


def test_from_shards_to_evaluated_heads(folder, shards, tmp_path, titles) -> None:  # noqa: F811
    config = config_of(folder, shards, cached_layers=(1, -1), tree=((0,), (0, 1)))
    summary = medusa_heads.run(config, str(tmp_path))
    assert summary.step == 6 and not summary.stopped
    check_what_a_run_says_of_itself(tmp_path, config, medusa_heads.read)
    assert titles == ["Medusa heads for model"]
    measured = [r for r in summary.records if r["split"] == "held_out"]
    assert {"top1_1", "top1_3", "overlap_2", "accept_length"} <= measured[0].keys()
    made, heads, ids = formats.load(tmp_path / "best")
    assert made.num_heads == 3 and made.projection == "target" and made.tree == ((0,), (0, 1))
    assert set(range(97, 105)) <= set(ids.tolist()), "what the target said is in the vocabulary"
    assert all(heads[f"block_{i}_0"].any() for i in range(3)), "every head has learned"
    assert (tmp_path / "features" / "features.bf16").stat().st_size % (2 * 2 * 32 * 64) == 0

    about = dict(
        target=str(folder), head=str(tmp_path / "best"), k=2, prompts="", prompts_per_category=1,
        max_new_tokens=6, batch=4, seed=0,
    )  # fmt: skip
    assert evaluation.run(about, tmp_path / "eval") == []
    total = json.loads((tmp_path / "eval" / "results.json").read_text())["rows"][-1]
    assert (total["mode"], total["drafter"], total["category"]) == ("medusa", "Medusa", "all")
    assert total["top1_1"] == total["top1_1_anywhere"], "nothing comes before the first"
    assert {"top1_2_anywhere", "top5_2_anywhere"} <= total.keys()


@pytest.mark.parametrize("projection", ["own", "shared", "target"])
def test_new_heads_say_what_the_target_does(folder, projection) -> None:  # noqa: F811
    """Blocks of zero, and the target's rows: every head starts as the target's own output."""
    model = loading.read_config(folder)
    params = loading.load_params(folder, model, panels=False)
    ids = np.arange(0, 64, 2, dtype=np.int32)
    settings = medusa_heads.read(config_of(folder, "x", projection=projection))
    config = settings.heads(model.width, len(ids))
    rows = output_rows(params, jnp.asarray(ids))
    heads = medusa_heads.initial(config, rows, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (model.width,))
    logits = medusa_heads.MedusaHeads(config).apply({"params": heads}, x, (rows, None))
    np.testing.assert_allclose(logits, jnp.broadcast_to(x @ rows, (3, 32)), rtol=1e-4, atol=1e-5)
    kept = {name for name in heads if name.startswith("projection")}
    names = {
        "own": {f"projection_{i}" for i in range(3)},
        "shared": {"projection"},
        "target": set(),
    }
    assert kept == names[projection]


@pytest.mark.parametrize("projection", ["own", "shared"])
def test_heads_that_are_trained_on_keep_their_vocabulary(
    folder, shards, tmp_path, projection  # noqa: F811
) -> None:  # fmt: skip
    changes = {"features": "online", "projection": projection, "num_heads": 2}
    ids = np.arange(64, dtype=np.int32) * 4
    model = loading.read_config(folder)
    settings = medusa_heads.read(config_of(folder, shards, **changes))
    config = settings.heads(model.width, 64)
    rows = output_rows(loading.load_params(folder, model, panels=False), jnp.asarray(ids))
    was = medusa_heads.initial(config, rows, jax.random.key(0))
    formats.save(tmp_path / "other", config, was, ids, model.vocab_size)
    again = config_of(folder, shards, start=str(tmp_path / "other"), **changes)
    again.loop.update(steps=1, lr=1e-12, adam_lr=1e-12)
    medusa_heads.run(again, str(tmp_path / "run"))
    _, heads, kept = formats.load(tmp_path / "run" / "last")
    np.testing.assert_array_equal(kept, ids)
    for name, value in was.items():
        np.testing.assert_allclose(heads[name], value, rtol=2**-7, atol=1e-6)


BAD = {
    "loss": (dict(loss="mse"), "config.loss='mse'; it must be one of ce, kl"),
    "heads": (dict(num_heads=0), "config.num_heads=0; it must be at least 1"),
    "blocks": (dict(num_blocks=0), "config.num_blocks=0; it must be at least 1"),
    "projection": (dict(projection="tied"), "config.projection='tied'; it must be one of own"),
    "tree": (dict(tree=((0, 1),)), r"config.tree holds \(0, 1\) without its parent"),
    "tree form": (dict(tree=(1, 2)), "config.tree holds 1; a path is a tuple of ranks"),
    "layers": (
        dict(cached_layers=(-1, 1)),
        r"config.cached_layers=\(-1, 1\); the last one must be",
    ),
    "no layers": (dict(cached_layers=()), r"config.cached_layers=\(\); the last one must be -1"),
    "such layers": (dict(cached_layers=(9, -1)), "holds 9; the target has streams 0 to 2"),
    "vocabulary": (dict(draft_vocab_size=10**6), "draft_vocab_size=1000000; it must be 1 to"),
    "start": (dict(start="/nowhere"), r"config\.json is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings(folder, shards, tmp_path, name) -> None:  # noqa: F811
    changes, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        medusa_heads.run(config_of(folder, shards, **changes), str(tmp_path))
    assert not list(tmp_path.iterdir()), "work was done before it was said"


def test_a_batch_that_cannot_be_cut_is_refused(folder, shards, tmp_path) -> None:  # noqa: F811
    config = config_of(folder, shards, batch=3)
    config.loop.accumulation = 2
    with pytest.raises(ValueError, match=r"a batch of 3 can't be cut into .* 2 \* 1 equal parts"):
        medusa_heads.run(config, str(tmp_path))
    assert not list(tmp_path.iterdir()), "work was done before it was said"


def test_other_heads_are_no_start(folder, shards, tmp_path) -> None:  # noqa: F811
    eagle, medusa = tiny.make_head(tmp_path / "eagle"), tiny.make_medusa(tmp_path / "medusa")
    cases = {
        eagle: "holds a head of another kind: it is Eagle, and this command trains Medusa",
        medusa: "was made with num_blocks=1, but this run has num_blocks=3; give the run what",
    }
    for start, message in cases.items():
        config = config_of(folder, shards, start=str(start))
        with pytest.raises(ValueError, match=message):
            medusa_heads.run(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists(), "work was done before it was said"


def test_a_run_goes_on_with_its_own_settings_alone(folder, shards, tmp_path) -> None:  # noqa: F811
    how = {"features": "online"}
    medusa_heads.run(config_of(folder, shards, **how), str(tmp_path))
    medusa_heads.run(config_of(folder, shards, **how), str(tmp_path))
    changes = {"seed": 7, "held_out": 0.5, "decay": 0.1, "supervise": "answers", "held_out_rows": 4}
    for name, value in changes.items():
        with pytest.raises(ValueError, match=name):
            medusa_heads.run(config_of(folder, shards, **how, **{name: value}), str(tmp_path))
