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

from specjax.heads import formats
from specjax.models.transformer import output_rows
from train import asked, cli, eagle, loop, start
from train.eagle_init import initial
from train.eagle_settings import STARTS, EagleSettings, head_config, read
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
    material = Material(s, (*s.layers, FINAL), workdir)
    model, params = material.model, material.params
    going_on = s.start if s.start not in STARTS else ""
    ids = start.draft_vocabulary(going_on, s.draft_vocab_size, material)
    config = head_config(s, model, len(ids))
    rows = output_rows(params, jnp.asarray(ids))
    frozen = {
        "embed": params["embed"],
        "rows": rows,
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
        total, sums = asked.objective(unrolled(head, frozen, batch, s.eval_steps), **how)
        return {**sums, "loss": total}

    return loop.Task(
        init=lambda key: initial(s, config, model, params, rows, key),
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


if __name__ == "__main__":
    cli.main(run)
