"""Steps that a run doesn't take can't be traced; it says so."""

from tests.train import toy
from train import loop


def test_steps_before_those_of_a_resumed_run(tmp_path, capsys) -> None:
    loop.fit(toy.task(), toy.settings(steps=3), tmp_path)
    assert "profile" not in capsys.readouterr().out
    loop.fit(toy.task(), toy.settings(steps=5, profile="1:2"), tmp_path)
    said = capsys.readouterr().out
    assert said.count("no profile is written of steps 1 to 2") == 1
    assert "because this run goes on from step 3; name steps that it takes" in said
    loop.fit(toy.task(), toy.settings(steps=5, profile="3:2"), tmp_path)
    said = capsys.readouterr().out
    assert "of steps 3 to 4, because this run took none of them" in said, "it was finished"
    assert not (tmp_path / "profile").exists()


def test_steps_past_the_last_one(tmp_path, capsys) -> None:
    loop.fit(toy.task(), toy.settings(steps=3, profile="3:2"), tmp_path)
    assert "of steps 3 to 4, because this run took none of them" in capsys.readouterr().out


def test_the_rest_of_a_range_is_traced(tmp_path, capsys) -> None:
    loop.fit(toy.task(), toy.settings(steps=3), tmp_path)
    loop.fit(toy.task(), toy.settings(steps=6, profile="2:3"), tmp_path)
    assert "no profile" not in capsys.readouterr().out
    assert any(path.is_file() for path in (tmp_path / "profile").rglob("*"))
