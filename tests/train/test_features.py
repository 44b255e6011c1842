"""The store of features: filled once, by one process, from where it was stopped."""

import collections
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import data, features

COUNT, LENGTH = 70, 1024  # in batches of four rows; the 17th is the second that is noted


@pytest.fixture
def rows():
    tokens = np.random.default_rng(0).integers(0, 100, (COUNT, LENGTH)).astype(np.int32)
    return data.Rows(tokens, tokens > 50, tokens, tokens)


@pytest.fixture
def batches(monkeypatch):
    """The first token of each batch that was computed; the last may be one to stop at."""
    seen = []

    def compute(target, layers, params, part):
        if len(seen) == params:
            raise KeyboardInterrupt
        seen.append(int(part["tokens"][0, 0]))
        return jnp.stack([part["tokens"], 2 * part["position"]], axis=-1).astype(jnp.float32)

    monkeypatch.setattr(features, "compute", compute)
    return seen


def filled(folder, rows, stop=None):
    store = features.Store(folder, 2, {"of": "x"})
    store.fill(None, (), stop, rows)
    return store


def test_a_fill_that_was_stopped_goes_on_and_gives_the_same_bytes(tmp_path, rows, batches) -> None:
    store = filled(tmp_path / "whole", rows)
    assert len(batches) == 18, "17 batches, and one that reaches back"
    want = np.stack([rows.tokens, 2 * rows.position], axis=-1)[[69, 3]]
    np.testing.assert_array_equal(store.read(np.array([69, 3])).astype(np.float32), want)
    for stop, left in ((10, 17), (17, 1)):
        batches.clear()
        with pytest.raises(KeyboardInterrupt):
            filled(tmp_path / str(stop), rows, stop)
        assert not (tmp_path / str(stop) / "manifest.json").exists()
        batches.clear()
        filled(tmp_path / str(stop), rows)
        assert len(batches) == left, "what was noted isn't computed again"
        for name in ("features.bf16", "manifest.json", "about.json"):
            whole, ours = (tmp_path / run / name for run in ("whole", str(stop)))
            assert whole.read_bytes() == ours.read_bytes()
    batches.clear()
    filled(tmp_path / "whole", rows)
    assert not batches, "a whole store is only read"


def test_a_disk_without_room_is_told_before_anything_is_computed(
    tmp_path, rows, batches, monkeypatch
) -> None:
    usage = collections.namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(200_000))
    message = r"features take 0\.0 GB, but .* free; use config\.features='online'"
    with pytest.raises(ValueError, match=message):
        filled(tmp_path, rows)
    assert not batches and not list(tmp_path.iterdir())


def test_a_folder_that_processes_do_not_share_is_refused(
    tmp_path, rows, batches, monkeypatch
) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(features, "_PATIENCE_S", 0.1)
    with pytest.raises(ValueError, match=r"process 1 finds no features in .*; config\.feature"):
        filled(tmp_path / "own", rows)
    assert not batches
