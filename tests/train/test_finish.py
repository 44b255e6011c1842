"""What a run leaves behind: a head's folder is there whole, or as it was."""

import pathlib

import numpy as np
import pytest

from tests.train import toy
from train import checkpoint, finish


def test_what_killed_exports_left_is_removed(tmp_path) -> None:
    best, left = tmp_path / "best", (tmp_path / ".best-1234567_", tmp_path / ".best-abcdefgh-old")
    for folder in (best, *left):
        folder.mkdir()
        (folder / "was").touch()
    others = [".best-notes", ".last-1234567_"]  # somebody's own, and another head's
    for name in others:
        (tmp_path / name).mkdir()
    finish.export(toy.export, [np.ones(3)], checkpoint.folder(best))
    assert sorted(path.name for path in tmp_path.iterdir()) == [*others, "best"]
    assert [path.name for path in best.iterdir()] == ["head.npz"]


def test_an_export_that_fails_leaves_the_one_before(tmp_path) -> None:
    def stop(params, folder):
        raise OSError("no space")

    finish.export(toy.export, [np.ones(3)], checkpoint.folder(tmp_path / "best"))
    with pytest.raises(OSError, match="no space"):
        finish.export(stop, [], checkpoint.folder(tmp_path / "best"))
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert (tmp_path / "best" / "head.npz").exists()


def test_a_folder_that_cannot_be_replaced_comes_back(tmp_path, monkeypatch) -> None:
    best = checkpoint.folder(tmp_path / "best")
    finish.export(toy.export, [np.ones(3)], best)
    move = pathlib.Path.replace

    def refused(path, to):
        if path.name.endswith("-old") or path == tmp_path / "best":
            return move(path, to)
        raise OSError("not now")

    monkeypatch.setattr(pathlib.Path, "replace", refused)
    with pytest.raises(OSError, match="not now"):
        finish.export(toy.export, [np.zeros(3)], best)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert np.all(np.load(tmp_path / "best" / "head.npz")["0"] == 1)
