"""Checkpoints that are whole, halved, of another shape, and of another run."""

import os
import shutil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from train import checkpoint
from train.mesh import Mesh


class State(NamedTuple):
    params: Any
    opt_state: Any
    step: jax.Array


def state(step=0, width=3):
    params = {"w": jnp.full((2, width), float(step)), "b": jnp.arange(width).astype(jnp.bfloat16)}
    made = State(params, optax.adam(1e-3).init(params), jnp.full([], step, jnp.int32))
    return Mesh(1).replicate(made)


def abstract(of):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), of)


@pytest.fixture
def make(tmp_path):
    made = []

    def one(keep_last=2, folder="checkpoints", say=print, **fingerprint):
        path = checkpoint.folder(tmp_path / folder)
        fingerprint = {"target": "A", "data": {"name": "B", "rows": 3}} | fingerprint
        made.append(checkpoint.Checkpoints(path, fingerprint, keep_last, say))
        return made[-1]

    yield one
    for one in made:
        one.close()


def steps(saves):
    return [saved.step for saved in saves.all()]


def test_what_is_loaded_is_what_was_saved(make) -> None:
    saves, saved = make(), state(7)
    saves.save(7, saved, seconds=1.5)
    saves.wait()
    (latest,) = saves.all()
    assert latest.step == 7 and latest.score is None and latest.manifest["seconds"] == 1.5
    loaded = saves.load(latest, abstract(saved))
    assert jax.tree.structure(loaded) == jax.tree.structure(saved)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(saved), strict=True):
        assert a.dtype == b.dtype and a.sharding == b.sharding
        np.testing.assert_array_equal(a, b)


def test_buffers_may_be_donated_while_the_checkpoint_is_written(make) -> None:
    saves = make()
    step = jax.jit(lambda x: jax.tree.map(lambda y: y * 0 - 1, x), donate_argnums=0)
    for number in range(4):
        big = Mesh(1).replicate({"w": jnp.full((300, 1000), float(number))})
        expected = np.full((300, 1000), number)
        saves.save(number, big)
        for _ in range(3):
            big = step(big)
        jax.block_until_ready(big)
        saves.wait()
        loaded = saves.load(saves.all()[-1], abstract(big))
        np.testing.assert_array_equal(loaded["w"], expected)


def test_the_newest_and_the_best_stay(make) -> None:
    saves = make(keep_last=2)
    for step, score in [(1, 0.1), (2, 0.9), (3, None), (4, 0.5), (5, 0.9), (6, None), (7, None)]:
        saves.save(step, state(step), score=score)
    saves.wait()
    assert steps(saves) == [2, 6, 7]  # of equals the first is the best
    assert saves.best().step == 2


def test_halves_are_skipped_and_removed(make, tmp_path) -> None:
    saves = make(keep_last=9)
    for step in range(1, 6):
        saves.save(step, state(step))
    saves.wait()
    folder = tmp_path / "checkpoints"
    (folder / "00000005" / "manifest.json").unlink()
    manifest = folder / "00000004" / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])
    files = [p for p in (folder / "00000003" / "state").rglob("*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    os.truncate(largest, largest.stat().st_size - 1)
    for path in (folder / "00000002" / "state").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / "00000006.orbax-checkpoint-tmp-1").mkdir()
    said = []
    again = make(say=said.append)
    assert again.latest().step == 1
    assert len(said) == 5 and all("never finished" in line for line in said)
    assert sorted(p.name for p in folder.iterdir()) == ["00000001"]


@pytest.mark.parametrize(
    "change, named",
    [
        ({"target": "C"}, "target is A in it, and C in this run"),
        ({"data": {"name": "B", "rows": 4}}, "data.rows is 3 in it, and 4 in this run"),
        ({"seed": 1}, "seed is not there in it, and 1 in this run"),
    ],
)
def test_another_runs_checkpoint_is_refused(make, change, named) -> None:
    saves = make()
    saves.save(1, state(1))
    saves.wait()
    other = make(**change)
    with pytest.raises(ValueError, match=named):
        other.load(other.latest(), abstract(state()))


def test_another_shape_is_refused_before_anything_is_read(make, monkeypatch) -> None:
    saves = make()
    saves.save(1, state(1))
    saves.wait()
    monkeypatch.setattr(checkpoint.ocp, "load", None)
    latest = saves.latest()
    with pytest.raises(ValueError, match=r"params/b is bfloat16\[3\] in it, and bfloat16\[4\]"):
        saves.load(latest, abstract(state(width=4)))
    with pytest.raises(ValueError, match=r"opt_state.*not there in this run"):
        saves.load(latest, abstract(state()._replace(opt_state=())))


def test_a_failed_write_is_told_at_the_next_save(make, monkeypatch) -> None:
    saves = make()

    def fail(*args):
        raise OSError("no space left on the device")

    monkeypatch.setattr(checkpoint, "write_text", fail)
    saves.save(1, state(1))
    with pytest.raises(OSError, match="no space"):
        saves.save(2, state(2))
    assert steps(saves) == []


def test_remote_paths_stay_as_they_are() -> None:
    assert os.fspath(checkpoint.folder("gs://bucket/run")) == "gs://bucket/run"
    assert os.path.isabs(os.fspath(checkpoint.folder("runs/x")))
