"""Trains Medusa heads for a frozen target (Medusa-1).

  python -m train.medusa_heads --config=configs/medusa_smollm2.py --workdir=runs/medusa
      [--config.data=FOLDER] [--config.loop.steps=N] [--config.smoke] [--multihost] [--profile=S:N]

The data are token shards of the target's own answers (scripts/generate_data.py). Leaves the heads
in the workdir's best/ (and last/), with curves, checkpoints and results.json; the same command goes
on where a killed run stopped.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from eval import chat as chats
from specjax.heads import MedusaConfig, MedusaHeads, formats
from specjax.heads.medusa import projection_names
from specjax.models import ModelConfig, loading
from specjax.models.transformer import output_matrix, output_rows
from train import asked, cli, loop, medusa, start
from train.features import FINAL
from train.losses import BY_NAME
from train.material import Material, MaterialSettings, not_negative, read_settings


@dataclasses.dataclass(frozen=True)
class MedusaSettings(MaterialSettings):
    """What is trained, and how; on what: see ``MaterialSettings``.

    Attributes:
      cached_layers: the streams in the feature cache, the last of them -1, which the heads read;
        more than that one to use the cache of another head, such as (10, 20, 29, -1).
      num_heads: heads, each for a token further on.
      num_blocks: residual blocks of a head.
      draft_vocab_size: the most frequent tokens the heads draft from; 0: all.
      projection: see ``MedusaConfig``: "own", "shared" or "target".
      tree: see ``MedusaConfig``.
      start: "target": blocks of zero, so that every head says what the target does, and output
        matrices that are the target's rows; or the folder of heads to go on from.
      loss: a name in ``losses.BY_NAME``.
      decay: weight of each further head's loss.
    """

    STARTS: ClassVar[tuple[str, ...]] = ("target",)

    cached_layers: tuple[int, ...]
    num_heads: int
    num_blocks: int
    draft_vocab_size: int
    projection: str
    tree: tuple[tuple[int, ...], ...]
    loss: str
    decay: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cached_layers[-1:] != (FINAL,):
            raise ValueError(
                f"config.cached_layers={self.cached_layers}; the last one must be {FINAL}, the "
                "stream after the final norm, which the heads read"
            )
        not_negative(decay=self.decay)
        if self.loss not in BY_NAME:
            known = ", ".join(BY_NAME)
            raise ValueError(f"config.loss={self.loss!r}; it must be one of {known}")
        self.heads(1, self.draft_vocab_size or sys.maxsize)

    def heads(self, width: int, vocab: int) -> MedusaConfig:
        """The heads for a target of some width, with a draft vocabulary of some size.

        Raises:
          ValueError: a setting they can't have; names it.
        """
        sizes = width, self.num_heads, self.num_blocks, vocab
        try:
            return MedusaConfig(*sizes, self.projection, self.tree)
        except ValueError as error:
            raise ValueError(f"config.{error}") from error

    @property
    def layers(self) -> tuple[int, ...]:
        """The streams of the target to compute, or to find in the cache."""
        return self.cached_layers if self.cached else (FINAL,)


def read(config: Mapping[str, Any]) -> MedusaSettings:
    """Settings from a config; see ``material.read_settings``."""

    def tree(paths: Any) -> tuple[Any, ...]:
        return tuple(tuple(path) if isinstance(path, list | tuple) else path for path in paths)

    return read_settings(MedusaSettings, config, cached_layers=tuple, tree=tree)


def run(config: Mapping[str, Any], workdir: str) -> loop.Summary:
    """Trains the heads; see ``MedusaSettings`` for the config.

    Raises:
      ValueError: a setting, a data set or a model that can't be used.
    """
    return loop.run(config, workdir, read, make_task)


def make_task(s: MedusaSettings, workdir: str) -> loop.Task:
    """What the loop trains.

    Args:
      s: the settings.
      workdir: of the run.
    """
    before = start.read(s.going_on)
    model = loading.read_config(chats.find(s.target))
    config = _config(s, model, before)  # what can't be is said before features are computed
    material = Material(s, s.layers, workdir)
    ids = start.draft_vocabulary(before.ids if before else None, s.draft_vocab_size, material)
    rows = output_rows(material.params, jnp.asarray(ids))
    frozen = {
        **material.output,
        "rows": rows,
        "ids": jnp.asarray(ids),
        "known": jnp.asarray(np.isin(np.arange(model.vocab_size), ids)),
        "target": material.frozen,
    }

    def objective(
        heads: Any, frozen: Any, batch: Any, whole: asked.Whole | None = None
    ) -> tuple[jax.Array, asked.Sums]:
        streams = material.features(frozen["target"], batch)
        slots = medusa.slots_of(config, frozen["known"], batch, streams)
        dtype = jax.tree.leaves(heads)[0].dtype
        answers = medusa.unroll(config, heads, frozen["rows"].astype(dtype), slots)
        return asked.objective(answers, loss=s.loss, decay=s.decay, whole=whole)

    def loss(heads: Any, frozen: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, asked.Sums]:
        del key
        return objective(heads, frozen, batch)

    def evaluate(heads: Any, frozen: Any, batch: Any) -> asked.Sums:
        whole = asked.Whole(output_matrix(frozen), frozen["ids"])
        total, sums = objective(heads, frozen, batch, whole)
        return {**sums, "loss": total}

    return loop.Task(
        init=lambda key: before.head if before else initial(config, rows, key),
        loss=loss,
        frozen=frozen,
        batch=material.batch,
        evaluate=evaluate,
        held_out=material.held_out(),
        fingerprint=material.fingerprint(ids) | {"heads": str(config)},
        tokens_per_batch=material.tokens_per_batch,
        export=lambda heads, to: formats.save(to, config, heads, ids, model.vocab_size),
        name=f"Medusa heads for {material.name}",
    )


def _config(s: MedusaSettings, model: ModelConfig, before: formats.Loaded | None) -> MedusaConfig:
    """The heads' configuration, which is that of those to go on from, if there are any."""
    size = start.vocab_size(before, s.draft_vocab_size, model.vocab_size)
    config = s.heads(model.width, size)
    start.check(s.start, before, config, model.vocab_size)
    return config


def initial(config: MedusaConfig, rows: jax.Array, key: jax.Array) -> Any:
    """The parameters of new heads, float32.

    Args:
      config: the heads'.
      rows: ``[W, Vd]``, the target's output matrix at the draft vocabulary.
      key: for the parameters' shapes; nothing of it is left in them.
    """
    one = jnp.zeros([1, config.target_width], jnp.float32)
    heads = dict(MedusaHeads(config).init(key, one, (rows.astype(jnp.float32), None))["params"])
    copies = {name: jnp.array(rows, jnp.float32) for name in projection_names(config)}
    return heads | copies


if __name__ == "__main__":
    cli.main(run)
