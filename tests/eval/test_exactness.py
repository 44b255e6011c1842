"""The exactness table: it passes, it notices what is wrong, and it says what it can't do."""

import json
import pathlib
from typing import Any

import pytest

from configs import acceptance as acceptance_config
from configs import exactness as exactness_config
from eval import acceptance, exactness, toy
from eval.wrong import wrong

SMALL: dict[str, Any] = {
    "rules": ("plain", "token", "wrong"),
    "sizes": (2_000, 10_000),
    "k": 3,
    "batch": 5_000,
    "seed": 0,
}


def test_a_small_run(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exactness.run(SMALL, tmp_path) == []
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(row["rule"], row["n"]) for row in results["rows"]] == [
        (rule, n) for rule in SMALL["rules"] for n in SMALL["sizes"]
    ]
    for row in results["rows"]:
        assert row["lossless"] == (row["rule"] != "wrong")
        if row["n"] == 10_000:
            assert (row["tv"] > 0.09) == (row["rule"] == "wrong")
    assert results["failures"] == []
    assert results["device"]
    assert (tmp_path / "exactness.png").stat().st_size > 10_000
    assert "wrong: p after a rejection" in capsys.readouterr().out


def test_a_rule_that_only_says_it_is_lossless_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exactness.RULES, "token", wrong._replace(lossless=True))
    settings = exactness.Settings(**SMALL | {"rules": ("token",)})
    (failure, *_) = exactness.check(exactness.measure("token", settings))
    assert "token at N=" in failure
    assert "not the target's distribution" in failure


def test_a_wrong_example_that_goes_unnoticed_fails() -> None:
    row = {"rule": "wrong", "lossless": False, "n": 10, "tv": 0.1, "expected_tv": 0.1}
    (failure,) = exactness.check([row | {"p_value": 0.5}])
    assert "no power" in failure


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rules": ("tokn",)}, "config.rules holds 'tokn'; choose from plain, match"),
        ({"rules": ()}, "config.rules is empty"),
        ({"sizes": (10, 5)}, "they must ascend"),
        ({"k": 0}, "config.k=0"),
        ({"kk": 3}, "config.kk: there is no such key"),
    ],
)
def test_settings_that_cannot_be_used(change: dict, words: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError) as caught:
        exactness.run(SMALL | change, tmp_path)
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_configs_fit_their_settings() -> None:
    exactness.results.read(exactness.Settings, exactness_config.get_config())
    acceptance.results.read(acceptance.Settings, acceptance_config.get_config())


# --- acceptance ---

# k: alpha, tokens per pass; the article's measurement, of 50,000 rounds each.
ARTICLE = {
    1: (0.785, 1.785),
    2: (0.782, 2.396),
    3: (0.784, 2.887),
    4: (0.781, 3.254),
    6: (0.781, 3.782),
    8: (0.780, 4.067),
}


@pytest.mark.parametrize("k", ARTICLE)
def test_the_exact_figures_are_within_a_percent_of_the_article_s(k: int) -> None:
    alpha, tokens_per_pass = ARTICLE[k]
    assert acceptance.exact(k).alpha == pytest.approx(alpha, rel=0.01)
    assert acceptance.exact(k).tokens_per_pass == pytest.approx(tokens_per_pass, rel=0.01)


@pytest.mark.parametrize("k", [1, 4])
def test_the_loop_measures_what_is_exact(k: int) -> None:
    """50,000 rounds, none of them cut short."""
    row = acceptance.measure(k, acceptance.Settings((k,), batch=500, rounds=100, seed=0))
    assert row["rounds"] == 50_000
    assert acceptance.check([row]) == []
    alpha, tokens_per_pass = ARTICLE[k]
    assert row["alpha"] == pytest.approx(alpha, rel=0.01)
    assert row["tokens_per_pass"] == pytest.approx(tokens_per_pass, rel=0.01)
    assert row["formula"] == pytest.approx(row["tokens_per_pass"], rel=0.01)


def test_a_figure_that_is_off_fails() -> None:
    row = {"k": 3, "alpha": 0.8, "exact_alpha": 0.78, "tokens_per_pass": 2.0}
    failures = acceptance.check([row | {"exact_tokens_per_pass": 2.0}])
    assert failures == ["k=3: alpha is 0.8000, and exactly 0.7800"]


def test_one_draft_token_is_right_as_often_as_the_tables_overlap() -> None:
    """At k = 1 every round judges one token: alpha is the mean overlap over where rounds start."""
    overlap = [0.672, 0.692, 0.856, 0.863]
    assert min(overlap) < acceptance.exact(1).alpha < max(overlap)
    assert len(overlap) == toy.VOCAB
