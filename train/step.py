"""One optimizer step as a pure function, and the state it carries on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Loss = Callable[[Any, Any, Any, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]


class Metrics(NamedTuple):
    """What happened since the last log step; kept on the device, so that no step waits for it.

    Attributes:
      sums: name -> float32 []: ``loss``, ``weight`` and the loss function's others, summed over
        supervised units; ``grad_norm``, summed over ``grad_norm_weight`` steps.
      first_bad: int32 [], the first step whose loss or gradient was not finite; -1 for none.
    """

    sums: dict[str, jax.Array]
    first_bad: jax.Array


class State(NamedTuple):
    """All that a checkpoint must hold for a run to go on as if nothing had happened.

    Attributes:
      params: the trainable parameters, float32.
      opt_state: optax's.
      step: int32 [], finished steps.
      metrics: of the steps since the last log step: a resumed run logs the same means.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    metrics: Metrics


def no_metrics(sums: Any) -> Metrics:
    """Metrics of no steps.

    Args:
      sums: the loss function's sums, real or abstract.
    """
    names = [*sums, "loss", "grad_norm", "grad_norm_weight"]
    zeros = {name: jnp.zeros([], jnp.float32) for name in sorted(names)}
    return Metrics(zeros, jnp.full([], -1, jnp.int32))


def init(params: Any, sums: Any, optimizer: optax.GradientTransformation) -> State:
    """The state before the first step; it owns its buffers (they are donated), so copies."""
    params = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
    return State(params, optimizer.init(params), jnp.zeros([], jnp.int32), no_metrics(sums))


def cast(params: Any, dtype: jnp.dtype) -> Any:
    """Floating-point parameters in the dtype that is computed in."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, params
    )


def make(
    loss: Loss, optimizer: optax.GradientTransformation, dtype: jnp.dtype, seed: int
) -> Callable[[State, Any, Any], tuple[State, jax.Array]]:
    """Makes the step.

    Args:
      loss: ``(params, frozen, batch, key) -> (sum of losses, sums with "weight")``.
      optimizer: of the float32 parameters.
      dtype: what the loss is computed in.
      seed: of the noise; step s, microbatch i has key ``fold_in(fold_in(key(seed), s), i)``.

    Returns:
      ``(state, frozen, batches [accumulation, size, ...]) -> (state, finished steps)``. The
      gradient is that of the sum of all microbatches' losses over the sum of their weights, so
      cutting a batch up, or splitting it over devices, changes nothing but rounding. The second
      output is there to be waited for: the state itself is donated to the next step.
    """

    def summed(params: Any, frozen: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        with jax.named_scope("loss"):
            total, sums = loss(cast(params, dtype), frozen, batch, key)
        return total, {name: x.astype(jnp.float32) for name, x in {**sums, "loss": total}.items()}

    gradient = jax.grad(summed, has_aux=True)

    def step(state: State, frozen: Any, batches: Any) -> tuple[State, jax.Array]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)

        def microbatch(index: jax.Array, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
            with jax.named_scope("microbatch"):
                return gradient(state.params, frozen, batch, jax.random.fold_in(key, index))

        grads, sums = _total(microbatch, batches)
        weight = sums["weight"]
        grads = jax.tree.map(lambda g: g / jnp.where(weight > 0, weight, 1.0), grads)

        with jax.named_scope("optimizer"), jax.numpy_dtype_promotion("standard"):
            # optax mixes int32 counts with floats, which strict promotion forbids.
            norm = optax.tree.norm(grads)
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)

        sums |= {"grad_norm": norm, "grad_norm_weight": jnp.ones([], jnp.float32)}
        bad = ~(jnp.isfinite(sums["loss"]) & jnp.isfinite(norm))
        before = state.metrics
        metrics = Metrics(
            jax.tree.map(jnp.add, before.sums, sums),
            jnp.where(bad & (before.first_bad < 0), state.step, before.first_bad),
        )
        done = state.step + 1
        return State(params, opt_state, done, metrics), done

    return step


def _total(microbatch: Callable[[jax.Array, Any], Any], batches: Any) -> Any:
    """The sum of ``microbatch(index, batch)`` over the leading axis of ``batches``."""
    if jax.tree.leaves(batches)[0].shape[0] == 1:
        return microbatch(jnp.int32(0), jax.tree.map(lambda x: x[0], batches))

    def add(total: Any, each: tuple[jax.Array, Any]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, microbatch(*each)), None

    indices = jnp.arange(jax.tree.leaves(batches)[0].shape[0], dtype=jnp.int32)
    one = jax.tree.map(lambda x: x[0], (indices, batches))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(microbatch, *one))
    return jax.lax.scan(add, zeros, (indices, batches))[0]
