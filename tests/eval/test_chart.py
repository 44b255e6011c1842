"""The chart, with many modes."""

import itertools

from eval import chart, results
from eval.rows import ALL

MODES = [f"mode_{i}" for i in range(8)]


def rows():
    for temperature, mode, category in itertools.product((0.0, 1.0), MODES, ("a", "b", ALL)):
        for prompt in ("p", "q", ALL):
            if ALL == category != prompt:
                continue
            whole = prompt == ALL
            yield {
                "mode": mode,
                "label": f"{mode} k=3",
                "temperature": temperature,
                "category": category,
                "prompt": prompt,
                "is_copy": False,
                "lossless": True,
                "speedup": 1.5,
                "speedup_low": 1.2 if whole else None,
                "speedup_high": 2.0 if whole else None,
                "predicted_speedup": 1.6,
            }


def test_a_legend_says_everything_once(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(results, "save_figure", lambda figure, path: drawn.append(figure))
    assert chart.write(tmp_path / "chart.png", list(rows()), "title")
    [legend] = drawn[0].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == len(set(texts)) == len(MODES) + 3
    colors = [line.get_color() for line in legend.get_lines()][: len(MODES)]
    assert len(set(colors)) == len(MODES)


def test_a_copy_of_the_target_is_no_speed_up(tmp_path):
    copies = [row | {"is_copy": True} for row in rows()]
    assert not chart.write(tmp_path / "chart.png", copies, "title")
    assert not list(tmp_path.iterdir())
