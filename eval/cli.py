"""What every evaluation's command line shares: its flags, and how it ends.

Exit codes: 0, all is well; 1, a measurement failed a check, or the machine can't do it; 2, the
command was wrong. Wrong commands get one sentence on stderr, not a traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import pathlib
import runpy
import sys
import tempfile
from collections.abc import Callable, Sequence

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags


@functools.cache  # several evaluations in one process, such as the tests', share them
def define_flags() -> tuple[flags.FlagHolder, flags.FlagHolder]:
    """Defines ``--config`` and ``--workdir``, both required; returns their holders."""
    about = "Config file, such as configs/x.py; --config.KEY=VALUE changes what it sets."
    config = config_flags.DEFINE_config_file("config", None, about)
    workdir = flags.DEFINE_string("workdir", None, "Folder the results are written to.")
    return config, workdir


def run_app(main: Callable[[], int]) -> None:
    """Parses the flags, runs ``main`` and exits with what it returns.

    A ``ValueError`` is bad input: exit code 2. A ``RuntimeError`` or ``OSError`` is a machine that
    can't do what was asked: exit code 1.
    """

    def guarded(argv: Sequence[str]) -> None:
        del argv
        try:
            sys.exit(main())
        except ValueError as error:
            _fail(str(error), 2)
        except jax.errors.JaxRuntimeError:
            raise  # not foreseen: the traceback helps
        except (RuntimeError, OSError) as error:
            _fail(str(error), 1)

    # absl shows INFO logs, such as jax's of each backend that isn't there.
    logging.set_verbosity(logging.WARNING)
    app.run(guarded, flags_parser=_parse)


def check_workdir(path: str | os.PathLike[str]) -> None:
    """Writes to the folder, before hours are spent on what goes into it; leaves no trace.

    Raises:
      ValueError: no file can be made there; says why.
    """
    folder = pathlib.Path(path)
    if not folder.name.strip(".") and folder.name not in ("", ".", ".."):
        raise ValueError(f"--workdir={path} is no name; give a folder, such as runs/first")
    try:
        made = [part for part in (folder, *folder.parents) if not part.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "it is a file" if os.path.isfile(path) else error.strerror
        raise ValueError(
            f"--workdir={path}: nothing can be written there ({why}); give a folder that can be "
            "made and written to"
        ) from error
    with contextlib.suppress(OSError):  # another process has put something in
        for part in made:
            part.rmdir()


def _parse(argv: Sequence[str]) -> list[str]:
    try:
        _check_config_exists(argv)
        rest = flags.FLAGS(argv)
        if rest[1:]:
            raise flags.Error(f"unexpected argument {rest[1]!r}; this command takes only flags")
        for name in ("config", "workdir"):
            if name in flags.FLAGS and flags.FLAGS[name].value is None:
                raise flags.Error(f"--{name} is missing")
    except flags.Error as error:
        _fail(f"{error}; --help lists the flags", 2)
    except (AttributeError, KeyError):  # ml_collections: a key the config does not have
        _fail(_unknown_key(argv), 2)
    except SyntaxError as error:
        _fail(f"--config={_config_path(argv)}: {error}; correct the file", 2)
    return rest


def _check_config_exists(argv: Sequence[str]) -> None:
    """ml_collections keeps a missing file to itself until the config is used."""
    path = _config_path(argv)
    if path is not None and not os.path.isfile(path):
        raise flags.Error(f"--config={path}: there is no such file")


def _config_path(argv: Sequence[str]) -> str | None:
    """The file of ``--config``; of several, the last one counts."""
    found = None
    for at, argument in enumerate(argv):
        name, equals, path = argument.partition("=")
        if name.lstrip("-") == "config" and (equals or at + 1 < len(argv)):
            found = (path if equals else argv[at + 1]).partition(":")[0]
    return found


def _unknown_key(argv: Sequence[str]) -> str:
    """The sentence for an unknown config key: which, what it may have meant, what there is."""
    # ml_collections stopped half-way and has no config to show: the file is read again.
    path = _config_path(argv)
    get_config = runpy.run_path(str(path)).get("get_config")
    if get_config is None:
        return f"--config={path}: it has no get_config(); give a config, such as those in configs/"
    known = keys(get_config())
    for argument in argv:
        option, _, _ = argument.lstrip("-").partition("=")
        name = option.removeprefix("config.")
        if name != option and name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean {close[0]}?" if close else "."
            return f"{argument}: the config has no such key{meant} It has: {', '.join(known)}"
    return f"an unknown config key; the config has: {', '.join(known)}"


def keys(config: ConfigDict, prefix: str = "") -> list[str]:
    """The dotted names of a config's values."""
    out = []
    for name, value in config.items(preserve_field_references=False):
        inner = isinstance(value, ConfigDict)
        out += keys(value, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return out


def _fail(message: str, code: int) -> None:
    program = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    print(f"{program}: {message}", file=sys.stderr, flush=True)
    sys.exit(code)
