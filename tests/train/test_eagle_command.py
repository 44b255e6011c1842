"""The EAGLE head's command in processes of its own: on many devices, and killed."""

import json
import os
import signal

import numpy as np
import pytest

from tests.eval import tiny
from tests.train.processes import Processes

# Eight documents of the 24 are held out: one for each device, as are the rows of a batch.
SETTINGS = {
    "layers": (1, 2, -1), "draft_vocab_size": 64, "length": 32, "batch": 8, "held_out": 0.33,
    "held_out_rows": 8, "eval_steps": 2, "loop.steps": 8, "loop.warmup_steps": 2,
    "loop.eval_every": 4, "loop.checkpoint_every": 2, "loop.log_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the command and gives what it printed."""
    root = tmp_path_factory.mktemp("command")
    target = tiny.make_folder(root / "target")
    places = {"target": target, "data": tiny.make_shards(root / "shards", target)}
    settings = [f"--config.{name}={value}" for name, value in (places | SETTINGS).items()]
    processes = Processes(root, "tests.train.eagle_command")

    def one(workdir, *more, code=0, **env):
        flags = ["--config=configs/eagle3_smollm2.py", f"--workdir={workdir}", *settings, *more]
        ((found, said),) = processes.run((flags, env))
        assert found == code, said
        return said

    yield one
    processes.close()


@pytest.fixture(scope="module")
def reference(tmp_path_factory, run):
    """The workdir of an uninterrupted run on one device."""
    workdir = tmp_path_factory.mktemp("reference")
    run(workdir)
    return workdir


def read(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_killed_and_started_again_it_is_the_same_run(tmp_path, run, reference) -> None:
    run(tmp_path, code=-signal.SIGKILL, EAGLE_KILL="6")
    assert not (tmp_path / "results.json").exists()
    said = run(tmp_path)
    assert "going on from step" in said and "GB in" not in said, "the features are there"
    with np.load(tmp_path / "params.npz") as ours, np.load(reference / "params.npz") as whole:
        assert ours.files == whole.files and "qkv" in ours.files
        for name in ours.files:
            np.testing.assert_array_equal(ours[name], whole[name])
    for name in ("features/features.bf16", "best/model.safetensors", "last/model.safetensors"):
        assert (tmp_path / name).read_bytes() == (reference / name).read_bytes()


def test_eight_devices_give_one_devices_losses(tmp_path, run, reference) -> None:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    run(tmp_path, "--config.mesh=data:8", XLA_FLAGS=flags)
    ours, whole = read(tmp_path), read(reference)
    assert len(ours) == len(whole) == 8 + 2
    for name in ("step", "loss", "top1_1", "accept_length"):
        values = [[record[name] for record in records] for records in (ours, whole)]
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6)
