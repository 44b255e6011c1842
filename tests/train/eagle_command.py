"""The EAGLE head's command as it is, but that it can be killed, and leaves float32 weights.

``EAGLE_KILL=5`` in the environment kills it as it makes the batch of step 5, a step or two ahead.
"""

import os
import pathlib
import signal

import numpy as np

from train import cli, eagle_head
from train.material import Material


def _run(config, workdir):
    make = Material.batch

    def batch(self, step):
        if str(step) == os.environ.get("EAGLE_KILL"):
            os.kill(os.getpid(), signal.SIGKILL)
        return make(self, step)

    Material.batch = batch
    summary = eagle_head.run(config, workdir)
    np.savez(pathlib.Path(workdir) / "params.npz", **summary.params)
    return summary


def main():
    cli.main(_run)
