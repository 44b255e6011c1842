"""The whole evaluation on a tiny model: what it writes, prints, checks and refuses."""

import json
import math
import subprocess
import sys

import jax.numpy as jnp
import pytest

from configs import speedup_smollm2
from eval import chat, checks, preflight, report, settings, speedup
from eval.measure import Cell, Trial
from eval.modes import Mode
from eval.prompts import Prompt
from eval.timing import Decoding
from specjax import verify
from tests.eval import tiny
from tests.eval.made_times import draft_s, make_times, pass_s
from tests.train.processes import Processes

COLUMNS = """mode drafter verifier category prompt temperature k batch tokens_per_second
tokens_per_pass acceptance_rate speedup predicted_speedup engine_overhead draft_cost ttft_ms
itl_p50_ms itl_p95_ms compile_s peak_mb first_difference lossless""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.make_folder(tmp_path_factory.mktemp("model"))


def make_config(folder, tmp_path, **changes):
    lines = [
        {"category": "copy", "turns": ["abcabcabcabcabc", "and now?"]},
        {"category": "story", "turns": ["once upon a time"]},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = speedup_smollm2.get_config()
    config.update(
        {
            "target": str(folder),
            "prompts": str(file),
            "max_new_tokens": 12,
            "k": 2,
            "draft": "",
            "sampled_modes": (),
        }
    )
    config.update({"repeats": 2, "turns": 2, "ngram": {"k": 4}})
    config.update({"modes": ("plain", "prompt_lookup", "draft_model"), **changes})
    return config


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """The folder of an EAGLE-3 head of random weights."""
    return tiny.make_head(tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def medusa(tmp_path_factory):
    """The folder of Medusa heads of random weights."""
    return tiny.make_medusa(tmp_path_factory.mktemp("medusa"))


@pytest.fixture(scope="module")
def corpus(folder, tmp_path_factory):
    """The folder of a corpus table."""
    return tiny.make_corpus(tmp_path_factory.mktemp("corpus"), folder)


@pytest.fixture(scope="module")
def finished(folder, head, medusa, corpus, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    config = make_config(folder, workdir)
    modes = (*config.modes, "eagle", "medusa", "corpus", "suffix", "first_of")
    config.corpus.folder = str(corpus)
    config.first_of.modes = ("suffix", "corpus", "eagle")
    config.update(
        {
            "modes": modes,
            "eagle": {"folder": str(head), "k": 3, "min_prob": 1e-9, "max_entropy": 0.0},
        }
    )
    config.update({"medusa": {"folder": str(medusa), "k": 2, "min_prob": 0.0, "max_entropy": 0.0}})
    with pytest.MonkeyPatch.context() as patches:
        make_times(patches)
        failures = speedup.run(config, workdir / "out")
    return failures, workdir / "out"


def test_all_checks_hold(finished):
    assert finished[0] == []


def test_the_results_are_whole_and_nothing_else_is_left(finished):
    assert sorted(p.name for p in finished[1].iterdir()) == ["results.json", "speedup.png"]
    results = json.loads((finished[1] / "results.json").read_text())
    assert {"command", "config", "device", "versions", "seed", "rows"} <= set(results)
    settings.read(results["config"])  # can be run again
    assert (finished[1] / "speedup.png").read_bytes().startswith(b"\x89PNG")


def test_the_rows_have_the_shared_columns_and_sane_values(finished):
    rows = json.loads((finished[1] / "results.json").read_text())["rows"]
    # Two prompts and a second turn, two categories and their sum; eight modes, two temperatures,
    # but the copy on the two turns of the first prompt alone, and greedy.
    assert len(rows) == (3 + 3) * 7 * 2 + (2 + 2)
    for row in rows:
        assert set(COLUMNS) <= set(row)
        assert all(not isinstance(value, dict | list) for value in row.values())
        assert row["tokens_per_second"] > 0 and row["tokens_per_pass"] >= 1 and row["lossless"]
        assert row["first_difference"] is None
        assert (row["mode"] == "plain") == (row["acceptance_rate"] is None and row["k"] == 0)
    whole = {(r["mode"], r["temperature"]): r for r in rows if r["category"] == "all"}
    assert whole["plain", 0]["speedup"] == whole["plain", 1]["speedup"] == 1
    assert whole["draft_model", 0]["is_copy"] and whole["draft_model", 0]["acceptance_rate"] == 1
    assert whole["draft_model", 0]["tokens_per_pass"] > 2
    for temperature in (0, 1):
        eagle = whole["eagle", temperature]
        assert (eagle["drafter"], eagle["label"]) == ("EAGLE-3", "EAGLE-3 k=3")
        assert eagle["drafted"] > 0
        assert eagle["draft_cost"] == pytest.approx(draft_s(3) / 3 / pass_s(1), abs=1e-4)
        heads = whole["medusa", temperature]
        assert (heads["drafter"], heads["label"]) == ("Medusa", "Medusa k=2")
        assert heads["drafted"] > 0
        assert heads["draft_cost"] == pytest.approx(draft_s(2) / 2 / pass_s(1), abs=1e-4)
        for name, label in (("corpus", "corpus k=4"), ("suffix", "suffix k=4")):
            looked = whole[name, temperature]
            assert looked["label"] == label and looked["drafted"] > 0
        in_turn = whole["first_of", temperature]
        assert in_turn["label"] == "suffix / corpus / EAGLE-3 k=4"
        assert in_turn["drafted"] > whole["suffix", temperature]["drafted"]
    assert ("draft_model", 1) not in whole


def test_the_tables_name_modes_and_categories(finished):
    rows = json.loads((finished[1] / "results.json").read_text())["rows"]
    text = report.tables(rows)
    for words in ("Greedy", "temperature 1", "EAGLE-3 k=3", "prompt lookup k=4", "target as draft k=2 (check)",
                  "copy", "story", "all"):  # fmt: skip
        assert words in text
    assert max(map(len, text.splitlines())) <= 130


def test_synthetic_acceptance_is_marked_everywhere(folder, tmp_path, monkeypatch, capsys):
    titles, printed = [], []
    write = speedup.results.write

    def note(*arguments, **more):
        printed.append(capsys.readouterr().out)
        write(*arguments, **more)

    monkeypatch.setattr(speedup.results, "write", note)
    draw = speedup.chart.write
    monkeypatch.setattr(speedup.chart, "write", lambda *what: titles.append(what[2]) or draw(*what))
    config = make_config(
        folder, tmp_path, synthetic_alpha=0.7, temperatures=(0.0,), turns=1, max_new_tokens=30,
        modes=("plain", "draft_model"), draft=str(folder), repeats=3,
    )  # fmt: skip
    assert speedup.run(config, tmp_path / "out") == []
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    for row in results["rows"]:
        assert row["lossless"] == (row["mode"] == "plain")
        assert row["verifier"] == ("greedy" if row["mode"] == "plain" else "synthetic 0.7")
    whole = next(r for r in results["rows"] if r["category"] == "all" and r["mode"] != "plain")
    assert abs(whole["acceptance_rate"] - 0.7) < 0.2
    assert "lossless=False" in " ".join(results["remarks"])
    assert whole["label"] == "draft model k=2, synthetic 0.7, NOT LOSSLESS"
    assert titles
    assert "NOT LOSSLESS" in printed[0], "the tables come before the files, which may fail"


def test_a_wrong_output_is_a_failure_and_a_near_tie_is_not(folder, monkeypatch):
    model = chat.load(str(folder))
    ids = model.encode(["hello"])

    def cell(mode, tokens):
        trial = Trial(0, Decoding(tokens, 1.0, 1.0, None, (1,)), {}, ())
        return Cell(Prompt("p", "c", ("hello",)), ids, mode, [trial], None)

    wrong = Mode("prompt_lookup", 0.0, verify.greedy)
    cells = [cell(Mode("plain", 0.0, verify.greedy), [5, 6, 7]), cell(wrong, [5, 9, 7])]
    row = {"mode": wrong.name, "temperature": 0.0, "category": "c", "prompt": "p",
           "first_difference": 1, "margin": None}  # fmt: skip
    [failure] = checks.differences(cells, [row], model)
    assert "differs from plain greedy decoding on 'p' at token 1" in failure
    assert row["margin"] == pytest.approx(checks.margin(model, [*ids, 5]))
    monkeypatch.setitem(checks.NEAR_TIE, "float32", math.inf)
    assert checks.differences(cells, [row], model) == []


def test_the_margin_is_that_of_a_full_pass(folder):
    model = chat.load(str(folder))
    ids = model.encode(["some words of some length"])
    cache = model.target.init_cache(1, len(ids), jnp.float32)
    logits, _, _ = model.target.apply(model.params, jnp.asarray([ids]), cache)
    second, first = sorted(logits[0, -1].tolist())[-2:]
    assert checks.margin(model, ids) == pytest.approx(first - second, abs=1e-4)


def test_preflight_needs_the_config_alone_and_refuses_what_does_not_fit(tmp_path):
    folder = tiny.make_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    read = settings.read(make_config(folder, tmp_path, draft=str(folder)))
    table = preflight.table(read, slots=2048, memory=2**30)
    for part in ("target weights", "target KV cache", "draft weights", "logits"):
        assert part in table
    with pytest.raises(ValueError, match=r"this needs 0.00 GiB, but the device has 0.00 GiB: take"):
        preflight.table(read, slots=2048, memory=1000)


def test_preflight_downloads_the_config_alone(folder, tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def download(repo, *, revision, allow_patterns):
        del revision
        asked.append((repo, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    read = settings.read(make_config(folder, tmp_path, target="own/er", draft="other/one"))
    preflight.table(read, slots=2048, memory=2**30)
    assert asked == [("own/er", ["config.json"]), ("other/one", ["config.json"])]


def test_a_distilled_draft_model_is_a_mode(folder, tmp_path):
    student = tiny.make_student(tmp_path / "student", folder)
    modes_used = ("plain", "draft_model")
    config = make_config(folder, tmp_path, modes=modes_used, draft=str(student), turns=1)
    config.temperatures = (0.0,)
    assert "draft weights" in preflight.table(settings.read(config), slots=2048, memory=2**30)
    assert speedup.run(config, tmp_path / "out") == []
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    row = next(r for r in rows if r["mode"] == "draft_model" and r["category"] == "all")
    assert row["label"] == "draft model k=2" and not row["is_copy"]
    assert row["acceptance_rate"] > 0.9
    other = tiny.make_folder(tmp_path / "other", hidden_size=16)
    config.target = str(other)
    with pytest.raises(ValueError, match=r"a target of width=32; this target's is 16"):
        speedup.run(config, tmp_path / "out2")


def test_a_head_that_cannot_be_used_is_named(folder, head, medusa, tmp_path):
    def run(head, target=folder, mode="eagle"):
        config = make_config(target, tmp_path, modes=("plain", mode))
        config[mode].folder = str(head)
        config.medusa.k = 4
        speedup.run(config, tmp_path / "out")

    with pytest.raises(ValueError, match=r"holds no head: .*config\.json is missing"):
        run(tmp_path)
    with pytest.raises(ValueError, match=r"give it as config\.medusa\.folder, and name the mode"):
        run(medusa)
    with pytest.raises(ValueError, match="k=4; it must be 1 to 3, the number of heads"):
        run(medusa, mode="medusa")
    other = tiny.make_folder(tmp_path / "other", hidden_size=16)
    for mode, folder in (("eagle", head), ("medusa", medusa)):
        with pytest.raises(ValueError, match="another model: it reads streams of width 32"):
            run(folder, other, mode)
    short = tiny.make_folder(tmp_path / "short", num_hidden_layers=1)
    with pytest.raises(ValueError, match="it reads layer 2, and the target has 1"):
        run(head, short)


def test_a_pass_far_above_its_floor_is_called_launch_bound():
    assert preflight.launch_bound(0.011, 0.010) is None
    assert "launch-bound: speculation can't be judged here" in preflight.launch_bound(0.004, 0.001)


def test_a_prompt_longer_than_the_context_is_named(folder, tmp_path):
    config = make_config(folder, tmp_path, max_new_tokens=1000)
    with pytest.raises(ValueError, match=r"prompt '1' needs up to .* takes 1024; remove it"):
        speedup.run(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """The command, imported once."""
    made = Processes(tmp_path_factory.mktemp("processes"), "eval.speedup")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.size=3"], "--config.size=3: the config has no such key"),
        (["--config.sed=3"], "did you mean seed?"),
        (["--config.k=-1"], "config.k=-1; it must be an integer of at least 1"),
        (["--config.k=five"], "--config.k=five"),
        (["--config.modes=plain,magic"], "config.modes holds 'magic'"),
        (["--prompts=/no/such/file.jsonl"], "can't read the prompt file '/no/such/file.jsonl'"),
        (["--config=/no/such/config.py"], "there is no such file"),
        (["stray"], "unexpected argument 'stray'"),
        (["--nope"], "Unknown command line flag 'nope'"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_exit_code_2(processes, tmp_path, arguments, message):
    flags = ["--config=configs/speedup_smollm2.py", f"--workdir={tmp_path / 'out'}", *arguments]
    [(code, said)] = processes.run((flags, {}))
    assert code == 2, said
    assert message in said and "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_the_command_itself(tmp_path):
    command = [sys.executable, "-m", "eval.speedup", "--config=configs/speedup_smollm2.py"]
    command += [f"--workdir={tmp_path / 'out'}", "--config.size=3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "the config has no such key" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
