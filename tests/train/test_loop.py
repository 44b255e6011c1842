"""The loop on a toy task: learns, adds up, resumes bit for bit, and says what is wrong."""

import json
import pickle
import signal
import socket
import sys

import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fsspec.implementations import memory

from tests.train import toy
from tests.train.processes import Processes
from train import checkpoint, curves, loop, metrics, settings


def read(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def of(records, split, name):
    return np.array([record[name] for record in records if record["split"] == split])


def assert_same_params(a, b) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    made = Processes(tmp_path_factory.mktemp("processes"))
    yield made
    made.close()


@pytest.fixture
def run(processes):
    """Runs the toy's command and gives what it printed."""

    def one(workdir, *flags, code=0, **env):
        ((found, said),) = processes.run((_flags(workdir, *flags), env))
        assert found == code, said
        return said

    return one


def _flags(workdir, *more):
    return f"--config={toy.__file__}", f"--workdir={workdir}", *more


@pytest.fixture(scope="module", autouse=True)
def cache():
    """The same few programs again and again: each is compiled once."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 0.0)
    yield
    jax.config.update(name, before)


@pytest.fixture(autouse=True)
def no_chart(monkeypatch):
    """Only the reference run, made before this, draws one: it takes longer than a run."""
    monkeypatch.setattr(curves, "write", lambda path, *args: path.touch())


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run of the toy's own settings."""
    workdir = tmp_path_factory.mktemp("reference")
    return workdir, loop.fit(toy.task(), toy.settings(), workdir)


# --- what a run does


def test_a_run_learns_and_leaves_its_results(reference) -> None:
    workdir, summary = reference
    losses, scores = of(summary.records, "train", "loss"), of(summary.records, "held_out", "hits")
    assert losses[-1] < 0.7 * losses[0]
    assert (summary.step, summary.stopped) == (40, "")
    assert of(summary.records, "train", "step").tolist() == list(range(4, 41, 4))
    assert of(summary.records, "held_out", "step").tolist() == [10, 20, 30, 40]
    assert summary.best_score == scores.max()
    assert summary.best_step == 10 * (1 + scores.argmax())
    assert read(workdir) == summary.records
    for folder, params in (("best", summary.best_params), ("last", summary.params)):
        with np.load(workdir / folder / "head.npz") as head:
            assert_same_params([head[name] for name in head.files], params)
    results = json.loads((workdir / "results.json").read_text())
    assert results["best_score"] == summary.best_score and len(results["rows"]) == 4
    assert results["config"]["lr"] == toy.settings().lr
    assert (workdir / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((workdir / "tensorboard").iterdir())


def test_a_step_follows_the_mean_over_units_with_noise_of_its_own(tmp_path) -> None:
    task = toy.task()
    s = toy.settings(steps=3, log_every=1, seed=5, optimizer="adamw", clip_norm=0.0)
    summary = loop.fit(task, s, tmp_path)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), 0), 0)

    def mean(params):
        total, sums = task.loss(params, task.frozen, task.batch(0), key)
        return total / sums["weight"]

    loss, gradient = jax.value_and_grad(mean)(task.init(jax.random.key(5)))
    (first, *_) = summary.records
    assert first["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert first["grad_norm"] == pytest.approx(float(optax.tree.norm(gradient)), rel=1e-5)


def test_no_two_steps_or_microbatches_have_the_same_noise(tmp_path) -> None:
    task = toy.task()

    def loss(params, frozen, batch, key):
        total, sums = task.loss(params, frozen, batch, key)
        drawn = jax.random.uniform(key)
        return total, sums | {"drawn": drawn, "drawn_weight": jnp.ones([])}

    s = toy.settings(steps=4, log_every=1, accumulation=2)
    drawn = of(loop.fit(task._replace(loss=loss), s, tmp_path).records, "train", "drawn")
    keys = [jax.random.fold_in(jax.random.key(0), step) for step in range(4)]
    expected = [
        np.mean([jax.random.uniform(jax.random.fold_in(key, i)) for i in range(2)]) for key in keys
    ]
    np.testing.assert_allclose(drawn, expected, rtol=1e-6)


def test_the_step_is_traced_once(tmp_path) -> None:
    calls = {"loss": 0, "evaluate": 0}

    def counting(name, function):
        def call(*args):
            calls[name] += 1
            return function(*args)

        return call

    task = toy.task()
    task = task._replace(
        loss=counting("loss", task.loss), evaluate=counting("evaluate", task.evaluate)
    )
    loop.fit(task, toy.settings(steps=9, accumulation=1), tmp_path)
    assert calls == {"loss": 2, "evaluate": 1}  # once for the shapes alone


def test_accumulation_changes_nothing_but_rounding(tmp_path) -> None:
    task = toy.task(noise=0.0)
    whole = loop.fit(task, toy.settings(steps=12), tmp_path / "whole")
    parts = loop.fit(task, toy.settings(steps=12, accumulation=4), tmp_path / "parts")
    for name in ("loss", "hits", "zeros", "grad_norm"):
        np.testing.assert_allclose(
            of(parts.records, "train", name), of(whole.records, "train", name), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_bfloat16_keeps_float32_master_weights(tmp_path, optimizer) -> None:
    s = toy.settings(steps=12, dtype="bfloat16", optimizer=optimizer)
    summary = loop.fit(toy.task(), s, tmp_path)
    losses = of(summary.records, "train", "loss")
    assert losses[-1] < losses[0]
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(summary.params))


def test_a_profile_of_some_steps(tmp_path) -> None:
    loop.fit(toy.task(), toy.settings(steps=6, profile="2:2"), tmp_path)
    traces = [p for p in (tmp_path / "profile").rglob("*") if p.is_file()]
    assert traces and all(p.stat().st_size for p in traces)


def test_plain_lines_where_there_is_no_terminal(tmp_path, capsys) -> None:
    loop.fit(toy.task(), toy.settings(steps=8), tmp_path)
    said = capsys.readouterr().err
    assert "step 8/8  loss " in said and "tok/s" in said and "left" in said
    assert "held-out loss" in said and "hits" in said


def test_smoke_shortens_a_run() -> None:
    config = toy.get_config()
    loop.smoke(config.loop)
    assert settings.read(config.loop).steps < 10


# --- resuming


def test_stopped_after_every_single_step_it_is_the_same_run(tmp_path) -> None:
    s = toy.settings(steps=4, warmup_steps=2, eval_every=2, checkpoint_every=0, log_every=3)
    whole = loop.fit(toy.task(), s, tmp_path / "whole")
    for step in range(1, 5):
        cut = toy.settings(**(vars(s) | {"max_seconds": 1e-9}))
        summary = loop.fit(toy.task(), cut, tmp_path / "cut")
        assert (summary.step, summary.stopped) == (step, "" if step == 4 else "max_seconds")
    assert toy.curve(read(tmp_path / "cut")) == toy.curve(read(tmp_path / "whole"))
    assert_same_params(summary.params, whole.params)
    assert_same_params(summary.best_params, whole.best_params)


def test_a_resumed_run_knows_what_was_best(tmp_path) -> None:
    task = toy.task()
    first = task.init(jax.random.key(0))

    def evaluate(params, frozen, batch):
        moved = optax.tree.norm(jax.tree.map(jnp.subtract, params, first), squared=True)
        return {"loss": moved, "hits": -moved, "weight": jnp.ones([])}

    task = task._replace(evaluate=evaluate)
    s = toy.settings(steps=3, warmup_steps=1, eval_every=1, max_seconds=1e-9)
    runs = [loop.fit(task, s, tmp_path) for _ in range(3)]
    assert [run.best_step for run in runs] == [1, 1, 1]
    assert_same_params(runs[2].best_params, runs[0].params)
    kept = [p.name for p in sorted((tmp_path / "checkpoints").iterdir())]
    assert kept == ["00000001", "00000002", "00000003"]


def test_killed_at_any_moment_it_is_the_same_run(tmp_path, run, reference) -> None:
    places = ("batch:5", "state:1", "manifest:2", "batch:14", "prune:1", "state:3", "export:1")
    for place in places:
        run(tmp_path, code=-signal.SIGKILL, TOY_KILL=place)
    said = run(tmp_path)
    assert "going on from step" in said
    workdir, summary = reference
    assert toy.curve(read(tmp_path)) == toy.curve(read(workdir))
    for folder in ("best", "last"):
        with (
            np.load(tmp_path / folder / "head.npz") as a,
            np.load(workdir / folder / "head.npz") as b,
        ):
            assert_same_params(dict(a), dict(b))
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["best_step"] == summary.best_step


def test_sigterm_saves_and_exits_with_143(tmp_path, run, reference) -> None:
    said = run(tmp_path, code=143, TOY_TERM="18")
    assert "SIGTERM at step" in said and "the same command goes on from there" in said
    assert 15 <= json.loads((tmp_path / "results.json").read_text())["steps"] <= 20
    run(tmp_path)
    assert toy.curve(read(tmp_path)) == toy.curve(read(reference[0]))


def test_a_finished_run_is_not_run_again(tmp_path) -> None:
    s = toy.settings(steps=6)
    first = loop.fit(toy.task(), s, tmp_path)
    again = loop.fit(toy.task(), s, tmp_path)
    assert again.records == first.records
    assert_same_params(again.params, first.params)


def test_more_steps_go_on_and_a_changed_rate_is_told(tmp_path, capsys) -> None:
    loop.fit(toy.task(), toy.settings(steps=6), tmp_path)
    summary = loop.fit(toy.task(), toy.settings(steps=8, lr=1e-3), tmp_path)
    assert summary.step == 8
    assert "loop.lr was 0.03 until step 6, and is 0.001 from there on" in capsys.readouterr().out
    with pytest.raises(ValueError, match="already of step 8"):
        loop.fit(toy.task(), toy.settings(steps=7), tmp_path)


# --- many devices


def test_eight_devices_give_one_devices_losses(tmp_path, run, reference) -> None:
    flags = "--xla_force_host_platform_device_count=8"
    run(tmp_path, "--config.loop.mesh=data:8", "--config.loop.accumulation=1", XLA_FLAGS=flags)
    _assert_close(read(tmp_path), reference[1].records)


def test_two_processes_give_one_processes_losses(tmp_path, processes, reference) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    store = tmp_path / "store"
    env = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "TOY_STORE": str(store)}
    flags = _flags(tmp_path, "--multihost", "--config.loop.mesh=data:2")
    one, other = (env | {"JAX_PROCESS_ID": index} for index in "01")
    # A signal that reaches one of them stops both, at the same step.
    for code, said in processes.run((flags, one), (flags, other | {"TOY_TERM": "18"})):
        assert code == 143, said
    for code, said in processes.run((flags, one), (flags, other)):
        assert code == 0, said
    _assert_close(read(tmp_path), reference[1].records)


def _assert_close(found, expected) -> None:
    assert len(found) == len(expected)
    for split in ("train", "held_out"):
        np.testing.assert_allclose(
            of(found, split, "loss"), of(expected, split, "loss"), rtol=1e-5, atol=1e-6
        )


def test_a_batch_that_cannot_be_split_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"a batch of 16 can't be cut into .* 5 \* 1 equal parts"):
        loop.fit(toy.task(), toy.settings(accumulation=5), tmp_path)
    with pytest.raises(ValueError, match=r"asks for 3 device.*there are 1"):
        loop.fit(toy.task(), toy.settings(mesh="data:3"), tmp_path)


# --- what is wrong is said


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path) -> None:
    with pytest.raises(loop.NonFiniteError) as caught:
        loop.fit(toy.task(bad=(17,)), toy.settings(), tmp_path)
    message = str(caught.value)
    assert "at step 17 " in message and "ids [1700, 1701" in message
    assert "steps 16 to 19" in message and "the last checkpoint is of step 14" in message
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["00000010", "00000014"]
    assert max(record["step"] for record in read(tmp_path)) == 16


def test_a_checkpoint_in_the_middle_of_an_interval_is_checked_too(tmp_path) -> None:
    s = toy.settings(log_every=100, eval_every=0, checkpoint_every=7)
    with pytest.raises(loop.NonFiniteError, match="at step 17 "):
        loop.fit(toy.task(bad=(17,)), s, tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["00000007", "00000014"]


@pytest.mark.parametrize("bad, when", [(7, "7 to 9"), (9, "8 to 9")])
def test_a_step_before_an_evaluation_is_named_too(tmp_path, bad, when) -> None:
    """In the middle of a log interval; the parameters it left give no finite score."""
    s = toy.settings(log_every=8 if bad == 9 else 100)
    with pytest.raises(
        loop.NonFiniteError, match=rf"at step {bad} \(.*ids \[{bad}00.*steps {when}"
    ):
        loop.fit(toy.task(bad=(bad,)), s, tmp_path)
    assert not of(read(tmp_path), "held_out", "step").size


def test_no_events_without_their_package(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert metrics.board(checkpoint.folder(tmp_path), 0) is None
    assert "no TensorBoard events: import of tensorboardX" in capsys.readouterr().err


def test_another_tasks_checkpoint_is_refused(tmp_path) -> None:
    loop.fit(toy.task(), toy.settings(steps=3), tmp_path)
    with pytest.raises(ValueError, match=r"data.seed is 0 in it, and 1 in this run"):
        loop.fit(toy.task(seed=1), toy.settings(steps=3), tmp_path)
    with pytest.raises(ValueError, match="checkpoint of another run: the array opt_state"):
        loop.fit(toy.task(), toy.settings(steps=3, optimizer="muon"), tmp_path)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(held_out=[]), "no held-out batches"),
        (dict(score="luck"), "it must give 'loss' and 'luck'"),
        (
            dict(init=lambda k: {"w": jnp.ones(3, jnp.bfloat16)}, loss=lambda *_: (0.0, {})),
            "parameter w is bfloat16",
        ),
        (dict(loss=lambda *_: (jnp.ones(2), {})), "must be scalars"),
        (dict(batch=lambda step: {"x": np.zeros((4 + step, 2), np.float32)}), None),
    ],
)
def test_a_task_that_cannot_be_is_refused(tmp_path, changes, message) -> None:
    task = toy.task(**changes)
    if message is None:
        task = toy.task(
            batch=lambda step: (
                toy.task().batch(step) if step < 3 else {"x": np.zeros((8, 2), np.float32)}
            )
        )
        message = "batch 3 is .*all must have the same shapes"
    with pytest.raises(ValueError, match=message):
        loop.fit(task, toy.settings(steps=5), tmp_path)


def test_what_making_a_batch_raises_ends_the_run(tmp_path) -> None:
    def batch(step):
        if step == 4:
            raise OSError("the shard is gone")
        return toy.task().batch(step)

    with pytest.raises(OSError, match="the shard is gone"):
        loop.fit(toy.task(batch=batch), toy.settings(), tmp_path)


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("steps", 0, "loop.steps=0; it must be an integer of at least 1"),
        ("steps", 1.5, "loop.steps=1.5; it must be an integer"),
        ("lr", float("nan"), "loop.lr=nan; it must be a number"),
        ("optimizer", "sgd", "loop.optimizer='sgd'; it must be 'adamw' or 'muon'"),
        ("mesh", "model:8", "loop.mesh='model:8'; it must be data:N"),
        ("profile", "5", "profile='5'; it must be START:N"),
        ("b1", 1.0, "loop.b1=1.0"),
        ("stps", 3, "loop.stps: there is no such key"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(key, value, message) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        settings.read({key: value})


# --- metrics


def test_means() -> None:
    sums = {"weight": 4.0, "loss": 2.0, "late": 1.0, "late_weight": 2.0, "x": 3.0, "x_weight": 0.0}
    assert metrics.means(sums) == {"loss": 0.5, "late": 0.5}


def test_lines_after_the_restored_step_are_removed(tmp_path) -> None:
    log = metrics.Log(tmp_path, 0)
    for step in range(1, 5):
        log.write({"step": step, "split": "train", "loss": float(step), "odd": float("inf")})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "spl')
    log = metrics.Log(tmp_path, 2)
    log.write({"step": 3, "split": "train", "loss": 30.0})
    log.close()
    assert [record["loss"] for record in read(tmp_path)] == [1, 2, 30]
    assert read(tmp_path)[0]["odd"] is None


def test_clock() -> None:
    assert metrics.clock(59.6) == "1:00" and metrics.clock(3723) == "1:02:03"


def test_a_workdir_may_be_a_bucket(bucket, reference) -> None:
    """The bucket is in memory, and the arrays' own format, Orbax's business, is left out."""
    with pytest.raises(loop.NonFiniteError):
        loop.fit(toy.task(bad=(27,)), toy.settings(), "gs://bucket/run")
    summary = loop.fit(toy.task(), toy.settings(), "gs://bucket/run")
    assert toy.curve(summary.records) == toy.curve(reference[1].records)
    names = {str(name).removeprefix("/") for name in bucket}
    assert {
        f"bucket/run/{name}" for name in ("metrics.jsonl", "results.json", "curves.png")
    } < names
    assert {f"bucket/run/{name}/head.npz" for name in ("best", "last")} < names
    lines = bucket["/bucket/run/metrics.jsonl"].getvalue().decode().splitlines()
    assert [json.loads(line) for line in lines] == summary.records


@pytest.fixture
def bucket(monkeypatch):
    class Bucket(memory.MemoryFileSystem):
        protocol = ("gcs", "gs")
        store = {}  # noqa: RUF012
        pseudo_dirs = [""]  # noqa: RUF012

        def __init__(self, finalize_on_close=False):
            super().__init__()

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(str(path).replace("gs://", "memory://"))

    class Done:
        def result(self):
            pass

    def save(path, state):
        leaves = [np.asarray(x) for x in jax.tree.leaves(state)]
        path.mkdir(parents=True)
        (path / "arrays").write_bytes(pickle.dumps(leaves))
        return Done()

    def load(path, abstract):
        leaves = pickle.loads((path / "arrays").read_bytes())
        placed = map(
            lambda x, like: jax.device_put(x, like.sharding), leaves, jax.tree.leaves(abstract)
        )
        return jax.tree.unflatten(jax.tree.structure(abstract), list(placed))

    fsspec.register_implementation("gcs", Bucket, clobber=True)
    monkeypatch.setattr(checkpoint.ocp, "save_async", save)
    monkeypatch.setattr(checkpoint.ocp, "load", load)
    monkeypatch.setattr(metrics, "board", lambda *args: None)
    return Bucket.store
