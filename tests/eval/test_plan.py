"""Plans against numbers done by hand: from a table, from a datasheet, and what can't be planned."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from configs import plan_smollm2 as config
from eval import chat, plan, results
from specjax import costs, device, machine
from specjax.costs import CostTable, Origin
from specjax.models import drop_panels, loading
from tests.eval import tiny

ALPHAS = (0.2, 0.5, 0.9)
SHAPE = plan.shapes.config_of(plan.BUILTIN_SHAPE)
MODEL = costs.described("llama", loading.shapes(SHAPE, np.float32))
# Milliseconds of passes over 1, 2 and 4 tokens: in one row wide ones are cheap, in four they aren't.
TABLE = CostTable(
    Origin(device.kind(), "float32", jax.__version__, MODEL, "head"),
    batches=(1, 4),
    contexts=(100, 200),
    widths=(1, 2, 4),
    drafts=(0, 1, 3),
    target_s=np.array([[[10, 12, 20]] * 2, [[10, 20, 40]] * 2]) / 1e3,
    draft_s=np.array([[0.5, 1, 3], [0.5, 1, 3]]) / 1e3,
)


def changed(**changes: Any) -> dict[str, Any]:
    return dict(config.get_config().items()) | changes


def from_table(folder: pathlib.Path, table: CostTable = TABLE, **changes: Any) -> dict[str, Any]:
    file = folder / "table.json"
    table.save(file)
    own = {"table": str(file), "batches": (1, 4), "contexts": (150,), "alphas": ALPHAS, "max_k": 3}
    return changed(**own | changes)


def read(folder: pathlib.Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    content = json.loads((folder / "results.json").read_text())
    return content["rows"], content["summary"]


def test_a_table_by_hand(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    """A round costs 1.3 passes with one draft token, 2.2 with two and 2.3 with three."""
    assert plan.run(from_table(tmp_path), tmp_path) == []
    rows, (one, four) = read(tmp_path)
    assert [(row["batch"], row["alpha"]) for row in rows] == [
        (batch, alpha) for batch in (1, 4) for alpha in ALPHAS
    ]
    assert [row["best_k"] for row in rows] == [1, 1, 3, 1, 1, 1]
    gains = [1.2 / 1.3, 1.5 / 1.3, (1 + 0.9 + 0.81 + 0.729) / 2.3, 1.2 / 2.1, 1.5 / 2.1, 1.9 / 2.1]
    assert [row["speedup"] for row in rows] == pytest.approx(gains)
    assert [rows[2][name] for name in ("c", "pass_cost")] == pytest.approx([0.1, 2.0])
    assert one["pass_ms"] == pytest.approx(10)
    names = [f"pass_cost_{tokens}" for tokens in (2, 3, 4)] + [f"draft_cost_{k}" for k in (1, 2, 3)]
    assert [one[name] for name in names] == pytest.approx([1.2, 2, 2, 0.1, 0.2, 0.3])
    assert (one["break_even_alpha"], four["break_even_alpha"]) == (pytest.approx(0.3), None)
    memory = device.memory_bytes()
    assert memory is not None and one["memory_mb"] == pytest.approx(memory / 1e6)
    assert one["verdict"] == "pays from alpha 0.30 on; at alpha 0.5 k=1 gives 1.15x"
    assert four["verdict"] == (
        "does not pay, not even if every draft token is right: a pass over 2 tokens costs 2.00 of "
        "one, and drafting 1 costs 0.10"
    )
    out = capsys.readouterr().out
    assert "batch 1, context 150: pays from alpha 0.30 on" in out
    assert "1.15x k=1" in out
    assert "never" in out
    assert "the best case" not in out, "it was measured"
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert not list(tmp_path.glob(".*")), "nothing half-written"


def test_drafts_that_do_not_cost_by_the_step(tmp_path: pathlib.Path) -> None:
    """A draft of one token costs 0.4 of a pass, one of three 0.5."""
    dear = dataclasses.replace(TABLE, draft_s=np.array([[0, 4, 5], [0, 4, 5]]) / 1e3)
    plan.run(from_table(tmp_path, dear, batches=(1,), draft_cost=None), tmp_path)
    rows, (summary,) = read(tmp_path)
    assert rows[2]["best_k"] == 3
    assert rows[2]["speedup"] == pytest.approx(3.439 / 2.5)
    assert rows[2]["c"] == pytest.approx(0.5 / 3)
    assert summary["break_even_alpha"] == pytest.approx(0.6), "with one: 0.4 + 1.2 - 1"


def test_a_draft_cost_that_is_given_replaces_the_table_s(tmp_path: pathlib.Path) -> None:
    plan.run(from_table(tmp_path, draft_cost=0.0, batches=(1,)), tmp_path)
    _, (summary,) = read(tmp_path)
    assert summary["break_even_alpha"] == pytest.approx(0.2)
    assert summary["draft_cost_3"] == 0


def test_a_table_without_a_drafter_serves_a_given_draft_cost(tmp_path: pathlib.Path) -> None:
    alone = dataclasses.replace(TABLE, drafts=(0,), draft_s=np.zeros([2, 1]))
    plan.run(from_table(tmp_path, alone, draft_cost=0.2, batches=(1,)), tmp_path)
    _, (summary,) = read(tmp_path)
    assert summary["break_even_alpha"] == pytest.approx(0.4)


def test_a_rate_above_all_that_were_asked_for(tmp_path: pathlib.Path) -> None:
    plan.run(from_table(tmp_path, draft_cost=0.75, batches=(1,)), tmp_path)
    _, (summary,) = read(tmp_path)
    assert summary["verdict"] == "pays only from alpha 0.95 on, above the 0.9 asked for"


def test_the_rate_that_is_quoted_is_one_that_pays(tmp_path: pathlib.Path) -> None:
    plan.run(from_table(tmp_path, draft_cost=0.5, batches=(1,)), tmp_path)
    _, (summary,) = read(tmp_path)
    assert summary["verdict"] == "pays from alpha 0.70 on; at alpha 0.9 k=1 gives 1.12x"


LLAMA = {"target": "llama3-8b", "device": "h100", "draft_params": 375.0}


@pytest.mark.parametrize(
    ("target", "vocab", "millions"), [("smollm2", 8192, 8.810), ("llama3-8b", 32_000, 374.342)]
)
def test_the_drafter_is_an_eagle_head_unless_its_size_is_given(
    target: str, vocab: int, millions: float
) -> None:
    """Of Llama: q k v 8192 x 6144, out 4096 x 4096, 3 of 4096 x 14336, and 4096 x 32000."""
    head = results.read(plan.Settings, changed(target=target, draft_vocab=vocab))
    model = plan.shapes.config_of(plan.BUILTIN_SHAPE if target == "smollm2" else target)
    weights = plan.plan_costs.draft_weights(head, model)
    assert weights / 1e6 == pytest.approx(millions, abs=1e-3)
    lookup = dataclasses.replace(head, draft_params=0.0)
    assert plan.plan_costs.draft_weights(lookup, model) == 0


def test_a_datasheet_by_hand(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    assert plan.run(changed(**LLAMA, batches=(1, 64, 512)), tmp_path) == []
    rows, (one, many, most) = read(tmp_path)
    assert len(rows) == 3 * 6
    # 375M and a layer's cache of 1024 slots, to 7505M, 32 layers' of 1025, and 128256 logits.
    read_by_step = 2 * 375e6 + 4096 * 1024
    read_by_pass = 2 * 7_504_924_672 + 131_072 * 1025 + 8 * 128_256
    c = read_by_step / read_by_pass
    assert rows[0]["c"] == pytest.approx(c)
    assert one["pass_ms"] == pytest.approx(1e3 * read_by_pass / 3.35e12 / 0.7)
    added = (131_072 + 8 * 128_256) / read_by_pass  # by a token: a slot and its logits
    assert one["pass_cost_2"] == pytest.approx(1 + added)
    assert one["break_even_alpha"] == pytest.approx(c + added, abs=1e-6)
    alphas = [row for row in rows if row["alpha"] == 0.6]
    assert alphas[0]["speedup"] > alphas[1]["speedup"] > alphas[2]["speedup"] > 1
    assert one["weights_mb"] == pytest.approx(16_060.5, abs=0.1)
    assert many["kv_mb"] == pytest.approx(64 * 1033 * 131_072 / 1e6)
    assert one["drafter_mb"] == pytest.approx(750 + 1033 * 4096 / 1e6)
    assert many["logits_mb"] == pytest.approx(12 * 64 * 9 * 128_256 / 1e6)
    assert (one["memory_mb"], one["fits"], most["fits"]) == (80_000, True, False)
    assert "and does not fit; " in most["verdict"]
    assert "roofline of h100: 3350 GB/s, 989 TFLOP/s; 70%" in capsys.readouterr().out


def test_many_rows_of_short_contexts_pay_by_the_token(tmp_path: pathlib.Path) -> None:
    """Of 4096 rows even one token's products take longer than the weights: v goes with T."""
    plan.run(changed(**LLAMA, batches=(1, 4096), contexts=(1,), draft_cost=0.0), tmp_path)
    _, (one, many) = read(tmp_path)
    assert one["pass_cost_4"] == pytest.approx(1, abs=1e-3)
    assert many["pass_cost_4"] == pytest.approx(4, abs=0.05)
    assert many["break_even_alpha"] > 0.95


def test_efficiency_is_in_milliseconds_alone(tmp_path: pathlib.Path) -> None:
    found = []
    for efficiency in (0.5, 1.0):
        plan.run(changed(**LLAMA, efficiency=efficiency), tmp_path)
        found.append(read(tmp_path))
    (half, (low, *_)), (whole, (high, *_)) = found
    assert low["pass_ms"] == pytest.approx(2 * high["pass_ms"])
    for ours, theirs in zip(half, whole, strict=True):
        assert ours["best_k"] == theirs["best_k"]
        assert ours["speedup"] == pytest.approx(theirs["speedup"])


def test_short_passes_wait_for_launches(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    plan.run(changed(device="h100"), tmp_path)
    assert "the best case, and leaves out launches" in capsys.readouterr().out
    plan.run(changed(**LLAMA), tmp_path)
    assert "the best case: calibrate" in capsys.readouterr().out


def test_a_folder_s_config_is_enough(tmp_path: pathlib.Path) -> None:
    content = {"model_type": "llama", "vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 2}
    content |= {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(content))
    plan.run(changed(target=str(tmp_path), device="l4", draft_params=0.0), tmp_path / "out")
    _, (summary, *_) = read(tmp_path / "out")
    assert summary["weights_mb"] == pytest.approx(2 * (1992 + 800) / 1e6)


def test_this_device_is_measured(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(dtype: Any) -> plan.datasheet.Device:
        asked.append(str(dtype))
        return plan.datasheet.Device("here", 20e9, 100e9, 8e9)

    monkeypatch.setattr(plan.datasheet, "measured", measured)
    plan.run(changed(dtype="float32"), tmp_path)
    _, (summary, *_) = read(tmp_path)
    assert asked == ["float32"]
    assert summary["pass_ms"] == pytest.approx(
        1e3 * (4 * 134_515_008 + 46_080 * 1025 + 8 * 49_152) / 20e9
    )
    assert summary["memory_mb"] == 8000


def test_the_command(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "eval.plan", "--config=configs/plan_smollm2.py"]
    command += [f"--workdir={tmp_path}", "--config.device=l4", "--config.target=qwen3-8b"]
    command += ["--config.draft_cost=0.05", "--config.contexts=(512, 4096)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pays from alpha 0.0") >= 2
    files = {file.name for file in tmp_path.iterdir()}
    assert files == {"results.json", "plan.png", "plan.md"}
    page = (tmp_path / "plan.md").read_text()
    assert (
        page.count("pays from alpha 0.0") >= 2 and "(plan.png)" in page and "calibrate on" in page
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "llama3"}, "config.target='llama3' is no folder or hub id; there is no shape"),
        ({"target": ""}, "config.target='' is no folder"),
        ({"device": "h1000"}, "no datasheet of 'h1000'; choose from h100"),
        ({"device": "h100", "dtype": "float32"}, "the arithmetic of datasheets is bfloat16's"),
        ({"dtype": "int8"}, "config.dtype='int8'; choose from float32"),
        ({"alphas": (0.5, 1.5)}, "config.alphas=1.5; it must be a number from 0 to 1"),
        ({"alphas": (float("nan"),)}, "config.alphas=nan"),
        ({"alphas": ()}, "at least one value"),
        ({"alphas": (0.5, 0.4)}, "they must ascend"),
        ({"batches": ()}, r"config.batches=\(\); it must be a tuple of at least one"),
        ({"batches": 4}, "config.batches=4; it must be a tuple"),
        ({"batches": (0, 1)}, "config.batches=0; it must be an integer of at least 1"),
        ({"batches": (1, 1)}, "each given once"),
        ({"contexts": ()}, "config.contexts"),
        ({"contexts": (-1,)}, "config.contexts=-1"),
        ({"max_k": 0}, "config.max_k=0"),
        ({"draft_vocab": 0}, "config.draft_vocab=0"),
        ({"draft_layers": -1}, "config.draft_layers=-1"),
        ({"draft_params": -1.0}, "config.draft_params=-1.0"),
        ({"draft_cost": -0.1}, "config.draft_cost=-0.1"),
        ({"draft_cost": float("nan")}, "config.draft_cost=nan"),
        ({"efficiency": 0.0}, "config.efficiency=0"),
        ({"efficiency": 1.5}, "config.efficiency=1.5"),
        ({"table": "nowhere.json"}, "nowhere.json is no cost table"),
        ({"alpha": 0.5}, "config.alpha: there is no such key"),
    ],
)
def test_settings_that_cannot_be_used(
    change: dict[str, Any], words: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match=words):
        plan.run(changed(**{"device": "h100"} | change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        ({}, {"max_k": 4}, "config.max_k=4, but the table .* ends at drafts of 3 tokens; lower it"),
        ({}, {"batches": (1, 8)}, r"was measured at \(1, 4\); calibrate with batches that enclose"),
        ({"batches": (2, 4)}, {"batches": (1,)}, r"config.batches=\(1,\), but the table"),
        ({}, {"contexts": (150, 300)}, "ends at 200 filled slots"),
        ({}, {"dtype": "bfloat16"}, "config.dtype='bfloat16', but the table .* of 'float32'"),
        ({}, {"device": "h1000"}, "no datasheet of 'h1000'"),
        ({"widths": (2, 3, 4)}, {}, "no cost of a pass over one token"),
        ({"target_s": np.zeros([2, 2, 3])}, {}, "no cost of a pass over one token"),
        ({"drafts": (0,), "draft_s": np.zeros([2, 1])}, {}, "measured without a drafter"),
    ],
)
def test_tables_that_cannot_be_used(
    table: dict[str, Any], change: dict[str, Any], words: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match=words):
        plan.run(
            from_table(tmp_path, dataclasses.replace(TABLE, **table), **change), tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    # Wide enough for panels.
    return tiny.make_folder(tmp_path_factory.mktemp("model"), hidden_size=64, intermediate_size=64)


@pytest.mark.parametrize("lacks_avx512", [True, False])
def test_a_table_of_another_processor_is_of_the_same_model(
    folder: pathlib.Path,
    lacks_avx512: bool,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as there:
        there.setattr(machine, "lacks_avx512", lambda: lacks_avx512)
        table = of_model(folder)
    assert plan.run(from_table(tmp_path, table, target=str(folder)), tmp_path) == []


def of_model(folder: pathlib.Path, dtype: str = "float32", panels: bool = True) -> CostTable:
    """A table as ``calibrate`` would leave it for the model in a folder."""
    loaded = chat.load(str(folder), dtype)
    params = loaded.params if panels else drop_panels(loaded.params)
    assert panels == (len(jax.tree.leaves(params)) > len(jax.tree.leaves(drop_panels(params))))
    origin = costs.origin_of(loaded.target, params, None, None, dtype, "greedy")
    return dataclasses.replace(TABLE, origin=origin)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("panels", [True, False])
def test_a_table_of_the_target_is_one_however_it_was_loaded(
    folder: pathlib.Path, dtype: str, panels: bool, tmp_path: pathlib.Path
) -> None:
    made = from_table(tmp_path, of_model(folder, dtype, panels), target=str(folder))
    assert plan.run(made, tmp_path) == []


def test_a_table_of_another_model_is_refused(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """For a device that is named too: what is looked up of it is its memory alone."""
    table = of_model(folder)
    for name in ("", "l4"):
        made = from_table(tmp_path, table, device=name)
        with pytest.raises(ValueError) as error:
            plan.run(made, tmp_path / "out")
        text = str(error.value)
        assert f"config.target='smollm2' is {MODEL}, but the table {tmp_path}" in text
        assert f"is of another model, {table.origin.model}; give the target that it was" in text
        assert not (tmp_path / "out").exists()
    deeper = tiny.make_folder(
        tmp_path / "deeper", hidden_size=64, intermediate_size=64, num_hidden_layers=3
    )
    with pytest.raises(ValueError, match=r"is of another model, llama \("):
        plan.run(from_table(tmp_path, table, target=str(deeper)), tmp_path / "out")


@pytest.mark.parametrize("changes", [{"device": "gpu: another"}, {"jax": "0.0.1"}])
def test_a_table_of_elsewhere_is_for_a_device_that_is_named(
    changes: dict[str, str], tmp_path: pathlib.Path
) -> None:
    table = dataclasses.replace(TABLE, origin=dataclasses.replace(TABLE.origin, **changes))
    [(what, theirs)] = changes.items()
    ours = {"device": device.kind(), "jax": jax.__version__}[what]
    words = f"is of another {what}: {theirs!r}, and this is {ours!r}; calibrate again, or say in"
    with pytest.raises(ValueError, match=re.escape(words)):
        plan.run(from_table(tmp_path, table), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert plan.run(from_table(tmp_path, table, device="l4"), tmp_path) == []
    _, (summary, *_) = read(tmp_path)
    assert summary["memory_mb"] == 24_000


def test_the_config_is_valid_and_locked() -> None:
    made = config.get_config()
    assert made.is_locked
    assert results.read(plan.Settings, made).max_k == 8
