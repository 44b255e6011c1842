"""The mode that drafts by measured cost, in a run of its own: calibrated, labelled, right."""

from __future__ import annotations

import json

import pytest

from configs import speedup_smollm2
from eval import modes, settings, speedup
from tests.eval import tiny
from tests.eval.made_times import make_times


def test_a_run_with_the_adaptive_mode(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
    make_times(monkeypatch)  # by which a draft is worth it
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"category": "copy", "turns": ["abcabcabcabcabc"]}\n')
    config = speedup_smollm2.get_config()
    changes = {"target": str(tiny.make_folder(tmp_path / "model")), "prompts": str(file)}
    config.update({**changes, "max_new_tokens": 8, "temperatures": (0.0,)})
    modes = ("plain", "heuristic", "adaptive")
    config.update({"modes": modes, "ngram": {"k": 2, "k_short": 2}})
    config.adaptive.modes = ("prompt_lookup", "suffix")
    assert speedup.run(config, tmp_path / "out") == []
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    whole = {r["mode"]: r for r in rows if r["category"] == "all"}
    labels = {name: row["label"] for name, row in whole.items()}
    assert labels["adaptive"] == "adaptive prompt lookup / suffix k=4"
    assert labels["heuristic"] == "heuristic prompt lookup / suffix k=4"
    for name in ("heuristic", "adaptive"):
        row = whole[name]
        assert row["first_difference"] is None and row["rounds"] > 0
        assert (row["part_1"], row["part_2"]) == ("prompt lookup", "suffix")
        rates = [row[f"part_acceptance_rate_{number}"] for number in (1, 2)]
        assert all(rate is None or 0 <= rate <= 1 for rate in rates) and rates != [None, None]
        assert 0 < row["asked_1"] + row["asked_2"] <= 1 and row["predicted_speedup"] > 0
    asked = [whole["heuristic"][f"asked_{number}"] for number in (1, 2)]
    assert sum(asked) == pytest.approx(1, abs=1e-3)  # it always asks
    assert len(list((tmp_path / "cache" / "costs").iterdir())) == 2, "a table for each drafter"


def test_lookups_are_those_in_turn_that_run_no_network() -> None:
    config = speedup_smollm2.get_config()
    config.first_of.modes = ("prompt_lookup", "eagle", "draft_model", "suffix")
    config.first_of.n_min = 5
    config.modes = ("plain", "lookups")
    read = settings.read(config)
    assert read.drafting == {"plain", "lookups", "prompt_lookup", "suffix"}
    made = modes.MAKERS["lookups"](read, None, 0.0)
    # Prompt lookup with its own least match, not with that of the mode "first_of".
    alone = modes.MAKERS["prompt_lookup"](read, None, 0.0).drafter
    assert made.drafter.parts == (alone, modes.MAKERS["suffix"](read, None, 0.0).drafter)
    assert made.learn is not None


def test_a_corpus_draws_above_temperature_0_alone() -> None:
    config = speedup_smollm2.get_config()
    assert config.corpus.sampled
    made = {
        t: modes.corpus(config.corpus.k, sampled=config.corpus.sampled and t > 0) for t in (0, 1)
    }
    assert made[0] is not made[1]
    assert settings.read(config).drafting >= {"corpus", "eagle", "adaptive", "first_of"}
