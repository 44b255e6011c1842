"""The files of token shards: written beside the old, swapped at once, read after a check."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray

from eval import results

MANIFEST = "manifest.json"
FORMAT = "specjax token shards, version 1"


def replace(
    folder: pathlib.Path,
    parts: Iterable[tuple[Mapping[str, NDArray], Mapping[str, Any]]],
    describe: Callable[[list[dict[str, Any]]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Writes shards and their manifest; what the folder held stays whole until that is done.

    The manifest is what makes shards data. New ones get names that the old manifest doesn't use,
    and one replacement of the manifest swaps them: a process that is killed leaves the old data or
    the new, whole. What else it leaves goes with the next call.

    Args:
      folder: made if it isn't there.
      parts: the arrays of each shard and what its entry in the manifest says besides ``file`` and
        ``sha256``; one shard is in memory at a time.
      describe: what the manifest says besides, called last, with all entries; raises to keep the
        old data.

    Returns:
      The manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = _listed(folder)
    shards: list[dict[str, Any]] = []
    try:
        for arrays, entry in parts:
            shards.append({**_write(folder, len(shards), arrays, old), **entry})
        manifest = {"format": FORMAT, **describe(shards), "shards": shards}
        results.write_json(folder / MANIFEST, manifest)
    except BaseException:
        kept = _listed(folder)  # read anew: the new manifest may have been in place already
        _remove(folder / shard["file"] for shard in shards if shard["file"] not in kept)
        raise
    new = {shard["file"] for shard in shards}
    _remove(path for path in folder.glob("shard-*.safetensors") if path.name not in new)
    return manifest


def read_manifest(path: pathlib.Path) -> dict[str, Any]:
    """The manifest.

    Raises:
      ValueError: there is none, or it can't be read or is of another format; says the fix.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"there is no {path}: the data isn't there or isn't complete; make it with python -m "
            "scripts.generate_data --config=configs/generate_data_smollm2.py "
            f"--workdir={path.parent} (an hour; with --config.smoke a minute)"
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"can't read {path} ({error}); make the data again") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise ValueError(f"{path} is of the format {found!r}, not {FORMAT!r}; make the data again")
    return manifest


def read(path: pathlib.Path, entry: Mapping[str, Any]) -> dict[str, NDArray]:
    """The arrays of a shard.

    Args:
      path: of the shard.
      entry: what its manifest says of it.

    Raises:
      ValueError: it can't be read, or isn't the one the manifest speaks of; names it and the fix.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"can't read {path} ({error.strerror}); make the data again") from error
    found = hashlib.sha256(content).hexdigest()
    if found != entry["sha256"]:
        raise ValueError(
            f"{path} has the SHA-256 {found}, not {entry['sha256']} as its manifest says: it is "
            "damaged or of another run; make the data again"
        )
    return safetensors.numpy.load(content)


def _listed(folder: pathlib.Path) -> dict[str, str]:
    """The SHA-256 of each shard of the folder's data, by its name; empty if there are no data."""
    try:
        manifest = read_manifest(folder / MANIFEST)
    except ValueError:
        return {}
    return {shard["file"]: shard["sha256"] for shard in manifest["shards"]}


def _write(
    folder: pathlib.Path, number: int, arrays: Mapping[str, NDArray], old: Mapping[str, str]
) -> dict[str, Any]:
    content = safetensors.numpy.save(dict(arrays))
    digest = hashlib.sha256(content).hexdigest()
    name = _name(number, digest, old)
    with results.replacing(folder / name) as beside:
        beside.write_bytes(content)
    return {"file": name, "sha256": digest}


def _name(number: int, digest: str, old: Mapping[str, str]) -> str:
    """The plain name, unless the old data have other content there; the same data keep theirs."""
    plain = f"shard-{number:05d}.safetensors"
    own = f"shard-{number:05d}-{digest[:16]}.safetensors"
    if old.get(own) == digest:
        return own
    return plain if old.get(plain, digest) == digest else own


def _remove(paths: Iterable[pathlib.Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
