"""The optimizer: AdamW, or Muon for matrices, with warm-up, a cosine and clipping."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from train.settings import LoopSettings


def schedule(peak: float, s: LoopSettings) -> optax.Schedule:
    """Linear warm-up to ``peak``, then a cosine to ``s.final_lr * peak`` at the last step.

    Args:
      peak: the highest rate.
      s: its warmup_steps, steps and final_lr.

    Returns:
      count [] of finished steps -> rate [], float32. Step 0 has ``peak / warmup_steps``, not 0: a
      first step that moves nothing is wasted.
    """

    def rate(count: jax.typing.ArrayLike) -> jax.Array:
        done = jnp.asarray(count).astype(jnp.float32)
        warm = (done + 1) / max(s.warmup_steps, 1)
        through = (done + 1 - s.warmup_steps) / max(s.steps - s.warmup_steps, 1)
        cosine = 0.5 * (1 + jnp.cos(math.pi * jnp.clip(through, 0, 1)))
        return peak * jnp.minimum(warm, s.final_lr + (1 - s.final_lr) * cosine)

    return rate


def make(s: LoopSettings) -> optax.GradientTransformation:
    """The optimizer the settings describe; its updates are to be added to the parameters.

    Weight decay leaves vectors (norms, biases) alone.
    """
    adam: dict[str, Any] = {"b1": s.b1, "b2": s.b2, "eps": s.eps}
    if s.optimizer == "adamw":
        inner = optax.adamw(
            schedule(s.lr, s), **adam, weight_decay=s.weight_decay, mask=_are_matrices
        )
    else:
        inner = optax.partition(
            {
                "muon": optax.contrib.muon(
                    schedule(s.lr, s),
                    weight_decay=s.weight_decay,
                    consistent_rms=s.muon_rms or None,
                    muon_weight_dimension_numbers=_every_matrix,
                ),
                "adam": optax.adamw(
                    schedule(s.adam_lr, s), **adam, weight_decay=s.weight_decay, mask=_are_matrices
                ),
            },
            lambda params: labels(params, s.adam_names),
        )
    clip = optax.clip_by_global_norm(s.clip_norm) if s.clip_norm else optax.identity()
    return optax.chain(clip, inner)


def labels(params: Any, adam_names: tuple[str, ...]) -> Any:
    """Whose each parameter is, "muon" or "adam", as a tree like ``params``."""

    def label(path: Any, leaf: Any) -> str:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        exempt = any(part in name for part in adam_names)
        return "muon" if jnp.ndim(leaf) >= 2 and not exempt else "adam"

    return jax.tree_util.tree_map_with_path(label, params)


def _are_matrices(params: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) >= 2, params)


def _every_matrix(params: Any) -> Any:
    """Weights are ``[..., in, out]``; leading axes are matrices of their own (stacked layers)."""
    dims = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
    return jax.tree.map(lambda leaf: dims, params)
