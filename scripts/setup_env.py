"""Finds or makes the Python environment that make's targets run in, and prints its interpreter.

  python3 scripts/setup_env.py [--dev]

An active environment that has jax is used as it is: only packages it lacks are installed, and jax
is never changed. Otherwise .venv is made, with the jax extra of this machine's accelerator. What
was done is remembered in a stamp, so that the next call returns at once and needs no network.

Only the standard library, and syntax that Python 3.6 can read: an old Python gets a sentence.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
CACHE = os.path.join(ROOT, ".cache")
MINIMUM = (3, 11)
NAMES = ["python3.14", "python3.13", "python3.12", "python3.11", "python3", "python"]

# Imported once after an installation: what pip calls installed may still be broken.
MODULES = [
    "absl",
    "etils.epath",
    "flax.linen",
    "gguf",
    "huggingface_hub",
    "jax",
    "jinja2",
    "matplotlib",
    "ml_collections",
    "ml_dtypes",
    "numpy",
    "optax",
    "orbax.checkpoint",
    "safetensors",
    "scipy.optimize",
    "tabulate",
    "tensorboardX",
    "tokenizers",
    "tqdm",
    "transformers",
]
DEV_MODULES = ["mypy", "pytest", "ruff", "torch", "xdist"]

PROBE = """
import json, os, sys, sysconfig
try:
    from importlib import metadata
except ImportError:
    metadata = None
def version(name):
    try:
        return metadata.version(name)
    except Exception:
        return None
def has(name):
    try:
        __import__(name)
        return True
    except ImportError:
        return False
managed = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "prefix": sys.prefix,
    "jax": version("jax"),
    "jaxlib": version("jaxlib"),
    "pip": version("pip") is not None,
    "venv": has("venv") and has("ensurepip"),
    "managed": sys.prefix == sys.base_prefix and os.path.exists(managed),
}))
"""


class SetupError(Exception):
    """Set-up can't go on; the message is one sentence that names the fix."""


def main(arguments):
    """Prints the interpreter to use; everything else goes to stderr."""
    if [argument for argument in arguments if argument != "--dev"]:
        _say("setup_env: unknown arguments %s; the only one is --dev" % arguments)
        return 2
    dev = "--dev" in arguments
    try:
        os.makedirs(CACHE, exist_ok=True)
        with lock():
            accelerator = runpy.run_path(os.path.join(ROOT, "specjax", "machine.py"))[
                "find_accelerator"
            ]()
            found = active_environment(accelerator)
            print(set_up_active(*found, dev) if found else set_up_venv(accelerator, dev))
    except SetupError as error:
        _say("setup_env: %s" % error)
        return 1
    except OSError as error:
        _say("setup_env: %s: make room or make the folder writable, and try again" % error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


@contextlib.contextmanager
def lock():
    """Lets one set-up run at a time."""
    with open(os.path.join(CACHE, "setup.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Finding an environment


def active_environment(accelerator):
    """Returns (interpreter, what `probe` says of it) of an active environment with jax, or None."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = os.environ.get(variable)
        if not prefix:
            continue
        if os.path.realpath(prefix) == os.path.realpath(VENV):
            return None
        python = os.path.join(prefix, "bin", "python")
        facts = probe(python)
        if facts and facts["jax"]:
            return python, facts
        _say("the active environment %s has no jax: using .venv instead" % prefix)
        return None
    # Colab and TPU machines come with jax in their only Python.
    if os.environ.get("COLAB_RELEASE_TAG") or (accelerator and accelerator.jax_extra == "tpu"):
        python = shutil.which("python3")
        facts = probe(python) if python else None
        if facts and facts["jax"] and not facts["managed"]:
            return python, facts
    return None


def probe(python):
    """Asks an interpreter about itself; None if it doesn't run."""
    try:
        output = subprocess.check_output([python, "-c", PROBE], stderr=subprocess.DEVNULL)
        return json.loads(output.decode())
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def find_python():
    """Returns an interpreter that is new enough and can make environments."""
    wanted = os.environ.get("PYTHON")
    seen, no_venv = [], None
    for name in [wanted] if wanted else NAMES:
        facts = probe(name)
        if facts is None:
            continue
        if tuple(facts["version"]) < MINIMUM:
            seen.append("%s is %s" % (name, _dotted(facts["version"])))
        elif not facts["venv"]:
            no_venv = no_venv or (name, facts)
        else:
            return name
    if no_venv:
        name, facts = no_venv
        package = "python%s-venv" % _dotted(facts["version"][:2])
        raise SetupError(
            "%s can't make environments (it lacks venv or ensurepip): install them, "
            "for example with `apt install %s`" % (name, package)
        )
    what = "; ".join(seen) or ("%s does not run" % wanted if wanted else "there is none here")
    raise SetupError(
        "specjax needs Python %s or newer, and %s: install one, or name one with "
        "`make PYTHON=/path/to/python3.12 ...`" % (_dotted(MINIMUM), what)
    )


# Setting it up


def set_up_active(python, facts, dev):
    """Installs what an active environment lacks, jax and jaxlib pinned to what they are."""
    where = "the active environment %s" % facts["prefix"]
    if tuple(facts["version"]) < MINIMUM:
        raise SetupError(
            "%s has Python %s and specjax needs %s or newer: deactivate it, or make a newer one"
            % (where, _dotted(facts["version"]), _dotted(MINIMUM))
        )
    required = _jax_requirement()
    if not satisfies(facts["jax"], required):
        raise SetupError(
            "%s has jax %s and specjax needs %s: change jax there, or deactivate the environment "
            "and make will use a .venv of its own" % (where, facts["jax"], required)
        )
    stamp = Stamp(
        os.path.join(CACHE, "setup-%s.json" % _digest(facts["prefix"])[:16]),
        _digest(json.dumps(facts, sort_keys=True)),
    )
    if stamp.covers(dev):
        return python
    if not facts["pip"]:
        raise SetupError("%s has no pip: install it with `%s -m ensurepip`" % (where, python))
    _say("using %s (jax %s); installing what it lacks" % (where, facts["jax"]))
    with tempfile.TemporaryDirectory() as folder, stamp.writing(dev):
        pins = os.path.join(folder, "constraints.txt")
        wanted = os.path.join(folder, "requirements.txt")
        with open(pins, "w") as file:
            file.writelines(
                "%s==%s\n" % (name, facts[name]) for name in ("jax", "jaxlib") if facts[name]
            )
        with open(wanted, "w") as file:
            file.write(
                "\n".join(line for line in _requirement_lines(dev) if _package(line) != "jax")
            )
        _install(python, ["--upgrade-strategy=only-if-needed", "-c", pins, "-r", wanted])
        check_imports(python, dev)
    return python


def set_up_venv(accelerator, dev):
    """Makes .venv, or brings it up to date."""
    python = os.path.join(VENV, "bin", "python")
    extra = accelerator.jax_extra if accelerator else ""
    stamp = Stamp(os.path.join(VENV, "specjax-setup.json"), extra)
    if os.path.exists(python) and stamp.covers(dev):
        warn_of_another_python(python)
        return python
    facts = probe(python)
    # One that was left half-finished may hold packages that only look installed.
    if facts is None or not facts["pip"] or stamp.unfinished():
        base = find_python()
        _say("making .venv with %s" % base)
        run([base, "-m", "venv", "--clear", VENV], "can't make %s" % VENV)
    elif tuple(facts["version"]) < MINIMUM:
        raise SetupError(
            "%s has Python %s and specjax needs %s or newer: delete that folder and run make again"
            % (VENV, _dotted(facts["version"]), _dotted(MINIMUM))
        )
    else:
        warn_of_another_python(python)
    for_what = " for %s" % accelerator.name if accelerator else ""
    _say("installing packages into .venv%s (minutes, the first time)" % for_what)
    with stamp.writing(dev):
        jax = ["jax[%s]" % extra] if extra else []
        _install(python, ["-r", _requirement_files(dev)[-1], *jax])
        check_imports(python, dev)
    return python


def warn_of_another_python(python):
    """Says so where .venv stays and is not of the Python that was asked for."""
    wanted = os.environ.get("PYTHON")
    facts, ours = (probe(wanted), probe(python)) if wanted else (None, None)
    if wanted and (facts and facts["version"]) != (ours and ours["version"]):
        _say(
            ".venv is of Python %s and stays so, whatever PYTHON=%s is: to make it anew, run "
            "`make clean` first" % (_dotted(ours["version"]), wanted)
        )


class Stamp:
    """What was installed: a file with a digest of the requirements, for use and for development.

    While an installation runs the file says so; only one that ends well is taken as complete.
    """

    def __init__(self, path, extra):
        """Takes the file's path and whatever else the installation depends on."""
        self.path = path
        self.keys = {
            kind: _digest(extra, *[_read(file) for file in _requirement_files(kind == "dev")])
            for kind in ("run", "dev")
        }

    def _load(self):
        try:
            return json.loads(_read(self.path))
        except (OSError, ValueError):
            return {}

    def unfinished(self):
        """Says whether an installation was begun and not ended."""
        return bool(self._load().get("unfinished"))

    def covers(self, dev):
        """Says whether what is wanted is there."""
        kind, stamp = "dev" if dev else "run", self._load()
        return not stamp.get("unfinished") and stamp.get(kind) == self.keys[kind]

    @contextlib.contextmanager
    def writing(self, dev):
        """Marks an installation as begun, and as complete when the block ends without an error."""
        before = self._load()
        self._save({"unfinished": True})
        try:
            yield
        except SetupError:
            # pip said no (offline, say), and left a complete environment as it was.
            if before and not before.get("unfinished"):
                self._save(before)
            raise
        both = dev or before.get("dev") == self.keys["dev"]
        self._save({"run": self.keys["run"], "dev": self.keys["dev"] if both else None})

    def _save(self, value):
        with open(self.path + ".new", "w") as file:
            json.dump(value, file)
        os.replace(self.path + ".new", self.path)


def _install(python, arguments):
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    # Compiling everything takes longer than compiling what is used, when it is used.
    command.append("--no-compile")
    if not sys.stderr.isatty():
        command.append("--quiet")
    run(
        command + arguments,
        "pip can't install the packages (its own words are above): connect to a network with a "
        "Python package index, needed this once, and run make again",
    )


def check_imports(python, dev):
    """Imports each package once."""
    # transformers would print that there is no PyTorch, which is as it should be.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)"
    names = MODULES + (DEV_MODULES if dev else [])
    run(
        [python, "-c", code, *names],
        "a package is installed but can't be imported (the reason is above): reinstall it, or "
        "deactivate the environment and delete .venv, and run make again",
    )


def run(command, failure):
    """Runs a command, its output going to stderr."""
    sys.stderr.flush()
    if subprocess.call(command, stdout=2):
        raise SetupError(failure)


# Requirements


def _requirement_files(dev):
    names = ["requirements.txt"] + (["requirements-dev.txt"] if dev else [])
    return [os.path.join(ROOT, name) for name in names]


def _requirement_lines(dev):
    lines = [line.strip() for file in _requirement_files(dev) for line in _read(file).splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def _package(line):
    return re.match(r"[\w.-]+", line).group(0).lower()


def _jax_requirement():
    return next(line for line in _requirement_lines(False) if _package(line) == "jax")


def satisfies(version, requirement):
    """Says whether a version lies in a range like `jax>=0.10,<0.13`."""
    found = _numbers(version)
    low = re.search(r">=([\d.]+)", requirement)
    high = re.search(r"<([\d.]+)", requirement)
    return (not low or found >= _numbers(low.group(1))) and (
        not high or found < _numbers(high.group(1))
    )


def _numbers(version):
    return [int(part) for part in re.match(r"[\d.]*\d", version).group(0).split(".")]


def _dotted(version):
    return ".".join(str(part) for part in version)


def _digest(*texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _read(path):
    with open(path) as file:
        return file.read()


def _say(message):
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
