"""The store of features: filled once, by one process, from where it was stopped."""

import collections
import json
import os
import shutil
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import data, features

COUNT, LENGTH = 70, 1024  # in batches of four rows


@pytest.fixture
def rows():
    tokens = np.random.default_rng(0).integers(0, 100, (COUNT, LENGTH)).astype(np.int32)
    return data.Rows(tokens, tokens > 50, tokens, tokens)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass with every batch."""
    made = types.SimpleNamespace(now=0.0, batch=features._NOTE_S)
    made.monotonic, made.sleep = lambda: made.now, time.sleep
    monkeypatch.setattr(features, "time", made)
    return made


@pytest.fixture
def batches(monkeypatch, clock):
    """The first token of each batch that was computed; the last may be one to stop at."""
    seen = []

    def compute(target, layers, params, part):
        if len(seen) == params:
            raise KeyboardInterrupt
        clock.now += clock.batch
        seen.append(int(part["tokens"][0, 0]))
        return jnp.stack([part["tokens"], 2 * part["position"]], axis=-1).astype(jnp.float32)

    monkeypatch.setattr(features, "compute", compute)
    return seen


def filled(folder, rows, stop=None, **about):
    store = features.Store(folder, 2, {"of": "x"} | about)
    store.fill(None, (), stop, rows)
    return store


def assert_same(one, other):
    for name in ("features.bf16", "manifest.json", "about.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_fill_that_was_stopped_goes_on_and_gives_the_same_bytes(tmp_path, rows, batches) -> None:
    store = filled(tmp_path / "whole", rows)
    assert len(batches) == 18, "17 batches, and one that reaches back"
    want = np.stack([rows.tokens, 2 * rows.position], axis=-1)[[69, 3]]
    np.testing.assert_array_equal(store.read(np.array([69, 3])).astype(np.float32), want)
    for stop, left in ((1, 17), (10, 8), (17, 1)):
        batches.clear()
        with pytest.raises(KeyboardInterrupt):
            filled(tmp_path / str(stop), rows, stop)
        assert not (tmp_path / str(stop) / "manifest.json").exists()
        batches.clear()
        filled(tmp_path / str(stop), rows)
        assert len(batches) == left, "what was noted isn't computed again"
        assert_same(tmp_path / "whole", tmp_path / str(stop))
    batches.clear()
    filled(tmp_path / "whole", rows)
    assert not batches, "a whole store is only read"


def test_a_fast_target_stops_for_few_flushes(tmp_path, rows, batches, clock) -> None:
    clock.batch = features._NOTE_S / 4
    with pytest.raises(KeyboardInterrupt):
        filled(tmp_path, rows, 11)
    assert json.loads((tmp_path / "progress.json").read_text()) == {"rows": 8 * 4}


@pytest.mark.parametrize("spoil", ["missing", "short"])
def test_what_was_noted_of_other_data_counts_for_nothing(
    tmp_path, rows, batches, capsys, spoil
) -> None:
    """Rows that are gone would be taken for zeros."""
    filled(tmp_path / "whole", rows)
    batches.clear()
    with pytest.raises(KeyboardInterrupt):
        filled(tmp_path / "spoilt", rows, 10)
    path = tmp_path / "spoilt" / "features.bf16"
    size = path.stat().st_size
    path.unlink() if spoil == "missing" else os.truncate(path, size - 2)
    batches.clear()
    with pytest.raises(KeyboardInterrupt):  # before anything is noted again
        filled(tmp_path / "spoilt", rows, 0)
    left = 0 if spoil == "missing" else size - 2
    said = f"begun anew, because {path} has {left} bytes, not the {size} it was begun with"
    assert said in capsys.readouterr().out
    filled(tmp_path / "spoilt", rows)
    assert len(batches) == 18
    assert_same(tmp_path / "whole", tmp_path / "spoilt")


def test_a_store_that_was_whole_and_is_not_is_refused(tmp_path, rows, batches) -> None:
    filled(tmp_path, rows)
    path = tmp_path / "features.bf16"
    size = path.stat().st_size
    os.truncate(path, size // 2)
    message = rf"features\.bf16 has {size // 2} bytes, but manifest\.json .* says {size}; delete"
    with pytest.raises(ValueError, match=message):
        filled(tmp_path, rows)
    path.unlink()
    with pytest.raises(ValueError, match=r"features\.bf16 has 0 bytes"):
        filled(tmp_path, rows)


def test_a_store_is_of_one_dtype(tmp_path, rows, batches) -> None:
    filled(tmp_path, rows, dtype="bfloat16")
    with pytest.raises(ValueError, match=r"made with dtype='bfloat16', but now it is 'float32'"):
        filled(tmp_path, rows, dtype="float32")


def test_a_store_that_was_made_before_dtypes_were_noted_goes_on(tmp_path, rows, batches) -> None:
    with pytest.raises(KeyboardInterrupt):
        filled(tmp_path, rows, 10)
    about = (tmp_path / "about.json").read_bytes()
    batches.clear()
    filled(tmp_path, rows, dtype="float32")
    assert len(batches) == 8
    assert (tmp_path / "about.json").read_bytes() == about, "what it wasn't noted to be"
    filled(tmp_path, rows, dtype="float32")
    with pytest.raises(ValueError, match=r"made with new=None, but now it is 'x'"):
        filled(tmp_path, rows, new="x")


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
    monkeypatch.setattr(features, "time", time)
    with pytest.raises(ValueError, match=r"process 1 finds no features in .*; config\.feature"):
        filled(tmp_path / "own", rows)
    assert not batches
