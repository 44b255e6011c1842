"""Trains an EAGLE head for a frozen target.

  python -m train.eagle_head --config=configs/eagle3_smollm2.py --workdir=runs/eagle3
      [--config.data=FOLDER] [--config.loop.steps=N] [--config.smoke] [--multihost] [--profile=S:N]

The data are token shards of the target's own answers (scripts/generate_data.py). Leaves the head in
the workdir's best/ (and last/), with curves, checkpoints and results.json; the same command goes on
where a killed run stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval import chat as chats
from specjax.heads import EagleConfig, formats
from specjax.models import ModelConfig, loading
from specjax.models.transformer import output_matrix, output_rows
from train import asked, cli, eagle, eagle_init, loop, start
from train.eagle_settings import TARGET, EagleSettings, head_config, read
from train.features import FINAL
from train.material import Material


def run(config: Mapping[str, Any], workdir: str) -> loop.Summary:
    """Trains the head; see ``EagleSettings`` for the config.

    Raises:
      ValueError: a setting, a data set or a model that can't be used.
    """
    return loop.run(config, workdir, read, make_task)


def make_task(s: EagleSettings, workdir: str) -> loop.Task:
    """What the loop trains.

    Args:
      s: the settings.
      workdir: of the run.
    """
    before = start.read(s.going_on)
    model = loading.read_config(chats.find(s.target))
    config = _config(s, model, before)  # what can't be is said before features are computed
    material = Material(s, (*s.layers, FINAL), workdir)
    params = material.params
    ids = start.draft_vocabulary(before.ids if before else None, s.draft_vocab_size, material)
    rows = output_rows(params, jnp.asarray(ids))
    frozen = {
        **material.output,
        "embed": params["embed"],
        "rows": rows,
        "ids": jnp.asarray(ids),
        "known": jnp.asarray(np.isin(np.arange(model.vocab_size), ids)),
        "target": material.frozen,
    }

    def unrolled(head: Any, frozen: Any, batch: Any, steps: int) -> list[asked.Asked]:
        streams = material.features(frozen["target"], batch)
        slots = eagle.slots_of(config, frozen["embed"], frozen["known"], batch, streams)
        dtype = jax.tree.leaves(head)[0].dtype
        return eagle.unroll(config, head, frozen["rows"].astype(dtype), slots, steps)

    how = {"loss": s.loss, "decay": s.decay, "feature_weight": s.feature_weight}

    def loss(head: Any, frozen: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, asked.Sums]:
        del key
        return asked.objective(unrolled(head, frozen, batch, s.steps), **how)

    def evaluate(head: Any, frozen: Any, batch: Any) -> asked.Sums:
        whole = asked.Whole(output_matrix(frozen), frozen["ids"])
        answers = unrolled(head, frozen, batch, s.eval_steps)
        total, sums = asked.objective(answers, **how, whole=whole)
        return {**sums, "loss": total}

    def init(key: jax.Array) -> Any:
        return before.head if before else eagle_init.new(s.start, config, model, params, rows, key)

    return loop.Task(
        init=init,
        loss=loss,
        frozen=frozen,
        batch=material.batch,
        evaluate=evaluate,
        held_out=material.held_out(),
        fingerprint=material.fingerprint(ids) | {"head": str(config)},
        tokens_per_batch=material.tokens_per_batch,
        export=lambda head, to: formats.save(to, config, head, ids, model.vocab_size),
        name=f"EAGLE-{s.version} head for {material.name}",
    )


def _config(s: EagleSettings, model: ModelConfig, before: formats.Loaded | None) -> EagleConfig:
    """The head's configuration, which is that of the one to go on from, if there is one."""
    size = start.vocab_size(before, s.draft_vocab_size, model.vocab_size)
    config = head_config(s, model, size)
    start.check(s.start, before, config, model.vocab_size)
    if s.start == TARGET:
        eagle_init.check_target(config, model)
    return config


if __name__ == "__main__":
    cli.main(run)
