"""Runs of a command in processes of their own, without importing everything anew for each.

One process imports jax and the command once, and forks for every run, before jax has any device.
``python -m tests.train.processes MODULE`` reads lines of JSON, each a list of runs to start
together, ``{"flags", "env", "log"}``, and answers each line with their exit codes.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
# ml_collections loads configs in a deprecated way, before Python 3.12; from then on Python warns of
# forks in a process with threads, and numpy's linear algebra has some.
WARNINGS = "ignore:the load_module:DeprecationWarning", "ignore:This process:DeprecationWarning"


class Processes:
    """The side of the tests; the command is the ``main`` of a module, by default the toy task's."""

    def __init__(self, folder, module="tests.train.toy"):
        self._folder = folder
        options = [option for warning in ("error", *WARNINGS) for option in ("-W", warning)]
        self._server = subprocess.Popen(
            [sys.executable, *options, "-m", "tests.train.processes", module],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._count = 0

    def run(self, *runs):
        """Runs (flags, env) of each at the same time; (exit code, what it printed) of each."""
        lines = []
        for flags, env in runs:
            self._count += 1
            log = str(self._folder / f"{self._count}.txt")
            lines.append({"flags": list(flags), "env": env, "log": log})
        print(json.dumps(lines), file=self._server.stdin, flush=True)
        codes = json.loads(self._server.stdout.readline())
        return [
            (code, pathlib.Path(line["log"]).read_text())
            for code, line in zip(codes, lines, strict=True)
        ]

    def close(self):
        self._server.stdin.close()
        self._server.wait(timeout=900)
        self._server.stdout.close()


def _start(main, run):
    """The number of a new process."""
    pid = os.fork()
    if pid:
        return pid
    with open(run["log"], "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(run["env"])
    sys.argv = ["command", *run["flags"]]
    code = 1
    try:
        main()
    except SystemExit as error:
        code = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(module):
    # What the children need, once. (tensorboardX would import torch, and has no need of it.)
    sys.modules["torch"] = None
    import tensorboardX  # noqa: F401
    from matplotlib import figure  # noqa: F401
    from matplotlib.backends import backend_agg  # noqa: F401

    main = importlib.import_module(module).main
    for line in sys.stdin:
        pids = [_start(main, run) for run in json.loads(line)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
