"""Distils a small draft model from a frozen target.

  python -m train.draft_model --config=configs/draft_smollm2.py --workdir=runs/draft
      [--config.data=FOLDER] [--config.loop.steps=N] [--config.smoke] [--multihost] [--profile=S:N]

The data are token shards of the target's own answers (scripts/generate_data.py). Leaves the draft
model in the workdir's best/ (and last/), in the form of ``specjax.models.students``, with curves,
checkpoints and results.json; the same command goes on where a killed run stopped.
scripts/export_draft.py makes a whole Hugging Face model of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from eval import chat as chats
from specjax.models import ModelConfig, fingerprint, loading, students, transformer_target
from specjax.models.students import Student
from specjax.models.transformer import output_matrix, output_rows
from train import asked, cli, distill, loop, start
from train.asked import Sums
from train.draft_settings import DraftSettings, read
from train.material import Material


def run(config: Mapping[str, Any], workdir: str) -> loop.Summary:
    """Trains the draft model; see ``DraftSettings`` for the config.

    Raises:
      ValueError: a setting, a data set or a model that can't be used.
    """
    return loop.run(config, workdir, read, make_task)


def make_task(s: DraftSettings, workdir: str) -> loop.Task:
    """What the loop trains.

    Args:
      s: the settings.
      workdir: of the run.
    """
    before = students.read(s.going_on) if s.going_on else None
    target = loading.read_config(chats.find(s.target))
    config = _config(s, target, before)  # what can't be is said before features are computed
    material = Material(s, s.streams, workdir)
    params, model = material.params, transformer_target(config)
    ids = start.draft_vocabulary(_kept(before), s.draft_vocab_size, material)
    draft_ids = ids if config.draft_vocab_size else None
    whose = fingerprint.target(material.folder)
    frozen = {
        **material.output,
        "embed": params["embed"],
        "ids": jnp.asarray(ids),
        "rows": output_rows(params, jnp.asarray(ids)),
        "known": jnp.asarray(np.isin(np.arange(target.vocab_size), ids)),
        "target": material.frozen,
    }

    def measured(
        own: Any, frozen: Any, batch: Any, law: asked.Whole | None = None
    ) -> tuple[jax.Array, Sums]:
        final = material.features(frozen["target"], batch)[..., -target.width :]  # of the last one
        # The borrowed parts are constants; where the loop computes in another dtype, so do they.
        dtype = own["norm"].dtype
        embed, rows = (frozen[name].astype(dtype) for name in ("embed", "rows"))
        whole = {**own, "embed": embed, "head": rows}
        said = distill.ask(model, whole, rows, frozen["known"], batch, final)
        how = {"loss": s.loss, "positions": s.positions, "whole": law}
        return distill.objective(said, batch["segment"], **how)

    def loss(own: Any, frozen: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Sums]:
        del key
        return measured(own, frozen, batch)

    def evaluate(own: Any, frozen: Any, batch: Any) -> Sums:
        law = asked.Whole(output_matrix(frozen), frozen["ids"])
        total, sums = measured(own, frozen, batch, law)
        return {**sums, "loss": total}

    return loop.Task(
        init=lambda key: _initial(s, config, before, params, key),
        loss=loss,
        frozen=frozen,
        batch=material.batch,
        evaluate=evaluate,
        held_out=material.held_out(),
        fingerprint=material.fingerprint(ids) | {"draft": str(config)},
        tokens_per_batch=material.tokens_per_batch,
        export=lambda own, to: students.save(to, config, own, draft_ids, target=whose),
        name=f"draft model for {material.name}",
    )


def _config(s: DraftSettings, target: ModelConfig, before: Student | None) -> ModelConfig:
    """The draft model's configuration, which is that of the one to go on from, if there is one."""
    size = before.config.num_logits if before else s.draft_vocab_size
    try:
        config = students.config_of(target, s.layers, size)
    except ValueError as error:
        raise ValueError(f"config.{error}") from error
    if before:
        start.check_same(s.start, before.config, config)
        students.check_pair(s.start, before.config, target, chats.find(s.target))
    return config


def _kept(before: Student | None) -> NDArray[np.int32] | None:
    """The draft vocabulary of the one to go on from, if there is one."""
    if before is None:
        return None
    whole = np.arange(before.config.vocab_size, dtype=np.int32)
    return whole if before.ids is None else before.ids


def _initial(
    s: DraftSettings, config: ModelConfig, before: Student | None, params: Any, key: jax.Array
) -> Any:
    """The first parameters, float32: of the one to go on from, the target's, or new."""
    if before:
        return before.own
    return (
        students.random(config, key)
        if s.start == "random"
        else students.from_target(params, s.layers)
    )


if __name__ == "__main__":
    cli.main(run)
