"""Setting the environment up, in a copy of the few files it reads, with make-believe Pythons."""

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from scripts import setup_env

ROOT = pathlib.Path(__file__).parents[2]

# A shell script that stands for an interpreter: it answers the probe from facts.json beside it,
# logs pip's arguments, makes environments by copying itself, and fails where a file says so.
FAKE = """#!/bin/sh
here=$(dirname "$0")
case "$1 $2 $3" in
"-m pip install")
    echo "$@" >> "$LOG"
    for last; do :; done
    if [ -e "$CONTROL/killed" ]; then kill -9 $PPID; exit 1; fi
    [ ! -e "$CONTROL/offline" ] ;;
"-m venv --clear")
    echo "venv" >> "$LOG"
    rm -rf "$4"; mkdir -p "$4/bin"
    cp "$0" "$4/bin/python"; cp "$here/facts.json" "$4/bin/facts.json" ;;
"-c import importlib"*)
    echo "imports" >> "$LOG"; [ ! -e "$CONTROL/broken" ] ;;
*)
    cat "$here/facts.json" ;;
esac
"""

FACTS = {
    "version": [3, 12, 1],
    "prefix": "/somewhere",
    "jax": None,
    "jaxlib": None,
    "pip": True,
    "venv": True,
    "managed": False,
}


class Machine:
    """A copy of the repository's set-up files, and fake interpreters."""

    def __init__(self, folder: pathlib.Path):
        self.root, self.bin, self.log = folder / "root", folder / "bin", folder / "log"
        for name in ("requirements.txt", "requirements-dev.txt"):
            self._copy(name)
        self._copy("scripts/setup_env.py")
        self._copy("specjax/machine.py")
        self.log.touch()
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "LOG": str(self.log),
            "CONTROL": str(folder),
        }
        self.folder = folder

    def _copy(self, name):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, self.root / name)

    def python(self, path: pathlib.Path, **facts) -> pathlib.Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FAKE)
        path.chmod(0o755)
        (path.parent / "facts.json").write_text(json.dumps(FACTS | facts))
        return path

    def on_path(self, **facts) -> None:
        """Makes every name that is searched for the same fake, so that none is this machine's."""
        for name in setup_env.NAMES:
            self.python(self.bin / name, **facts)

    def active(self, **facts) -> pathlib.Path:
        prefix = self.folder / "env"
        self.environment["VIRTUAL_ENV"] = str(prefix)
        facts = {"prefix": str(prefix), "jax": "0.10.2", "jaxlib": "0.10.2"} | facts
        return self.python(prefix / "bin" / "python", **facts)

    def control(self, name: str, on: bool = True) -> None:
        (self.folder / name).touch() if on else (self.folder / name).unlink()

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        self.log.write_text("")
        return subprocess.run(
            [sys.executable, "scripts/setup_env.py", *arguments],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def ok(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sentence(done: subprocess.CompletedProcess) -> str:
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_makes_venv_once(machine):
    machine.on_path()
    python = str(machine.root / ".venv/bin/python")
    assert ok(machine.run()) == python
    venv, install, imports = machine.calls()
    assert (venv, imports) == ("venv", "imports")
    assert install.endswith(f"-r {machine.root}/requirements.txt")
    machine.control("offline")
    assert ok(machine.run()) == python
    assert machine.calls() == []


def test_development_needs_more_and_covers_use(machine):
    machine.on_path()
    ok(machine.run())
    ok(machine.run("--dev"))
    install, _ = machine.calls()
    assert install.endswith("requirements-dev.txt")
    for arguments in ([], ["--dev"]):
        ok(machine.run(*arguments))
        assert machine.calls() == []


def test_a_new_requirement_installs_again_and_offline_keeps_the_old(machine):
    machine.on_path()
    ok(machine.run())
    requirements = machine.root / "requirements.txt"
    before = requirements.read_text()
    requirements.write_text(before + "\nnew-package\n")
    machine.control("offline")
    assert "pip can't install" in sentence(machine.run())
    requirements.write_text(before)
    ok(machine.run())
    assert machine.calls() == []
    machine.control("offline", False)
    requirements.write_text(before + "\nnew-package\n")
    ok(machine.run())
    assert [call.split()[0] for call in machine.calls()] == ["-m", "imports"]


def test_offline_before_it_was_set_up(machine):
    machine.on_path()
    machine.control("offline")
    assert "connect to a network" in sentence(machine.run())
    machine.control("offline", False)
    ok(machine.run())
    assert machine.calls()[0] == "venv"


@pytest.mark.parametrize("how", ["killed", "broken"])
def test_a_half_finished_set_up_is_not_taken_as_complete(machine, how):
    machine.on_path()
    machine.control(how)
    assert machine.run().returncode != 0
    machine.control(how, False)
    ok(machine.run())
    assert [call.split()[0] for call in machine.calls()] == ["venv", "-m", "imports"]


def test_an_active_environment_keeps_its_jax(machine):
    machine.on_path()
    python = machine.active()
    constraints = machine.folder / "seen"
    # pip's arguments end with: -c constraints -r requirements; look at them while they are there.
    script = python.read_text().replace(
        "for last; do :; done", f"cat ${{10}} ${{12}} > {constraints}"
    )
    python.write_text(script)
    assert ok(machine.run()) == str(python)
    assert "--upgrade-strategy=only-if-needed" in machine.calls()[0]
    lines = constraints.read_text().splitlines()
    assert lines[:2] == ["jax==0.10.2", "jaxlib==0.10.2"]
    assert not any(line.startswith(("jax>", "jax[")) for line in lines)
    assert any(line.startswith("flax") for line in lines)
    assert not (machine.root / ".venv").exists()
    ok(machine.run())
    assert machine.calls() == []
    # Another jax there: what is installed is looked at again.
    machine.active(jax="0.11.0")
    ok(machine.run())
    assert machine.calls()


def test_an_active_environment_without_jax_is_left_alone(machine):
    machine.on_path()
    machine.active(jax=None)
    done = machine.run()
    assert ok(done) == str(machine.root / ".venv/bin/python")
    assert "has no jax: using .venv instead" in done.stderr


def test_our_own_venv_may_be_active(machine):
    machine.on_path()
    python = ok(machine.run())
    machine.environment["VIRTUAL_ENV"] = str(machine.root / ".venv")
    assert ok(machine.run()) == python
    assert machine.calls() == []


@pytest.mark.parametrize(
    "facts, message",
    [
        ({"jax": "0.4.30"}, "has jax 0.4.30 and specjax needs jax>=0.10,<0.13: change jax there"),
        ({"jax": "0.13.0"}, "has jax 0.13.0 and specjax needs"),
        ({"version": [3, 10, 4]}, "has Python 3.10.4 and specjax needs 3.11 or newer: deactivate"),
        ({"pip": False}, "has no pip: install it with"),
    ],
)
def test_an_active_environment_that_will_not_do(machine, facts, message):
    machine.active(**facts)
    assert message in sentence(machine.run())


@pytest.mark.parametrize("managed, used", [(False, True), (True, False)])
def test_colab(machine, managed, used):
    machine.on_path(jax="0.10.2", jaxlib="0.10.2", managed=managed)
    machine.environment["COLAB_RELEASE_TAG"] = "release"
    assert (ok(machine.run()) == str(machine.bin / "python3")) == used


@pytest.mark.parametrize(
    "driver, capability, extra", [("580.1", "9.0", "cuda13"), ("550.1", "9.0", "cuda12")]
)
def test_a_gpu_gets_its_extra(machine, driver, capability, extra):
    machine.on_path()
    smi = machine.bin / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho 'NVIDIA H200, {driver}, {capability}'\n")
    smi.chmod(0o755)
    done = machine.run()
    ok(done)
    assert "for NVIDIA H200" in done.stderr
    assert machine.calls()[1].endswith(f"requirements.txt jax[{extra}]")
    smi.unlink()  # and without it, jax is looked at again
    ok(machine.run())
    assert machine.calls()[0].endswith("requirements.txt")


@pytest.mark.parametrize(
    "facts, message",
    [
        ({"version": [3, 9, 2]}, "needs Python 3.11 or newer, and python3.14 is 3.9.2"),
        ({"venv": False}, "(it lacks venv or ensurepip): install them, for example with `apt"),
    ],
)
def test_no_python_that_will_do(machine, facts, message):
    machine.on_path(**facts)
    assert message in sentence(machine.run())


def test_a_python_that_is_named(machine, tmp_path):
    machine.on_path(version=[3, 9, 2])
    machine.environment["PYTHON"] = str(machine.python(tmp_path / "other" / "python3.12"))
    ok(machine.run())
    machine.environment["PYTHON"] = "/no/python"
    shutil.rmtree(machine.root / ".venv")
    assert "and /no/python does not run: install one" in sentence(machine.run())


def test_another_python_does_not_change_what_is_there(machine, tmp_path):
    machine.on_path()
    python = ok(machine.run())
    machine.environment["PYTHON"] = str(machine.bin / "python3.12")
    assert machine.run().stderr == ""  # the same version
    newer = machine.python(tmp_path / "other" / "python3.13", version=[3, 13, 0])
    machine.environment["PYTHON"] = str(newer)
    for name in (str(newer), "/no/python"):
        machine.environment["PYTHON"] = name
        done = machine.run()
        assert ok(done) == python
        assert f".venv is of Python 3.12.1 and stays so, whatever PYTHON={name} is" in done.stderr
        assert "`make clean` first" in done.stderr


def test_an_unknown_argument(machine):
    assert machine.run("--devel").returncode == 2


@pytest.mark.parametrize(
    "version, expected",
    [
        ("0.9.2", False),
        ("0.10.0", True),
        ("0.10", True),
        ("0.12.0.1", True),
        ("0.12.1.dev20260101+abc", True),
        ("0.13", False),
        ("1.0", False),
    ],
)
def test_version_ranges(version, expected):
    assert setup_env.satisfies(version, "jax>=0.10,<0.13") is expected


def test_an_old_python_can_read_the_files():
    for name in ("scripts/setup_env.py", "specjax/machine.py"):
        compile_with_features_of(3, 6, ROOT / name)


def compile_with_features_of(major: int, minor: int, path: pathlib.Path) -> None:
    ast.parse(path.read_text(), feature_version=(major, minor))


def requirements(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text().splitlines() if re.match(r"\w", line)]


def test_pyproject_names_the_same_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert project["dependencies"] + extras["tools"] == requirements("requirements.txt")
    assert extras["dev"] == requirements("requirements-dev.txt")


def test_the_library_depends_on_what_it_imports_and_no_more():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.match(r"\w+", line)[0] for line in project["dependencies"]}
    imported = imports(ROOT / "specjax") - set(sys.stdlib_module_names) - {"specjax"}
    assert imported == named


def test_every_package_that_is_imported_is_required_and_probed():
    packages = {re.match(r"[\w-]+", line)[0] for line in requirements("requirements.txt")}
    modules = {"absl-py": "absl", "orbax-checkpoint": "orbax"}
    required = {modules.get(name, name) for name in packages}
    assert {name.partition(".")[0] for name in setup_env.MODULES} == required
    folders = ("specjax", "eval", "train", "scripts", "configs")
    ours = {*folders, "datasets"}  # datasets: an extra of its own
    imported = set().union(*(imports(ROOT / folder) for folder in folders))
    assert imported - set(sys.stdlib_module_names) - ours <= required


def imports(folder: pathlib.Path) -> set[str]:
    """Top-level names of what a folder's files import, wherever they do."""
    names = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(str(node.module).partition(".")[0])
    return names


def test_make_help_lists_every_target():
    # Without what a make that runs the tests passes on to this one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert {line.split()[1] for line in done.stdout.splitlines()} == set(targets) - {"help"}


def test_make_without_any_python(tmp_path):
    make = shutil.which("make")
    environment = {"PATH": str(tmp_path)}
    os.symlink(shutil.which("sh"), tmp_path / "sh")
    done = subprocess.run(
        [make, "setup"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "no Python was found: install Python 3.11 or newer" in done.stderr
