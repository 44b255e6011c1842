"""What is said of a head or a draft model: against decoding itself; intervals that can be wrong."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

import specjax
from configs import heads_smollm2
from eval import chat as chats
from eval import heads
from specjax.drafters import draft_model
from tests.eval import tiny

K, NEW = 2, 12
TURNS = {"copy": ["abcabcabc", "xyzxyz", "aaaa"], "story": ["once upon a time", "so it was"]}
EVERY = [turn for turns in TURNS.values() for turn in turns]


# --- intervals ---


def test_an_interval_is_of_ratios_of_totals_over_prompts_drawn_again() -> None:
    rng = np.random.default_rng(5)
    whole = rng.integers(0, 9, 17)
    part = rng.binomial(whole, 0.6)
    draws = np.random.default_rng(3).integers(17, size=(2000, 17))
    ratios = [sum(part[i] for i in draw) / sum(whole[i] for i in draw) for draw in draws]
    want = tuple(round(float(np.percentile(ratios, x)), 4) for x in (2.5, 97.5))
    assert heads._bootstrap(part, whole, seed=3) == want
    assert want[0] < part.sum() / whole.sum() < want[1]


def test_95_of_100_intervals_hold_the_true_ratio() -> None:
    """Prompts whose own rates differ: tokens drawn one by one would give a third of it.

    Of 400 intervals 380 are due, less what 40 prompts are too few for; six deviations are 26.
    """
    rng, held = np.random.default_rng(0), 0
    for number in range(400):
        whole = rng.integers(20, 60, 40)
        part = rng.binomial(whole, rng.beta(3, 2, 40))
        low, high = heads._bootstrap(part, whole, seed=number)
        assert low is not None and high is not None
        held += low <= 0.6 <= high
    assert 354 <= held <= 396


def test_where_there_is_no_interval() -> None:
    one, none, some = np.array([3]), np.array([0, 0]), np.array([0, 4])
    assert heads._bootstrap(one, one + 1, seed=0) == (None, None)
    assert heads._bootstrap(none, none, seed=0) == (None, None)
    assert heads._bootstrap(some // 2, some, seed=0) == (0.5, 0.5)  # not of draws without any


# --- runs ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tiny.make_folder(tmp_path_factory.mktemp("model"))


def measured(folder: pathlib.Path, head: pathlib.Path, tmp_path: pathlib.Path) -> list[dict]:
    file = tmp_path / "prompts.jsonl"
    lines = [{"category": name, "turns": [turn]} for name in TURNS for turn in TURNS[name]]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = heads_smollm2.get_config().to_dict() | {
        "target": str(folder), "head": str(head), "prompts": str(file), "k": K, "batch": 2,
        "max_new_tokens": NEW,
    }  # fmt: skip
    assert heads.run(config, tmp_path / "out") == []
    assert (tmp_path / "out" / "heads.png").stat().st_size > 10_000
    return json.loads((tmp_path / "out" / "results.json").read_text())["rows"]


def check(
    row: dict[str, Any], chat: chats.Chat, turns: list[str], drafter: Any, params: Any
) -> None:
    """A row against decoding these prompts in one batch."""
    out = specjax.sample(
        chat.target, chat.params, [chat.encode([turn]) for turn in turns], drafter=drafter,
        drafter_params=params, max_new_tokens=NEW, eos_ids=chat.eos_ids,
    )  # fmt: skip
    stats = jax.device_get(out.stats)
    judged, accepted = stats.judged.sum(0), stats.accepted.sum(0)
    new, rounds = int(out.lengths.sum()), int(stats.rounds.sum())
    assert (row["prompts"], row["new_tokens"], row["k"]) == (len(turns), new, K)
    assert row["tokens_per_pass"] == pytest.approx(new / rounds, abs=1e-4)
    assert row["tokens_per_pass_low"] <= row["tokens_per_pass"] <= row["tokens_per_pass_high"]
    assert row["acceptance_rate"] == pytest.approx(accepted.sum() / judged.sum(), abs=1e-4)
    for i in range(K):
        rate = row[f"acceptance_rate_{i + 1}"]
        if not judged[i]:
            assert rate is None
            continue
        assert rate == pytest.approx(accepted[i] / judged[i], abs=1e-4)
        low, high = (row[f"acceptance_rate_{i + 1}_{end}"] for end in ("low", "high"))
        assert low <= rate <= high


def test_a_head(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = measured(folder, tiny.make_medusa(tmp_path / "head"), tmp_path)
    assert [row["category"] for row in rows] == [*TURNS, "all"]
    assert {(row["mode"], row["drafter"]) for row in rows} == {("medusa", "Medusa")}
    chat = chats.load(str(folder))
    head = heads.load_head(str(tmp_path / "head"), chat.config)
    for row, turns in zip(rows, [*TURNS.values(), EVERY], strict=True):
        check(row, chat, turns, head.drafter(K), head.params(chat.params))
        assert row["top1_1"] == pytest.approx(row["acceptance_rate_1"], abs=0.1)
        assert 0 <= row["top1_1_anywhere"] <= row["top5_1_anywhere"] <= 1
    said = capsys.readouterr().out
    assert "first token among the" in said and "after right guesses" in said


def test_a_distilled_draft_model(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all the target's blocks, and all tokens but one."""
    rows = measured(folder, tiny.make_student(tmp_path / "student", folder), tmp_path)
    assert [row["category"] for row in rows] == [*TURNS, "all"]
    chat = chats.load(str(folder))
    model, params = heads.load_draft(str(tmp_path / "student"), chat)
    drafter = draft_model(model, K)
    for row, turns in zip(rows, [*TURNS.values(), EVERY], strict=True):
        assert (row["mode"], row["drafter"]) == ("draft_model", drafter.name)
        check(row, chat, turns, drafter, params)
        assert row["acceptance_rate"] > 0.9 and row["tokens_per_pass"] > 2
        assert row["top1_1"] is None and row["top5_2_anywhere"] is None
    said = capsys.readouterr().out
    assert "accepted by" in said and "best, %" not in said


def test_a_folder_that_holds_neither(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"eagle_config\.eagle_aux_hidden_state_layer_ids"):
        measured(folder, folder, tmp_path)
    with pytest.raises(
        ValueError, match=r"config\.json is missing; .* is not the folder of a head"
    ):
        measured(folder, tmp_path, tmp_path)
    assert not (tmp_path / "out").exists()
