"""What all commands share: settings in, files out, whole or not at all."""

import dataclasses

import pytest

from eval import results


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int


def test_fields_name_the_place_of_a_wrong_key():
    assert results.fields(Inner, {"size": 3}) == {"size": 3}
    with pytest.raises(ValueError, match=r"config\.inner\.sise: there is no such key, only size"):
        results.fields(Inner, {"sise": 3}, "inner.")
    with pytest.raises(ValueError, match=r"config\.inner\.size is missing"):
        results.fields(Inner, {}, "inner.")
    with pytest.raises(ValueError, match=r"config\.inner is 3; it must hold keys and values"):
        results.fields(Inner, 3, "inner.")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "results.json"
    results.write_json(path, {"a": (1, 2)})
    before = path.read_text()
    with pytest.raises(ValueError):
        results.write_json(path, {"a": float("nan")})
    with pytest.raises(ZeroDivisionError), results.replacing(path) as beside:
        beside.write_text("half of it")
        raise ZeroDivisionError
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_figure_is_a_png(tmp_path):
    drawn = results.figure((2.0, 1.0))
    drawn.subplots().plot([0, 1], [0, 1])
    results.save_figure(drawn, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
