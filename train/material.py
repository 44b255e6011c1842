"""What every head is trained on: a frozen target, its documents in rows, its features for them."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np

from eval import chat as chats
from eval import results
from specjax.models import ModelConfig, fingerprint, loading, transformer_target
from train import data, features, settings
from train.checkpoint import is_remote
from train.mesh import Mesh
from train.settings import SMOKE_STEPS

FEATURES = ("online", "cached")
SUPERVISE = ("answers", "all")


@dataclasses.dataclass(frozen=True)
class MaterialSettings:
    """The part of a head's settings that says what it is trained on.

    Attributes:
      target: a folder, a hub id, or "smollm2", the default model.
      data: folder of token shards (scripts/generate_data.py).
      features: "online": the target runs inside the train step; "cached": once, into a file.
      feature_store: the folder of the cache; "": in the workdir.
      supervise: "answers": what the target wrote; "all": prompts too, by what it would have written
        there. What is held out is answers always.
      length: tokens a packed row.
      batch: rows a step.
      held_out: fraction of the documents that is only evaluated on.
      held_out_rows: rows of them that are, at most, rounded up to whole batches.
      start: what the run begins as: one of ``STARTS``, or the folder of what to go on from.
      seed: of the split and of the order.
      smoke: a run of seconds that does everything once: of few documents, with features online.
    """

    STARTS: ClassVar[tuple[str, ...]] = ()

    target: str
    data: str
    features: str
    feature_store: str
    supervise: str
    length: int
    batch: int
    held_out: float
    held_out_rows: int
    start: str
    seed: int
    smoke: bool

    def __post_init__(self) -> None:
        for name in ("length", "batch", "held_out_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"config.{name}={getattr(self, name)}; it must be at least 1")
        if not 0 < self.held_out < 1:
            raise ValueError(f"config.held_out={self.held_out}; it is a fraction between 0 and 1")
        for name, allowed in (("features", FEATURES), ("supervise", SUPERVISE)):
            if getattr(self, name) not in allowed:
                value = getattr(self, name)
                raise ValueError(f"config.{name}={value!r}; it must be one of {allowed}")
        if not self.start:
            known = "".join(f"{name!r}, " for name in self.STARTS)
            raise ValueError(
                f"config.start=''; it must be {known}or the folder of what to go on from"
            )
        if not self.data:
            raise ValueError(
                "config.data is empty; make data with python -m scripts.generate_data "
                "--config=configs/generate_data_smollm2.py --workdir=runs/data, and give that "
                "folder"
            )

    @property
    def cached(self) -> bool:
        """Whether features are computed ahead, into a file."""
        return self.features == "cached" and not self.smoke

    @property
    def going_on(self) -> str:
        """The folder of what to go on from; "" where the run begins as something new."""
        return "" if self.start in self.STARTS else self.start


S = TypeVar("S", bound=MaterialSettings)


def read_settings(kind: type[S], config: Mapping[str, Any], **convert: Callable[[Any], Any]) -> S:
    """Settings from a config; its ``loop`` (and ``mesh``, which is in it too) is the loop's own.

    Args:
      kind: of the settings.
      config: of the command.
      **convert: what to make of the values of some keys.

    Raises:
      ValueError: a missing or an unknown key, a value that can't be, or a batch that the loop
        can't cut into equal parts for these devices; names it.
    """
    values = {name: value for name, value in config.items() if name not in ("loop", "mesh")}
    values |= {name: made(values[name]) for name, made in convert.items() if name in values}
    s, loop = results.read(kind, values), settings.read(config["loop"])
    # As the loop will cut it, hours of features later.
    Mesh(loop.mesh_size()).microbatches(np.zeros([s.batch], np.int8), loop.accumulation)
    return s


def not_negative(**values: float) -> None:
    """Raises ValueError where a setting is below 0."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"config.{name}={value}; it must be 0 or more")


class Material:
    """The target and its data, with batches that are functions of the step alone.

    Attributes:
      folder: the target's.
      model: its configuration.
      params: its parameters.
      documents: what is trained on.
      held_out_documents: what is only evaluated on.
    """

    def __init__(self, s: MaterialSettings, layers: tuple[int, ...], workdir: str) -> None:
        """Loads all of it; with cached features, computes those that aren't there yet.

        Args:
          s: the settings.
          layers: streams of the target to give, in this order.
          workdir: where features are cached unless the settings name a place.

        Raises:
          ValueError: a model or data that can't be used, or a cache of something else.
        """
        self._settings = s
        store = s.feature_store or os.path.join(workdir, "features")
        if s.cached and is_remote(store):
            raise ValueError(
                f"features can't be kept in {store}, because rows are read out of the middle of a "
                "file; name a local folder, config.feature_store=FOLDER, or take "
                "config.features='online'"
            )
        self.folder = chats.find(s.target)
        self.model: ModelConfig = loading.read_config(self.folder)
        for layer in layers:
            if not -1 <= layer <= self.model.num_layers:
                raise ValueError(
                    f"config.layers holds {layer}; the target has streams 0 to "
                    f"{self.model.num_layers}, and -1"
                )
        self.params: Any = loading.load_params(self.folder, self.model, panels=False)
        few = SMOKE_STEPS * s.batch  # a row takes one of them or more
        most = 8 * few if s.smoke else None
        documents = data.read(s.data, fingerprint.tokenizer(self.folder), most)
        self._manifest = documents.manifest
        self._tell_other_author()
        parts = data.split(documents, s.held_out, s.seed)
        if s.smoke:
            parts = data.first(parts[0], few), data.first(parts[1], s.batch)
        self.documents, self.held_out_documents = parts
        self._train, self._held_out = (data.pack(part, s.length) for part in parts)
        _tell_cut(data.cut(documents, s.length), len(documents.lengths), s.length)
        if s.supervise == "all":
            self._train = data.supervise_all(self._train)
        self._layers = layers
        self._target = transformer_target(self.model)
        self._store: features.Store | None = None
        if s.cached:
            self._store = self._filled(store)

    def _filled(self, place: str) -> features.Store:
        pairs = zip(self._train, self._held_out, strict=True)
        rows = data.Rows(*(np.concatenate(pair) for pair in pairs))
        about = {
            "target": self._target_fingerprint,
            "layers": list(self._layers),
            "rows": features.rows_fingerprint(rows),
            "dtype": str(jax.tree.leaves(self.params)[0].dtype),  # that they're computed in
        }
        store = features.Store(place, len(self._layers) * self.model.width, about)
        store.fill(self._target, self._layers, self.params, rows)
        return store

    @functools.cached_property
    def _target_fingerprint(self) -> str:
        """Of weights that take a while to read."""
        return fingerprint.target(self.folder)

    def _tell_other_author(self) -> None:
        """Says so where another target wrote the data: it may be meant, and seldom is."""
        author = self._manifest.get("target")
        if author not in (None, self._target_fingerprint):
            say(
                f"{self._settings.data} holds answers of another target "
                f"({self._manifest.get('target_name')}, fingerprint {author!s:.12}; this one's is "
                f"{self._target_fingerprint:.12}): a head learns best what its own target writes"
            )

    @property
    def name(self) -> str:
        """What charts call the target: its folder's name, or its own."""
        return pathlib.Path(self._settings.target).name

    @property
    def frozen(self) -> Any:
        """What ``features`` needs of the target inside the step."""
        return {} if self._store else self.params

    @property
    def output(self) -> dict[str, jax.Array]:
        """What ``transformer.output_matrix`` needs of the target's parameters."""
        name = "head" if "head" in self.params else "embed"
        return {name: self.params[name]}

    def features(self, frozen: Any, batch: Any) -> jax.Array:
        """The streams of a batch, inside the step: ``[B, T, F]``."""
        if self._store:
            return batch["features"]
        return features.compute(self._target, self._layers, frozen, batch)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The batch of a step: the fields of ``data.Rows`` and ``ids``, the numbers of its rows."""
        s = self._settings
        return self._rows(self._train, data.chosen(len(self._train.tokens), s.seed, step, s.batch))

    def held_out(self) -> list[dict[str, np.ndarray]]:
        """The held-out batches, all of one shape: the last one may repeat rows."""
        s, count = self._settings, len(self._held_out.tokens)
        size = min(s.batch, count)
        starts = range(0, min(count, s.held_out_rows), size)
        numbers = [min(at, count - size) + np.arange(size) for at in starts]
        return [self._rows(self._held_out, some, len(self._train.tokens)) for some in numbers]

    def _rows(self, rows: data.Rows, chosen: np.ndarray, offset: int = 0) -> dict[str, np.ndarray]:
        """A batch of rows; ``offset`` is where ``rows`` begin in the store."""
        out = {name: array[chosen] for name, array in rows._asdict().items()}
        out["ids"] = chosen.astype(np.int32)
        if self._store:
            out["features"] = self._store.read(chosen + offset)
        return out

    def fingerprint(self, ids: np.ndarray) -> dict[str, Any]:
        """What a checkpoint depends on: all settings but where things are, and what is there.

        So a folder to go on from may move, and what is in it may not change.

        Args:
          ids: int32 ``[Vd]``, the draft vocabulary.
        """
        start = self._settings.start
        if self._settings.going_on:
            start = fingerprint.target(pathlib.Path(start))
        own = {
            name: value
            for name, value in dataclasses.asdict(self._settings).items()
            if name not in ("target", "data", "features", "feature_store", "start")
            and not (name == "smoke" and not value)  # older checkpoints don't speak of it
        }
        return {
            "target": self._target_fingerprint,
            "data": fingerprint.text(str(self._manifest)),
            "draft_vocabulary": fingerprint.text(str(ids.tolist())),
            "start": start,
            **json.loads(json.dumps(own)),
        }

    @property
    def tokens_per_batch(self) -> int:
        """Tokens of a step's batch, padding included."""
        return self._settings.batch * self._settings.length


def say(text: str) -> None:
    """Prints a line, in one of all processes."""
    if jax.process_index() == 0:
        print(text, flush=True)


def _tell_cut(cut: data.Cut, count: int, length: int) -> None:
    say(
        f"documents cut: {cut.documents} of {count} are longer than config.length={length}, "
        f"{cut.dropped} of them left out; {cut.tokens} tokens lost"
    )
