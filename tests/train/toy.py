"""A small task with a mask, noise and a frozen target, and a command to be killed.

TOY_KILL=WHERE:N kills the process, without a warning, the Nth time it comes to a place:
"batch" (in the thread that makes batches), "state" (once Orbax has begun to write), "manifest"
(the state is written, the manifest isn't), "prune" (an old checkpoint's manifest is gone, its
arrays aren't), "export". TOY_TERM=N sends SIGTERM when batch N is made. TOY_STORE=FOLDER keeps
features there first, as many as take the first process a while.
"""

import functools
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from train import checkpoint, cli, data, features, loop

SIZE, WIDTH, CLASSES = 16, 6, 5


def _batch(seed, step, bad=()):
    rng = np.random.default_rng([seed, step])
    x = rng.normal(size=(SIZE, WIDTH)).astype(np.float32)
    if step in bad:
        x[3] = np.inf
    # Masks that differ a lot between rows: a mean of means would be another loss.
    mask = (rng.random(SIZE) < np.linspace(0.1, 0.9, SIZE)).astype(np.float32)
    return {"x": x, "mask": mask, "ids": np.arange(SIZE) + 100 * step}


def _init(key):
    a, b = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(a, (WIDTH, 8)) / 2, "b": jnp.zeros(8)},
        "lm_head": jax.random.normal(b, (8, CLASSES)) / 2,
    }


def _logits(params, x):
    hidden = jnp.tanh(x.astype(params["hidden"]["w"].dtype) @ params["hidden"]["w"])
    return ((hidden + params["hidden"]["b"]) @ params["lm_head"]).astype(jnp.float32)


def _sums(params, frozen, batch, x):
    labels = jnp.argmax(batch["x"] @ frozen["target"], axis=-1)
    logits = _logits(params, x)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]
    mask = batch["mask"]
    hits = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32) * mask
    is_zero = (labels == 0).astype(jnp.float32)
    sums = {
        "weight": jnp.sum(mask),
        "hits": jnp.sum(hits),
        "zeros": jnp.sum(hits * is_zero),
        "zeros_weight": jnp.sum(mask * is_zero),
    }
    return jnp.sum(losses * mask), sums


def loss(params, frozen, batch, key, noise=0.1):
    x = batch["x"]
    if noise:
        x = x + noise * jax.random.normal(key, x.shape)
    return _sums(params, frozen, batch, x)


def evaluate(params, frozen, batch):
    total, sums = _sums(params, frozen, batch, batch["x"])
    return {"loss": total, **sums}


def export(params, folder):
    np.savez(folder / "head.npz", **{str(i): x for i, x in enumerate(jax.tree.leaves(params))})


def task(seed=0, noise=0.1, bad=(), **changes):
    target = np.random.default_rng(1234).normal(size=(WIDTH, CLASSES)).astype(np.float32)
    return loop.Task(
        init=_init,
        loss=functools.partial(loss, noise=noise),
        frozen={"target": jnp.asarray(target)},
        batch=functools.partial(_batch, seed, bad=bad),
        evaluate=evaluate,
        held_out=[_batch(seed + 1, i) for i in range(2)],
        fingerprint={"target": "toy", "data": {"seed": seed}},
        tokens_per_batch=SIZE,
        export=export,
        score="hits",
        name="A toy",
    )._replace(**changes)


def settings(**changes):
    short = {
        "steps": 40, "log_every": 4, "eval_every": 10, "checkpoint_every": 7, "warmup_steps": 5,
        "lr": 3e-2, "checkpoint_seconds": 0.0,
    }  # fmt: skip
    return loop.LoopSettings(**(short | changes))


def get_config():
    config = ConfigDict()
    config.loop = loop.defaults()
    config.loop.update({k: v for k, v in vars(settings()).items() if k != "adam_names"})
    return config


def curve(records):
    """What must be the same whenever and wherever a run was done."""
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "tokens_per_second")}
        for record in records
    ]


def _die(where, count={}):  # noqa: B006
    place, _, number = os.environ.get("TOY_KILL", "").partition(":")
    count[where] = count.get(where, 0) + 1
    if where == place and count[where] == int(number):
        os.kill(os.getpid(), signal.SIGKILL)


def _fill(folder):
    """Features that are the number of the process that made them."""

    def compute(target, layers, params, rows):
        time.sleep(0.1)
        return jnp.full((*rows["tokens"].shape, 1), jax.process_index(), jnp.float32)

    features.compute = compute
    store, rows = features.Store(folder, 1, {}), data.Rows(*[np.zeros((8, 4096), np.int32)] * 4)
    store.fill(None, (), None, rows)
    assert not store.read(np.arange(8)).any()


def _run(config, workdir):
    toy = task()
    if "TOY_STORE" in os.environ:
        _fill(os.environ["TOY_STORE"])

    def batch(step):
        _die("batch")
        if os.environ.get("TOY_TERM") == str(step):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
        return toy.batch(step)

    def before(module, name, where):
        real = getattr(module, name)

        def call(*args, **kwargs):
            if where == "manifest" and not args[0].name.startswith("manifest"):
                return real(*args, **kwargs)
            _die(where)
            return real(*args, **kwargs)

        setattr(module, name, call)

    before(checkpoint, "write_text", "manifest")
    remove = checkpoint._remove

    def half_remove(path):
        (path / "manifest.json").unlink(missing_ok=True)
        _die("prune")
        remove(path)

    checkpoint._remove = half_remove
    before(checkpoint.Checkpoints, "_finish", "state")

    def write(params, folder):
        export(params, folder)
        _die("export")

    return loop.fit(toy._replace(batch=batch, export=write), config.loop, workdir)


def main():
    cli.main(_run)
