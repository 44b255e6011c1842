"""How a training command joins others and ends."""

import subprocess
import sys

import pytest

from train import cli
from train.task import Summary


def summary(**changes):
    made = Summary({}, {}, 7, "", 5, 0.25, 3.0, [])
    return made._replace(**changes)


@pytest.mark.parametrize(
    "stopped, code", [("", 0), ("max_seconds", 0), ("SIGTERM", 143), ("SIGINT", 130)]
)
def test_exit_codes(stopped, code) -> None:
    assert cli.exit_code(summary(stopped=stopped)) == code


def test_the_last_sentence() -> None:
    assert cli.sentence(summary(), "runs/x") == (
        "7 steps in 3 s; best held-out score 0.25 at step 5: runs/x"
    )
    said = cli.sentence(summary(stopped="max_seconds", best_score=None), "runs/x")
    assert said == "max_seconds at step 7, saved: the same command goes on from there. runs/x"


def test_half_an_address_is_no_address(monkeypatch) -> None:
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1234")
    with pytest.raises(ValueError, match="JAX_NUM_PROCESSES isn't; set all three"):
        cli.join()


def test_alone_one_cannot_join(monkeypatch) -> None:
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)

    def initialize():
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(cli.jax.distributed, "initialize", initialize)
    with pytest.raises(ValueError, match="Outside of a cluster set JAX_COORDINATOR_ADDRESS=host"):
        cli.join()


def test_a_bad_workdir_shows_before_the_data_are_read(tmp_path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    command = [sys.executable, "-m", "train.eagle_head", "--config=configs/eagle3_smollm2.py"]
    command += [f"--workdir={file}", "--config.data=/no/such/folder"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and f"--workdir={file}: nothing can be written" in done.stderr
