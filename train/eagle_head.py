"""Trains an EAGLE head for a frozen target.

  python -m train.eagle_head --config=configs/eagle3_smollm2.py --workdir=runs/eagle3
      [--config.data=FOLDER] [--config.loop.steps=N] [--config.smoke] [--multihost] [--profile=S:N]

The data are token shards of the target's own answers (scripts/generate_data.py). Leaves the head in
the workdir's best/ (and last/), with curves, checkpoints and results.json; the same command goes on
where a killed run stopped.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from eval import chat as chats
from specjax.heads import formats
from specjax.heads.eagle import EagleConfig
from specjax.models import ModelConfig, loading, transformer_target
from specjax.models.transformer import output_rows
from train import cli, data, eagle, features, fingerprint, loop, vocabulary
from train.eagle_init import initial
from train.eagle_settings import STARTS, EagleSettings, head_config, read


def run(config: Mapping[str, Any], workdir: str) -> loop.Summary:
    """Trains the head; see ``EagleSettings`` for the config.

    Raises:
      ValueError: a setting, a data set or a model that can't be used.
    """
    s = read(config)
    loop_config = ConfigDict(config["loop"])
    if s.smoke:
        loop.smoke(loop_config)
    task = make_task(s, pathlib.Path(workdir) / "features")
    return loop.fit(task, loop_config, workdir)


def make_task(s: EagleSettings, store: pathlib.Path) -> loop.Task:
    """What the loop trains.

    Args:
      s: the settings.
      store: the folder for cached features, unless the settings name one.
    """
    folder = chats.find(s.target)
    model = loading.read_config(folder)
    params = loading.load_params(folder, model, panels=False)
    documents = _documents(s)
    train, held_out = (
        data.pack(part, s.length) for part in data.split(documents, s.held_out, s.seed)
    )
    ids = _draft_vocabulary(s, documents, model)
    config = head_config(s, model, len(ids))
    source = _Features(s, store, model, params, config, folder, train, held_out)
    known = np.zeros([model.vocab_size], bool)
    known[ids] = True
    rows = output_rows(params, jnp.asarray(ids))
    frozen = {
        "embed": params["embed"],
        "rows": rows,
        "known": jnp.asarray(known),
        "target": source.frozen,
    }

    def unrolled(head: Any, frozen: Any, batch: Any, steps: int) -> list[eagle.Asked]:
        streams = source.of(frozen, batch)
        slots = eagle.slots_of(config, frozen["embed"], frozen["known"], batch, streams)
        return eagle.unroll(config, head, frozen["rows"].astype(_dtype(head)), slots, steps)

    how = {"loss": s.loss, "decay": s.decay, "feature_weight": s.feature_weight}

    def loss(head: Any, frozen: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, eagle.Sums]:
        del key
        return eagle.objective(config, unrolled(head, frozen, batch, s.steps), **how)

    def evaluate(head: Any, frozen: Any, batch: Any) -> eagle.Sums:
        asked = unrolled(head, frozen, batch, s.eval_steps)
        total, sums = eagle.objective(config, asked, **how)
        return {**sums, "loss": total}

    def batch(step: int) -> dict[str, np.ndarray]:
        return source.batch(train, data.chosen(len(train.tokens), s.seed, step, s.batch), 0)

    count = len(held_out.tokens)
    size = min(s.batch, count)
    parts = range(0, min(count, s.held_out_rows), size)
    names = [min(at, count - size) + np.arange(size) for at in parts]
    return loop.Task(
        init=lambda key: initial(s, config, model, params, rows, key),
        loss=loss,
        frozen=frozen,
        batch=batch,
        evaluate=evaluate,
        held_out=[source.batch(held_out, rows, len(train.tokens)) for rows in names],
        fingerprint=_fingerprint(s, config, folder, documents),
        tokens_per_batch=s.batch * s.length,
        export=lambda head, to: formats.save(to, config, head, ids, model.vocab_size),
    )


class _Features:
    """Where the target's features come from: the step itself, or a store filled before it."""

    def __init__(
        self,
        s: EagleSettings,
        store: pathlib.Path,
        model: ModelConfig,
        params: Any,
        config: EagleConfig,
        folder: pathlib.Path,
        train: data.Rows,
        held_out: data.Rows,
    ):
        self._target = transformer_target(model)
        self._layers = (*config.layers, features.FINAL)
        self._online = s.features == "online"
        self.frozen = params if self._online else {}
        if self._online:
            return
        rows = data.Rows(*(np.concatenate(pair) for pair in zip(train, held_out, strict=True)))
        about = {
            "target": fingerprint.target(folder),
            "layers": list(self._layers),
            "rows": features.rows_fingerprint(rows),
        }
        place = pathlib.Path(s.feature_store) if s.feature_store else store
        self._store = features.Store(place, len(self._layers) * model.width, about)
        self._store.fill(self._target, self._layers, params, rows)

    def batch(self, rows: data.Rows, chosen: np.ndarray, offset: int) -> dict[str, np.ndarray]:
        """A batch of rows; ``offset`` is where ``rows`` begin in the store."""
        out = {name: array[chosen] for name, array in rows._asdict().items()}
        out["ids"] = chosen.astype(np.int32)
        if not self._online:
            out["features"] = self._store.read(chosen + offset)
        return out

    def of(self, frozen: Any, batch: Any) -> jax.Array:
        """The features of a batch, inside the step: ``[B, T, F + Wt]``."""
        if not self._online:
            return batch["features"]
        return features.compute(self._target, self._layers, frozen["target"], batch)


def _dtype(head: Any) -> Any:
    return jax.tree.leaves(head)[0].dtype


def _draft_vocabulary(
    s: EagleSettings, documents: data.Documents, model: ModelConfig
) -> np.ndarray:
    """The most frequent tokens of the data; a head that is trained on keeps its own."""
    if s.start not in STARTS:
        return formats.load(s.start)[2]
    return vocabulary.most_frequent(documents, s.draft_vocab_size, model.vocab_size)


def _documents(s: EagleSettings) -> data.Documents:
    if not s.data:
        raise ValueError(
            "config.data is empty; make data with python -m scripts.generate_data "
            "--config=configs/generate_data_smollm2.py --workdir=runs/data, and give that folder"
        )
    return data.read(s.data)


def _fingerprint(
    s: EagleSettings, config: EagleConfig, folder: pathlib.Path, documents: data.Documents
) -> dict[str, Any]:
    return {
        "target": fingerprint.target(folder),
        "data": fingerprint.text(str(documents.manifest)),
        "head": str(config),
        "batch": s.batch,
        "length": s.length,
        "steps": s.steps,
        "loss": s.loss,
    }


if __name__ == "__main__":
    cli.main(run)
