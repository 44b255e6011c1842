"""The training loop that all heads share: a task and settings in, a trained head out.

A run is a function of its task and settings: batches and noise depend on the step alone, and a
checkpoint holds everything else. So a run that was killed and started again with the same command
gives, on CPU, bit for bit the weights and the curve of one that wasn't.

The workdir holds ``metrics.jsonl`` (a line every ``log_every`` steps, and one an evaluation),
``tensorboard/``, ``checkpoints/``, ``best/`` and ``last/`` (the exported head, of the best
held-out score and of the last step), and at the end ``results.json`` and ``curves.png``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from specjax import device
from train import checkpoint, finish, optim, settings, step
from train import task as tasks
from train.mesh import Mesh, Prefetch
from train.record import Recorder
from train.settings import LoopSettings, defaults, smoke
from train.task import NonFiniteError, Summary, Task
from train.trace import Trace
from train.watch import Watch

__all__ = ["LoopSettings", "NonFiniteError", "Summary", "Task", "defaults", "fit", "smoke"]


def run(
    config: Mapping[str, Any],
    workdir: str,
    read: Callable[[Mapping[str, Any]], Any],
    make_task: Callable[[Any, str], Task],
) -> Summary:
    """What every training command does with its config, all of which is in results.json.

    Args:
      config: of the command; ``loop`` holds the loop's settings.
      workdir: of the run.
      read: the command's settings of the rest, with ``smoke``.
      make_task: what to train, of those and the workdir.
    """
    given, own = read(config), ConfigDict(config["loop"])
    if given.smoke:
        smoke(own)
    s = settings.read(own)
    whole = {**_plain(config), "loop": settings.as_json(s)}
    return fit(make_task(given, workdir), s, workdir, {"config": whole})


def fit(
    task: Task,
    config: Mapping[str, Any] | LoopSettings,
    workdir: str | os.PathLike[str],
    more: Mapping[str, Any] | None = None,
) -> Summary:
    """Trains, or goes on training where a run in this workdir was stopped.

    Args:
      task: what to train.
      config: see ``LoopSettings``; what isn't given keeps its default.
      workdir: the run's own folder; may be ``gs://``.
      more: further entries of results.json.

    Returns:
      How it ended. Stopped by a signal or by ``max_seconds``, everything is saved.

    Raises:
      ValueError: a setting or a batch that can't be, or a checkpoint of another task.
      NonFiniteError: the loss or a gradient is NaN or infinite; the bad state was not saved.
    """
    with contextlib.ExitStack() as stack:
        # ---- settings and devices
        s = settings.read(config)
        if not task.held_out:
            raise ValueError("the task has no held-out batches; it needs at least one")
        folder = checkpoint.folder(workdir)
        mesh = Mesh(s.mesh_size())
        dtype = jnp.dtype(s.dtype) if s.dtype else device.default_dtype()
        frozen = mesh.replicate(task.frozen)
        make_batch = _batches(task, mesh, s)
        first_batch = make_batch(0)

        # ---- the state, from a checkpoint if there is one
        saves = checkpoint.Checkpoints(folder / "checkpoints", task.fingerprint, s.keep_last, _say)
        stack.callback(saves.close)
        optimizer = optim.make(s)
        state, done, seconds = mesh.replicate(_initial(task, s, optimizer, frozen)), 0, 0.0
        abstract = _abstract(state)
        if (latest := saves.latest()) is not None:
            _check_resume(latest, s)
            state = saves.load(latest, abstract)
            done, seconds = latest.step, latest.manifest["seconds"]
        best = saves.best()
        best_score = float("-inf") if best is None else best.score

        # ---- programs; the step's is compiled here, so that there can be no second one
        begun = time.perf_counter()
        train_step = step.make(task.loss, optimizer, dtype, s.seed)
        jitted = jax.jit(train_step, donate_argnums=0, out_shardings=mesh.replicated)
        train_step = jitted.lower(state, frozen, first_batch).compile()
        evaluate = _evaluation(task, mesh, frozen, dtype)
        _say(f"compiled the step in {time.perf_counter() - begun:.1f} s")

        # ---- the loop
        watch = Watch(s)
        stack.enter_context(watch.signals())
        recorder = Recorder(task, s, folder, done, seconds)
        stack.callback(recorder.close)
        batches = Prefetch(make_batch, done, s.steps)
        stack.callback(batches.close)
        trace = Trace(folder / "profile", s.profile_range())
        stack.callback(lambda: trace.close(state))
        stopped = ""
        while done < s.steps and not stopped:
            batch = batches.take()
            with trace.step(done, state):
                state, ticket = train_step(state, frozen, batch)
            done += 1
            trace.stepped(done, state)
            recorder.advance(done, ticket)
            last = done == s.steps
            if last or done % s.log_every == 0:
                recorder.take(done, state.metrics)
                fresh = mesh.replicate(step.no_metrics(state.metrics.sums))
                state = state._replace(metrics=fresh)

            score, is_best = None, False
            if last or (s.eval_every and done % s.eval_every == 0):
                recorder.flush()
                recorder.check(done, state.metrics)  # names the batch, which an evaluation can't
                score = recorder.held_out(done, evaluate(state.params))
                is_best = score > best_score

            stopped, late = watch.ask(done)
            due = s.checkpoint_every and done % s.checkpoint_every == 0
            if due or late or is_best or last or stopped:
                recorder.flush()  # what the checkpoint doesn't hold must be on disk before it is
                recorder.check(done, state.metrics)
                what = {"score": score, "seconds": recorder.seconds}
                saves.save(done, state, **what, settings=settings.as_json(s))
                recorder.saved_at = done
                watch.saved()
            if is_best:
                best_score = score
                _export(task, state.params, folder / "best")

        # ---- the end
        saves.wait()
        stopped = stopped if done < s.steps else ""
        params = best_params = jax.device_get(state.params)
        best = saves.best()
        if best is not None and best.step != done:
            best_params = jax.device_get(saves.load(best, abstract).params)
        _export(task, best_params, folder / "best")
        _export(task, params, folder / "last")
        best_step, best_score = (done, None) if best is None else (best.step, best.score)
        spent = recorder.seconds
        summary = Summary(
            params, best_params, done, stopped, best_step, best_score, spent, recorder.records
        )
        if jax.process_index() == 0:
            finish.write_results(folder, task, s, summary, more or {})
        return summary


def _plain(config: Any) -> Any:
    """A config without its classes, for a JSON file."""
    if hasattr(config, "items"):
        return {name: _plain(value) for name, value in config.items()}
    return [_plain(value) for value in config] if isinstance(config, list | tuple) else config


def _batches(task: Task, mesh: Mesh, s: LoopSettings) -> Callable[[int], Any]:
    """Step -> its batch in microbatches, on the devices; checked against the first one's shapes."""
    expected = checkpoint.shapes(task.batch(0))

    def make(at: int) -> Any:
        batch = task.batch(at)
        if checkpoint.shapes(batch) != expected:
            raise ValueError(
                f"the task's batch {at} is {checkpoint.shapes(batch)}, but batch 0 is {expected}; "
                "all must have the same shapes, or the step would be compiled again"
            )
        return mesh.microbatches(batch, s.accumulation)

    return make


def _initial(task: Task, s: LoopSettings, optimizer: Any, frozen: Any) -> step.State:
    params = task.init(jax.random.key(s.seed))
    loss, sums = jax.eval_shape(task.loss, params, frozen, task.batch(0), jax.random.key(0))
    tasks.check(params, sums, loss)
    return step.init(params, sums, optimizer)


def _abstract(state: step.State) -> step.State:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def _check_resume(latest: checkpoint.Saved, s: LoopSettings) -> None:
    if latest.step > s.steps:
        raise ValueError(
            f"loop.steps={s.steps}, but {latest.path} is already of step {latest.step}; take more "
            "steps, or another --workdir"
        )
    _say(f"going on from step {latest.step} of {s.steps}")
    for name, was, now in settings.changed(latest.manifest["settings"], s):
        _say(f"loop.{name} was {was!r} until step {latest.step}, and is {now!r} from there on")


def _evaluation(
    task: Task, mesh: Mesh, frozen: Any, dtype: jnp.dtype
) -> Callable[[Any], dict[str, float]]:
    """Parameters -> the sums over all held-out batches."""

    @functools.partial(jax.jit, out_shardings=mesh.replicated)
    def one(params: Any, frozen: Any, batch: Any) -> tasks.Sums:
        with jax.named_scope("evaluate"):
            return task.evaluate(step.cast(params, dtype), frozen, batch)

    def all_of_them(params: Any) -> dict[str, float]:
        totals: dict[str, float] = {}
        for batch in task.held_out:
            for name, value in jax.device_get(one(params, frozen, mesh.rows(batch))).items():
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    return all_of_them


def _export(task: Task, params: Any, folder: Any) -> None:
    if jax.process_index() == 0:
        finish.export(task.export, jax.device_get(params), folder)


def _say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)
