"""What every training command shares: its flags, and how it ends.

Exit codes as of eval/cli.py, and 143 or 130 after SIGTERM or SIGINT: everything was saved, and
the same command goes on from there. A run that ``max_seconds`` stopped exits with 0.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import jax
from absl import flags
from ml_collections import ConfigDict

from eval import cli
from specjax import device
from train import checkpoint
from train.task import Summary

# A plain machine has nothing that tells its processes of each other; clusters do.
_ADDRESS, _COUNT, _INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def main(run: Callable[[ConfigDict, str], Summary]) -> None:
    """The command: ``--config``, ``--workdir``, ``--multihost``, ``--profile``.

    Args:
      run: ``(config, workdir)``, trains; the loop's settings are ``config.loop``.
    """
    config, workdir = cli.define_flags()
    multihost = flags.DEFINE_bool(
        "multihost", False, "Train in several processes that share --workdir; start one on each "
        f"host. Clusters say who is who; elsewhere set {_ADDRESS}, {_COUNT} and {_INDEX}."
    )  # fmt: skip
    profile = flags.DEFINE_string(
        "profile", None, "START:N writes a trace of N steps from step START on to the workdir."
    )

    def command() -> int:
        if multihost.value:
            join()
        device.check_accelerator()
        device.enable_compilation_cache()
        # Once for all processes; buckets have no folders to try.
        if jax.process_index() == 0 and not checkpoint.is_remote(workdir.value):
            cli.check_workdir(workdir.value)
        settings = config.value
        if profile.value is not None:
            settings.loop.profile = profile.value
        summary = run(settings, workdir.value)
        if jax.process_index() == 0:
            print(sentence(summary, workdir.value), flush=True)
        return exit_code(summary)

    cli.run_app(command)


def join() -> None:
    """Joins the other processes; before anything asks jax for devices.

    Raises:
      ValueError: neither a cluster nor the environment says who the others are.
    """
    given = [name for name in (_ADDRESS, _COUNT, _INDEX) if name in os.environ]
    if given and len(given) < 3:
        missing = next(name for name in (_ADDRESS, _COUNT, _INDEX) if name not in given)
        raise ValueError(f"--multihost: {given[0]} is set, but {missing} isn't; set all three")
    try:
        if given:
            count, index = int(os.environ[_COUNT]), int(os.environ[_INDEX])
            jax.distributed.initialize(os.environ[_ADDRESS], count, index)
        else:
            jax.distributed.initialize()
    except ValueError as error:
        raise ValueError(
            f"--multihost: {error} Outside of a cluster set {_ADDRESS}=host:port, {_COUNT} and "
            f"{_INDEX} (from 0) in every process"
        ) from error


def sentence(summary: Summary, workdir: str) -> str:
    """How a run ended, in a sentence."""
    best = ""
    if summary.best_score is not None:
        best = f"; best held-out score {summary.best_score:.4g} at step {summary.best_step}"
    if summary.stopped:
        return (
            f"{summary.stopped} at step {summary.step}, saved{best}: the same command goes on "
            f"from there. {workdir}"
        )
    return f"{summary.step} steps in {summary.seconds:.0f} s{best}: {workdir}"


def exit_code(summary: Summary) -> int:
    """0, or 128 and the signal that stopped the run."""
    if summary.stopped in ("SIGTERM", "SIGINT"):
        return 128 + int(signal.Signals[summary.stopped])
    return 0
