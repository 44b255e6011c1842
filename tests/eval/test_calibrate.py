"""The command that calibrates: a table, a file that the plan reads, a plot."""

from __future__ import annotations

import json
import math

import pytest

from configs import calibrate_smollm2, plan_smollm2
from eval import calibrate, plan
from specjax import costs
from tests.eval import tiny


def test_a_run(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
    config = calibrate_smollm2.get_config()
    config.update({"target": str(tiny.make_folder(tmp_path / "model")), "head": "", "k": 2})
    config.update({"batches": (1, 2), "contexts": (8, 16)})
    assert calibrate.run(config, tmp_path / "out") == []
    table = costs.load(tmp_path / "out" / "costs.json")
    printed, written = capsys.readouterr().out, (tmp_path / "out" / "results.json").read_text()
    assert table.batches == (1, 2) and "2 drafted" in printed
    rows, deciding = (json.loads(written)[name] for name in ("rows", "controller"))
    assert len(rows) == 2 * 2 * 3 and all(row["target_ms"] > 0 for row in rows)
    assert (tmp_path / "out" / "costs.png").read_bytes().startswith(b"\x89PNG")
    assert [(one["batch"], one["drafters"]) for one in deciding] == [(1, 1), (1, 4), (2, 1), (2, 4)]
    for one in deciding:
        assert all(math.isfinite(one[name]) and one[name] > 0 for name in one)
        own = [row for row in rows if row["batch"] == one["batch"]]
        cheapest = min(row["target_ms"] + row["draft_ms"] for row in own)
        assert one["cheapest_round_ms"] == pytest.approx(cheapest, abs=2e-4)
        assert one["share"] == pytest.approx(
            1e-3 * one["controller_us"] / one["cheapest_round_ms"], rel=0.01
        )
        figure = (
            f"{one['controller_us']:.1f} us a round at batch {one['batch']}, {one['share']:.3%}"
        )
        of = f"the controller (by_cost) takes, with {one['drafters']} in turn"
        assert f"{of}, {figure} of the cheapest round" in printed
    made = plan_smollm2.get_config()
    made.update({"target": config.target, "table": str(tmp_path / "out" / "costs.json")})
    made.update({"batches": (1, 2), "contexts": (16,), "max_k": 2})
    assert plan.run(made, tmp_path / "plan") == [], "it is of this target, and of here"


def test_passes_are_as_wide_as_adaptive_drafting_has_them(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head alone, whose drafts are all of one length, would never take two tokens."""
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
    config = calibrate_smollm2.get_config()
    config.update({"target": str(tiny.make_folder(tmp_path / "model")), "k": 2, "batches": (1,)})
    config.update({"head": str(tiny.make_head(tmp_path / "head")), "contexts": (8,)})
    calibrate.run(config, tmp_path / "out")
    assert costs.load(tmp_path / "out" / "costs.json").widths == (1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": 0}, "config.k=0"),
        ({"dtype": "int8"}, "config.dtype='int8'"),
        ({"temperature": -1.0}, "config.temperature=-1.0"),
        ({"batches": (4, 1)}, r"config.batches=\(4, 1\); they must ascend"),
        ({"contexts": (1, 8)}, r"config.contexts=\(1, 8\); they must ascend from at least 2"),
    ],
)
def test_bad_input_is_named(tmp_path, changes, words: str) -> None:
    config = calibrate_smollm2.get_config()
    config.update(changes)
    with pytest.raises(ValueError, match=words):
        calibrate.run(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
