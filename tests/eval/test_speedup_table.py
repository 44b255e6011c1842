"""The speed-up tables: every cell of the article's, to its two digits."""

import json
import pathlib

import pytest

from configs import speedup_table as config
from eval import results, speedup_table

ARTICLE = {
    0.05: {
        0.5: ([1.43, 1.59, 1.63, 1.61, 1.57, 1.53, 1.43], 3, 1.63),
        0.6: ([1.52, 1.78, 1.89, 1.92, 1.91, 1.87, 1.77], 4, 1.92),
        0.7: ([1.62, 1.99, 2.20, 2.31, 2.35, 2.35, 2.28], 6, 2.35),
        0.8: ([1.71, 2.22, 2.57, 2.80, 2.95, 3.04, 3.09], 8, 3.09),
        0.9: ([1.81, 2.46, 2.99, 3.41, 3.75, 4.01, 4.38], 13, 4.67),
    },
    0.2: {
        0.5: ([1.25, 1.25, 1.17, 1.08, 0.98, 0.90, 0.77], 1, 1.25),
        0.6: ([1.33, 1.40, 1.36, 1.28, 1.19, 1.10, 0.95], 2, 1.40),
        0.7: ([1.42, 1.56, 1.58, 1.54, 1.47, 1.39, 1.23], 3, 1.58),
        0.8: ([1.50, 1.74, 1.85, 1.87, 1.84, 1.80, 1.66], 4, 1.87),
        0.9: ([1.58, 1.94, 2.15, 2.28, 2.34, 2.37, 2.36], 7, 2.37),
    },
}


def test_every_cell_is_the_article_s(tmp_path: pathlib.Path) -> None:
    assert speedup_table.run(config.get_config(), tmp_path) == []
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert len(rows) == 2 * 5 * 7
    for row in rows:
        cells, best_k, best = ARTICLE[row["c"]][row["alpha"]]
        place = [1, 2, 3, 4, 5, 6, 8].index(row["k"])
        assert f"{row['speedup']:.2f}" == f"{cells[place]:.2f}", row
        assert (row["best_k"], f"{row['best_speedup']:.2f}") == (best_k, f"{best:.2f}"), row
    assert (tmp_path / "speedup_table.png").stat().st_size > 10_000


def test_a_measured_pass_cost_lowers_the_best_k() -> None:
    plain = results.read(speedup_table.Settings, config.get_config())
    values = dict(config.get_config().items())
    values |= {"pass_widths": (1, 2, 5, 9), "pass_costs": (1.0, 1.2, 1.5, 2.5)}
    measured = speedup_table.Settings(**values)
    cost = speedup_table.pass_cost(measured)
    assert cost is not None
    assert [cost(width) for width in (1, 2, 3, 9, 13)] == pytest.approx([1, 1.2, 1.3, 2.5, 3.5])
    for ours, theirs in zip(speedup_table.build(measured), speedup_table.build(plain), strict=True):
        assert ours["best_k"] <= theirs["best_k"]
        assert ours["speedup"] < theirs["speedup"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alphas": (1.5,)}, "config.alphas holds 1.5"),
        ({"costs": (-0.1,)}, "config.costs holds -0.1"),
        ({"ks": ()}, "at least one value"),
        ({"pass_widths": (1, 2)}, "give one cost a width"),
        ({"pass_widths": (1, 5, 2), "pass_costs": (1.0, 1.2, 1.5)}, "they must ascend"),
        ({"pass_widths": (1, 1), "pass_costs": (1.0, 1.2)}, "they must ascend"),
        ({"pass_widths": (0, 1), "pass_costs": (1.0, 1.2)}, "from at least 1"),
        ({"pass_widths": (1, 2), "pass_costs": (1.0, 0.0)}, "config.pass_costs holds 0.0"),
        ({"pass_widths": (1,), "pass_costs": (float("nan"),)}, "config.pass_costs holds nan"),
    ],
)
def test_settings_that_cannot_be_used(change: dict, words: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=words):
        speedup_table.run(dict(config.get_config().items()) | change, tmp_path)
