"""The sweep over batch sizes: its ratios and crossovers by hand, and whole runs on a tiny model."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import batch_sweep_smollm2
from eval import batch_sweep, checks, random_models, shapes, sweep_bench, sweep_page, sweep_rows
from eval.modes import Mode
from eval.sweep_bench import Bench, Cell, Trial
from eval.synthetic import synthetic
from specjax import costs, verify
from specjax.drafters import ngram
from specjax.stats import Stats
from tests.eval import tiny

COLUMNS = """mode drafter verifier temperature k batch context alpha tokens_per_second
row_tokens_per_second tokens_per_pass acceptance_rate speedup speedup_low speedup_high full_speedup
ratio_to_best ratio_to_best_low ratio_to_best_high best_k compile_s first_difference
lossless""".split()  # noqa: SIM905


def changed(**changes: Any) -> Any:
    config = batch_sweep_smollm2.get_config()
    config.update(
        {"ks": (1, 2), "batches": (1, 2), "contexts": (4, 9), "max_new_tokens": 6, "repeats": 2,
         "min_prompts": 2}
    )  # fmt: skip
    config.update(changes)
    return config


@pytest.fixture(autouse=True)
def _own_cost_tables(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))


# --- ratios by hand ---


def trial(seconds: float, full_s: float | None = None, tokens: Any = None) -> Trial:
    """Two rows of 4 tokens, of which 6 came out in three quarters of the time."""
    tokens = np.zeros([2, 4], np.int32) if tokens is None else np.asarray(tokens, np.int32)
    rounds = np.array([4, 2], np.int32)
    drafted, right = np.array([0, 3], np.int32), np.array([[0, 0], [2, 0]], np.int32)
    judged = np.array([[0, 0], [3, 0]], np.int32)
    stats = Stats(
        rounds, np.array([4, 4]), drafted, judged, right, rounds, drafted, judged.sum(1),
        right.sum(1), np.array([1, 3]),
    )  # fmt: skip
    return Trial(tokens, seconds, full_s or 0.75 * seconds, 6, stats)


PLAIN = Mode("plain", 0.0, verify.greedy)
ONE, TWO = (Mode(f"k={k}", 0.0, verify.greedy, ngram(k)) for k in (1, 2))
ADAPTIVE = Mode("adaptive", 0.0, verify.greedy, ngram(2, n_max=2))
EVERY = PLAIN, ONE, TWO, ADAPTIVE


def cell_of(times: dict[Mode, list[float]], batch: int = 2, context: int = 3) -> Cell:
    repeats = len(times[PLAIN])
    prompts = [[[1] * context] * batch] * repeats
    trials = {mode: [trial(seconds) for seconds in own] for mode, own in times.items()}
    return Cell(batch, context, None, prompts, trials)


# Milliseconds of passes over 1, 2 and 3 tokens, and of drafts of 0, 1 and 2.
TABLE = costs.CostTable(
    costs.Origin("cpu", "float32", "0.10.0", "model", "head"), (1, 4), (2, 9), (1, 2, 3), (0, 1, 2),
    np.tile([0.010, 0.012, 0.015], (2, 2, 1)), np.tile([0.001, 0.002, 0.004], (2, 1)),
)  # fmt: skip


def build(cells: list[Cell]) -> list[dict[str, Any]]:
    return sweep_rows.build(cells, TABLE, dict.fromkeys(EVERY, 1.0), 0)


def test_ratios_are_medians_of_pairs() -> None:
    """The machine is twice as slow in the second repeat, and adaptive once much slower."""
    times = {PLAIN: [4, 8, 4], ONE: [2, 4, 8], TWO: [4, 8, 2.5], ADAPTIVE: [2, 5, 4]}
    rows = build([cell_of(times)])
    plain, one, two, adaptive = rows
    assert [row["tokens_per_second"] for row in rows] == [2.0, 2.0, 2.0, 2.0]
    assert [row["row_tokens_per_second"] for row in rows] == [1.0] * 4
    assert (plain["speedup"], plain["speedup_low"]) == (1, None), "nothing to measure"
    assert (one["speedup"], two["speedup"], adaptive["speedup"]) == (2, 1, 1.6)
    assert (adaptive["speedup_low"], adaptive["speedup_high"]) == (1, 2)
    # The first of equally fast ones; 1, 0.8 and 2 times as fast.
    assert [row["best_k"] for row in rows] == [1] * 4
    assert (adaptive["ratio_to_best"], adaptive["ratio_to_best_low"]) == (1, 0.8)
    assert (two["ratio_to_best"], two["ratio_to_best_high"]) == (0.5, 3.2)


def test_the_best_fixed_length_is_the_one_of_the_best_median() -> None:
    times = {PLAIN: [4] * 3, ONE: [1, 4, 4], TWO: [3, 3, 3], ADAPTIVE: [3, 3, 2]}
    rows = build([cell_of(times)])
    assert rows[3]["best_k"] == 2
    assert (rows[3]["ratio_to_best"], rows[3]["ratio_to_best_high"]) == (1, 1.5)


def test_rates_and_the_part_in_which_all_rows_run() -> None:
    cell = cell_of({mode: [4.0] for mode in EVERY})
    cell.trials[ADAPTIVE][:] = [trial(4.0, full_s=1.5)]
    rows = build([cell])
    assert [row["predicted_round_ms"] for row in rows] == [10, 14, 19, None]
    row = rows[3]
    assert row["full_speedup"] == 2, "6 tokens in half the time, and then it waits for one row"
    assert row["speedup"] == 1 and row["speedup_low"] is None, "one repeat tells no interval"
    assert row["tokens_per_pass"] == pytest.approx(8 / 6, abs=1e-4)
    assert row["acceptance_rate"] == pytest.approx(2 / 3, abs=1e-4)
    assert row["drafted_per_round"] == 0.5
    assert row["round_ms"] == 1000, "four passes of the batch, whosever rows ran"


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [
        ([2.0, 1.5, 1.0], None),
        ([2.0, 1.5, 0.5], 2**1.5),  # halfway between 2 and 4, in doublings
        ([1.25, 0.5, 0.5], 2 ** (1 / 3)),
        ([0.9, 0.8, 0.7], 1.0),
        ([0.9, 1.5, 0.5], 2**1.5),  # a slip before does not count
        ([0.5, 0.5, 1.1], None),
    ],
)
def test_the_crossover_by_hand(speedups: list[float], expected: float | None) -> None:
    assert sweep_rows.crossover([1, 2, 4], speedups) == (expected and pytest.approx(expected))


def test_crossovers_are_told_apart_and_told() -> None:
    cells = [
        cell_of(
            {PLAIN: [4.0], ONE: [4 / one], TWO: [8.0], ADAPTIVE: [4 / (1 + batch / 10)]},
            batch, context,
        )
        for batch, by_context in ((1, (1.5, 2.0)), (4, (0.5, 1.5)))
        for context, one in zip((3, 5), by_context, strict=True)
    ]  # fmt: skip
    rows = build(cells)
    found = {(one.context, one.mode): one.batch for one in sweep_rows.crossovers(rows)}
    assert found == {
        (3, "k=1"): 2.0, (5, "k=1"): None, (3, "k=2"): 1.0, (5, "k=2"): 1.0,
    }  # fmt: skip
    text = "\n".join(sweep_page.remarks(rows))
    assert "k=1 at context 3: slower than plain decoding from batch 2 on." in text
    assert "k=1 at context 5: at the largest batch not slower than plain decoding." in text
    assert "Adaptive at its worst: 1.10 of plain decoding (batch 1, context 3)." in text
    assert "All cells together, times as fast as plain: k=1 1.04, k=2 0.50, adaptive 1.23." in text
    assert "fewer than 6 repeats" in text


def test_another_output_is_a_failure_and_a_near_tie_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(checks, "margin", lambda chat, ids: asked.append(ids) or 0.5)
    chat = random_models.target("tiny", TINY, jnp.float32, 0)
    cell = cell_of({mode: [4.0, 4.0] for mode in EVERY})
    cell.trials[ADAPTIVE][1] = trial(4.0, tokens=[[0, 0, 0, 0], [0, 0, 7, 0]])
    rows = build([cell])
    [failure] = sweep_rows.differences([cell], rows, chat)
    assert "adaptive differs from plain greedy decoding at batch 2, context 3, in row 1" in failure
    assert "of repeat 1 at token 2" in failure
    assert asked == [[1, 1, 1, 0, 0]], "prompt, and what both say"
    assert (rows[3]["first_difference"], rows[3]["margin"]) == (2, 0.5)
    monkeypatch.setitem(checks.NEAR_TIE, "float32", math.inf)
    assert sweep_rows.differences([cell], rows, chat) == []
    lucky = Mode("adaptive", 0.0, synthetic(0.5), ngram(2, n_max=2))
    cell.trials[lucky] = cell.trials.pop(ADAPTIVE)
    assert sweep_rows.differences([cell], rows, chat) == [], "it promises nothing"


# --- whole runs ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tiny.make_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tiny.make_head(tmp_path_factory.mktemp("head"))


TINY = shapes.ModelConfig(128, 32, 2, 4, 2, 8, 48, max_positions=256)


def result(workdir: pathlib.Path) -> dict[str, Any]:
    assert sorted(file.name for file in workdir.iterdir()) == [
        "batch_sweep.png", "costs.json", "results.json",
    ]  # fmt: skip
    assert (workdir / "batch_sweep.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((workdir / "results.json").read_text())
    batch_sweep.read(content["config"])  # can be run again
    for row in content["rows"]:
        assert set(COLUMNS) <= set(row)
        assert all(not isinstance(value, dict | list) for value in row.values())
    return content


def test_a_head_that_is_verified(
    folder: pathlib.Path, head: pathlib.Path, tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    """Greedy outputs are compared with plain ones, row by row."""
    out = tmp_path / "out"
    config = changed(target=str(folder), head=str(head), batches=(2,), ks=(1,))
    assert batch_sweep.run(config, out) == []
    content = result(out)
    rows = content["rows"]
    assert [(r["batch"], r["context"], r["mode"]) for r in rows] == [
        (2, context, mode) for context in (4, 9) for mode in ("plain", "k=1", "adaptive")
    ]
    for row in rows:
        assert row["lossless"] and row["alpha"] is None and row["verifier"] == "greedy"
        assert row["new_tokens"] == row["batch"] * row["repeats"] * 6, "every row to its budget"
        assert (row["mode"] == "plain") == (row["acceptance_rate"] is None and row["k"] == 0)
        assert row["tokens_per_second"] == pytest.approx(
            row["batch"] * row["row_tokens_per_second"], rel=1e-3
        )
    assert {row["first_difference"] for row in rows} == {None}
    table = costs.load(out / "costs.json")
    assert (table.batches, table.contexts, table.widths) == ((2,), (4, 15), (1, 2))
    assert len(content["crossovers"]) == 2
    printed = capsys.readouterr().out
    assert "k=1 at context 9: " in printed and "costs on cpu" in printed
    assert max(map(len, sweep_page.table(rows).splitlines())) <= 165


def table_of(bench: Bench, done: Any) -> costs.CostTable:
    """Costs by which drafting pays, as if they had been measured."""
    del done
    s, chat, drafter = bench._s, bench._chat, bench._drafter(bench._s.ks[-1])
    origin = costs.origin_of(chat.target, chat.params, drafter, bench._params, chat.dtype, "rule")
    widths = (1, 1 + s.ks[-1])
    shape = len(s.batches), 2, 2
    return costs.CostTable(
        origin, s.batches, (2, 99), widths, (0, s.ks[-1]), np.ones(shape), np.zeros(shape[::2])
    )


def test_random_weights_of_a_shape(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All drafts are accepted."""
    monkeypatch.setitem(shapes.SHAPES, "tiny", dataclasses.replace(TINY, num_layers=1))
    monkeypatch.setattr(sweep_bench.Bench, "calibrate", table_of)
    config = changed(
        random_weights="tiny", synthetic_alpha=(1.0,), batches=(1,), contexts=(5,), ks=(1,),
        repeats=1, min_prompts=1, max_new_tokens=7,
    )  # fmt: skip
    assert batch_sweep.run(config, tmp_path / "out") == []
    content = result(tmp_path / "out")
    rows = {row["mode"]: row for row in content["rows"]}
    assert set(rows) == {"plain", "k=1", "adaptive"}
    for mode, row in rows.items():
        assert row["alpha"] == 1 and row["lossless"] == (mode == "plain")
        assert row["verifier"] == ("greedy" if mode == "plain" else "synthetic 1")
        passes = 7 if mode == "plain" else 4
        assert row["tokens_per_pass"] == pytest.approx(7 / passes, abs=1e-4)
    assert rows["k=1"]["acceptance_rate"] == rows["adaptive"]["acceptance_rate"] == 1
    remarks = " ".join(content["remarks"])
    assert "lossless=False" in remarks and "random numbers of the shape tiny." in remarks


def bench_of(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Bench:
    """A bench of random models; nothing is compiled for it."""
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    settings = batch_sweep.read(changed(random_weights="tiny", **changes))
    chat = random_models.target("tiny", TINY, jnp.float32, 0)
    texts = [[1, 2, 3], [4, 5, 6, 7, 8, 9]]
    return Bench(settings, chat, random_models.head(TINY, jnp.float32, 0), texts)


def test_modes_and_their_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(monkeypatch, temperature=1.0)
    table = table_of(bench, None)
    for alpha, rule in ((None, "block"), (0.5, "synthetic 0.5")):
        modes = bench._drafting(table, 2, alpha)
        assert [(mode.name, mode.k) for mode in modes] == [("k=1", 1), ("k=2", 2), ("adaptive", 2)]
        for mode in modes:
            assert mode.verifier.name == rule and not mode.verifier.greedy
            assert mode.arguments(None)["sampling"].temperature == 1
    assert bench._s.synthetic_alpha == batch_sweep.RANDOM_ALPHAS, "nobody said how good drafts are"
    # At two batch sizes: a calibration, ten compilations, two contexts, three rates, four modes.
    assert bench.total == 2 * (1 + 10) + (2 + 2) * 2 * 3 * 4


def test_random_models_have_the_real_ones_shapes() -> None:
    chat = random_models.target("tiny", TINY, jnp.bfloat16, 0)
    assert chat.dtype == jnp.bfloat16
    leaves = jax.tree_util.tree_leaves_with_path(chat.params)
    assert sum(x.size for path, x in leaves if "panels" not in str(path)) == TINY.num_parameters
    one, other = (random_models.head(TINY, jnp.bfloat16, seed) for seed in (0, 1))
    assert one.config.draft_vocab_size == 32 and max(one.config.layers) <= TINY.num_layers
    assert not np.array_equal(one.weights["qkv"], other.weights["qkv"])


def test_a_program_compiled_meanwhile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(monkeypatch)
    monkeypatch.setattr(bench, "_warm_up", lambda mode, batch: float(jnp.sum(jnp.ones([71]))))
    monkeypatch.setattr(bench, "_drafting", lambda *arguments: [])
    monkeypatch.setattr(bench, "_measure", lambda *arguments: None)
    bench.run(table_of(bench, None))
    assert bench.recompiled == []
    monkeypatch.setattr(bench, "_measure", lambda *arguments: jnp.cos(jnp.ones([72])))
    bench.run(table_of(bench, None))
    assert "jit(cos)" in bench.recompiled


def test_prompts_end_with_their_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(monkeypatch)
    first, second = bench.prompts(2, 5, 0)
    assert sorted([first, second]) == [[5, 6, 7, 8, 9], [8, 9, 1, 2, 3]]
    assert bench.prompts(1, 5, 1) == [second], "the next repeat goes on where the last one ended"
    assert bench.prompts(2, 5, 1) == [first, second]
    assert bench.prompts(1, 12, 0)[0][-5:] == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ks": ()}, "config.ks is empty; give at least one"),
        ({"ks": (0, 1)}, "config.ks=0; it must be an integer of at least 1"),
        ({"batches": (4, 2)}, r"config.batches=\(4, 2\); they must ascend, each given once"),
        ({"batches": (2, 2)}, r"config.batches=\(2, 2\); they must ascend, each given once"),
        ({"contexts": (1,)}, "config.contexts=1; it must be an integer of at least 2"),
        ({"contexts": (64, 2000)}, "needs up to 2008 tokens .* takes 1024; lower it"),
        ({"synthetic_alpha": (1.5,)}, "config.synthetic_alpha=1.5; it must be a number from 0 to"),
        ({"max_new_tokens": 0}, "config.max_new_tokens=0; it must be"),
        ({"min_prompts": 0}, "config.min_prompts=0; it must be"),
        ({"temperature": -1.0}, "config.temperature=-1.0; 0 .greedy. or more"),
        ({"verifier": "greedy"}, "config.verifier='greedy'; choose from match"),
        ({"dtype": "int8"}, "config.dtype='int8'; choose from float32"),
        ({"random_weights": "gpt"}, "config.random_weights: there is no shape 'gpt'; choose from"),
        ({"head": ""}, "config.head is empty: give the folder of a head, or acceptance rates"),
        ({"target": ""}, "config.target is empty; a folder, a hub id or 'smollm2'"),
        ({"prompts": "/no/such.jsonl"}, "can't read the prompt file '/no/such.jsonl'"),
        ({"batches": (2**20,)}, "this needs .* but the device has"),
    ],
)
def test_settings_that_cannot_be_used(
    folder: pathlib.Path, head: pathlib.Path, change: dict[str, Any], words: str,
    tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    config = changed(**{"target": str(folder), "head": str(head)} | change)
    with pytest.raises(ValueError, match=words):
        batch_sweep.run(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rates_on_the_command_line() -> None:
    assert batch_sweep.numbers(["0.5", "1"]) == (0.5, 1.0)
    with pytest.raises(ValueError, match=r"--synthetic_alpha holds 'x'; give numbers from 0 to 1"):
        batch_sweep.numbers(["0.5", "x"])


def test_a_wrong_flag_is_one_sentence_and_exit_code_2(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "eval.batch_sweep", "--random_weights=gpt"]
    command += ["--config=configs/batch_sweep_smollm2.py", f"--workdir={tmp_path / 'out'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "there is no shape 'gpt'" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_config_is_valid_and_locked() -> None:
    made = batch_sweep_smollm2.get_config()
    assert made.is_locked
    assert batch_sweep.read(made).repeats_of(1) == 8
    assert batch_sweep.read(made).repeats_of(32) == 5
