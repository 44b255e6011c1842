"""The determinism report, on a scripted target in place of a real model."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import determinism as config
from eval import chat, determinism, prompts, results
from specjax import keys, testing
from specjax.drafters import draft_model
from tests import support

VOCAB = 9
TABLE = testing.scripted_table(0, VOCAB)
TARGET = testing.scripted_target(VOCAB)
MODEL = chat.Chat("scripted", TARGET, TABLE, None, None, ())  # type: ignore[arg-type]
SETTINGS = determinism.Settings("scripted", 3, 2, 12, (0.0, 1.0), (3,), (2,), 0.1, 7)
IDS = [[1, 2, 3], [4], [5, 6]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ways_of_drafting_agree_on_a_target_without_rounding(temperature: float) -> None:
    plain = determinism.decode(MODEL, IDS, SETTINGS, temperature, None)
    noisy = determinism.perturbed(TABLE, 0.3, jax.random.key(0))
    way = determinism.Way("noisy", draft_model(TARGET, 2), noisy)
    out = determinism.decode(MODEL, IDS, SETTINGS, temperature, way)
    assert 0 < int(out.stats.accepted.sum()) < int(out.stats.judged.sum())
    for row in range(3):
        assert determinism.tokens_of(out, row) == determinism.tokens_of(plain, row)
        alone = determinism.decode(MODEL, IDS, SETTINGS, temperature, way, [row])
        assert determinism.tokens_of(alone, 0) == determinism.tokens_of(plain, row)


def test_margin_is_the_gap_of_the_two_best() -> None:
    ids = [1, 2, 3, 4]
    logits = support.logits_after(TABLE, ids)
    key = determinism.row_key(SETTINGS, 1)
    best = np.sort(logits)[::-1]
    got = determinism.margin(MODEL, ids, 0.0, key)
    assert got == pytest.approx(best[0] - best[1], rel=1e-5)
    noise = keys.Noise(key, jnp.array([4], jnp.int32))
    values = np.log(support.warp(logits, 0.8)) + np.asarray(
        keys.target_gumbel(noise, jnp.zeros([1], jnp.int32), VOCAB)[0, 0]
    )
    best = np.sort(values)[::-1]
    got = determinism.margin(MODEL, ids, 0.8, key)
    assert got == pytest.approx(best[0] - best[1], abs=1e-5)


def test_only_near_ties_are_excused() -> None:
    row = {"mode": "greedy", "drafter": "copy", "k": 2, "batch": 1, "prompt": "bees"}
    rows = [
        row | {"first_difference": None, "margin": None},
        row | {"first_difference": 5, "margin": 1e-4},
        row | {"first_difference": 9, "margin": 0.5},
    ]
    (failure,) = determinism.check(rows, 1e-3)
    assert "'bees' at token 9" in failure
    (failure,) = determinism.check([row | {"first_difference": 1, "margin": float("nan")}], 1e-3)
    assert "nan" in failure


def test_perturbed_parameters() -> None:
    params = {"a": jnp.ones((40, 50), jnp.bfloat16), "b": TABLE}
    assert determinism.perturbed(params, 0, jax.random.key(0)) is params
    noisy = determinism.perturbed(params, 0.1, jax.random.key(0))
    assert noisy["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(noisy["a"], params["a"])  # an array of no spread gets no noise
    assert float(jnp.std(noisy["b"] - TABLE) / jnp.std(TABLE)) == pytest.approx(0.1, rel=0.05)


def test_perturbed_parameters_have_one_form() -> None:
    """On CPU a loaded model holds its matrices twice; with noise these would be two models."""
    params = {"embed": TABLE, "layers": {"up": TABLE, "up_panels": TABLE}}
    noisy = determinism.perturbed(params, 0.1, jax.random.key(0))
    assert set(noisy["layers"]) == {"up"}


def test_a_run_compares_batches_and_prompts_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(determinism.chat, "load", lambda name: MODEL)
    monkeypatch.setattr(chat.Chat, "encode", lambda self, turns: [len(turns[0]) % VOCAB, 1])
    assert determinism.run(dataclasses.asdict(SETTINGS), tmp_path) == []
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["batch"] for row in rows] == 2 * (2 * [3, 3, 3] + 2 * [1, 1])
    assert all(row["first_difference"] is None for row in rows)
    assert "batch of 1: 2 of 2 identical" in capsys.readouterr().out


def test_prompts_are_spread_over_the_categories() -> None:
    chosen = determinism._spread(prompts.read(), 6)
    assert len({prompt.category for prompt in chosen}) == 6


def test_the_config_fits_the_settings() -> None:
    settings = results.read(determinism.Settings, config.get_config())
    assert len(determinism._ways(settings, MODEL)) == 4
    with pytest.raises(ValueError, match="give one draft length"):
        determinism._ways(_without_drafts(), MODEL)


def _without_drafts() -> determinism.Settings:
    return determinism.Settings("scripted", 3, 2, 12, (0.0,), (), (), 0.1, 7)
