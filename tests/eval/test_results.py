"""What all commands share: settings in, files out, whole or not at all."""

import dataclasses
import subprocess
import sys

import pytest

from eval import cli, results


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


def test_what_a_killed_write_left_goes_at_the_next(tmp_path):
    """But not another file's, nor one that only looks alike."""
    with pytest.raises(ZeroDivisionError), results.replacing(tmp_path / "a.json") as beside:
        name = beside.name
        raise ZeroDivisionError
    others = {".settings.json", f".b{name[2:]}", f"{name}x"}
    for each in (name, *others):
        (tmp_path / each).write_text("half of it")
    results.write_json(tmp_path / "a.json", {})
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", *others}


def test_what_another_process_is_writing_stays(tmp_path):
    with results.replacing(tmp_path / "a.json") as beside:
        beside.write_text("{}")
        results.write_json(tmp_path / "a.json", {"b": 1})
        assert beside.exists()
    assert (tmp_path / "a.json").read_text() == "{}"


def test_a_figure_is_a_png(tmp_path):
    drawn = results.figure((2.0, 1.0))
    drawn.subplots().plot([0, 1], [0, 1])
    results.save_figure(drawn, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


# --- the folder and the config of a command ---


def test_a_workdir_is_tried_and_left_as_it_was(tmp_path):
    cli.check_workdir(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for bad, why in (("file", "it is a file"), ("file/inside", "Not a directory")):
        with pytest.raises(ValueError, match=rf"--workdir=.*{bad}: nothing .* \({why}\); give"):
            cli.check_workdir(tmp_path / bad)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no get_config(); give a config"),
        ("def get_config(:", "(config.py, line 1); correct the file"),
    ],
)
def test_a_file_that_is_no_config_is_one_sentence(tmp_path, text, message):
    file = tmp_path / "config.py"
    file.write_text(text)
    command = [sys.executable, "-m", "eval.speedup", f"--config={file}", f"--workdir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_bad_workdir_shows_before_the_run(tmp_path):
    """Here the target doesn't even exist."""
    file = tmp_path / "file"
    file.write_text("")
    command = [sys.executable, "-m", "eval.speedup", "--config=configs/speedup_smollm2.py"]
    command += [f"--workdir={file}", "--config.target=/no/such/folder"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and f"--workdir={file}: nothing can be written" in done.stderr
