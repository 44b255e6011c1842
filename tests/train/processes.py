"""Runs of the toy task in processes of their own, without importing everything anew for each.

One process imports jax and the loop once, and forks for every run, before jax has any device or
thread. ``python -m tests.train.processes`` reads a line of JSON for each run, ``{"flags", "env",
"log"}``, answers with its number, and later with the number and the exit code.
"""

import json
import os
import pathlib
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).parents[2]


class Processes:
    """The side of the tests."""

    def __init__(self, folder):
        self._folder = folder
        # ml_collections loads configs in a deprecated way, before Python 3.12.
        strict = ["-W", "error", "-W", "ignore:the load_module:DeprecationWarning"]
        self._server = subprocess.Popen(
            [sys.executable, *strict, "-m", "tests.train.processes"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._count = 0

    def run(self, *runs):
        """Runs (flags, env) of each at the same time; (exit code, what it printed) of each."""
        logs = []
        for flags, env in runs:
            self._count += 1
            logs.append(self._folder / f"{self._count}.txt")
            line = {"flags": list(flags), "env": env, "log": str(logs[-1])}
            print(json.dumps(line), file=self._server.stdin, flush=True)
        codes = dict(json.loads(self._server.stdout.readline()) for _ in runs)
        return [(codes[str(log)], log.read_text()) for log in logs]

    def close(self):
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._server.stdout.close()


def _child(request):
    with open(request["log"], "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(request["env"])
    sys.argv = ["toy", *request["flags"]]
    from tests.train import toy

    code = 1
    try:
        toy.main()
    except SystemExit as error:
        code = error.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _answer(pid, log):
    _, status = os.waitpid(pid, 0)
    print(json.dumps([log, os.waitstatus_to_exitcode(status)]), flush=True)


def _serve():
    sys.modules["torch"] = None  # tensorboardX would import it, for its own use of it
    import tensorboardX  # noqa: F401
    from matplotlib import figure  # noqa: F401
    from matplotlib.backends import backend_agg  # noqa: F401

    from tests.train import toy  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(request)
        threading.Thread(target=_answer, args=(pid, request["log"])).start()


if __name__ == "__main__":
    _serve()
