"""Data from prompts, from ready answers, and through a kill: the same shards each time."""

import gzip
import json
import pathlib
import signal
import subprocess
import sys
import types

import numpy as np
import pytest

import specjax
from eval import chat as chats
from scripts import conversations, generate_data, journal
from tests.eval import tiny
from train import chat_mask, data

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "generate_data_smollm2.py"
SMALL = {
    "prompts": "",
    "responses": "",
    "count": 0,
    "temperatures": (0.0, 0.8),
    "max_new_tokens": 24,
    "max_length": 256,
    "batch": 3,
    "rounds": 8,
    "shard_tokens": 300,
    "seed": 0,
    "dtype": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.make_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def chat(folder):
    return chats.load(str(folder))


def write(path: pathlib.Path, *records) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def make(folder, workdir, **changes):
    generate_data.run({**SMALL, "target": str(folder), **changes}, workdir)
    return data.read(workdir)


def document(found: data.Documents, number: int) -> tuple[list[int], list[bool]]:
    place = slice(found.starts[number], found.starts[number + 1])
    return found.tokens[place].tolist(), found.mask[place].tolist()


PROMPTS = [{"prompt": f"{'abc' * (n % 4)} {n}?"} for n in range(9)]


def test_the_targets_own_answers(folder, chat, tmp_path, capsys):
    prompts = write(tmp_path / "p.jsonl", *PROMPTS, {"prompt": "too long " * 30})
    found = make(folder, tmp_path / "out", prompts=prompts)
    assert found.manifest["documents"] == 9
    assert found.manifest["counts"]["turns left out"] == 1
    ends = 0
    for number, fields in enumerate(PROMPTS):
        tokens, mask = document(found, number)
        prompt = chat.encode([fields["prompt"]])
        assert tokens[: len(prompt)] == prompt
        assert mask == [False] * len(prompt) + [True] * (len(tokens) - len(prompt))
        answer = tokens[len(prompt) :]
        ends += answer[-1] in chat.eos_ids
        assert len(answer) == 24 or answer[-1] in chat.eos_ids
        if number % 2 == 0:  # greedy
            alone = specjax.sample(
                chat.target, chat.params, [prompt], max_new_tokens=24, max_length=256,
                eos_ids=chat.eos_ids,
            )  # fmt: skip
            assert alone.tokens[0, : len(answer)].tolist() == answer
            assert alone.lengths[0] == len(answer)
    assert found.manifest["counts"].get("answers ended by the target", 0) == ends
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["group"] for row in written["rows"]] == ["0.0", "0.8", "all"]
    assert [row["answers"] for row in written["rows"]] == [5, 4, 9]
    assert all(row["tokens_per_second"] > 0 for row in written["rows"])
    assert written["rows"][-1]["answer_tokens"] == found.mask.sum()
    out, err = capsys.readouterr()
    assert "9 documents" in out and "1 turns left out" in out
    assert "9 of 10 answers" in err and "tokens/s" in err and "left" in err

    # Again: nothing is left to do, not even loading the model.
    (folder / "model.safetensors").rename(folder / "model.hidden")
    (folder / "model.hidden").rename(folder / "model.safetensors")
    before = found.manifest["shards"]
    again = make(folder, tmp_path / "out", prompts=prompts)
    assert again.manifest["shards"] == before
    with pytest.raises(ValueError, match=r"another seed \(0, not 1\): take another --workdir"):
        make(folder, tmp_path / "out", prompts=prompts, seed=1)
    other = write(tmp_path / "q.jsonl", {"prompt": "x"})
    with pytest.raises(ValueError, match="of a run with another list of prompts"):
        make(folder, tmp_path / "out", prompts=other)


def test_every_turn_is_answered(folder, chat, tmp_path):
    talks = [
        {"turns": ["one", "two", "three"]},
        {"prompt": "single"},
        {"messages": [{"role": "system", "content": "sys"}, {"role": "user", "content": "u"},
                      {"role": "assistant", "content": "not the target's"},
                      {"role": "user", "content": "v"}]},
        {"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]},
    ]  # fmt: skip
    found = make(
        folder, tmp_path / "out", prompts=write(tmp_path / "p.jsonl", *talks), temperatures=(0.0,)
    )
    assert found.manifest["counts"]["answers"] == 7
    assert "not the target's" not in chat.decode(found.tokens)
    tokens, mask = document(found, 0)
    # The conversation is one document whose spans are what the target says at those places.
    edges = np.flatnonzero(np.diff([0, *mask, 0])).reshape(-1, 2)
    assert len(edges) == 3 and found.manifest["documents"] == 4
    for begin, end in edges:
        out = specjax.sample(
            chat.target, chat.params, [tokens[:begin]], max_new_tokens=24, max_length=256,
            eos_ids=chat.eos_ids,
        )  # fmt: skip
        assert out.tokens[0, : int(out.lengths[0])].tolist() == tokens[begin:end]
    system, _ = document(found, 2)
    assert chat.tokenizer.decode(system).startswith("system: sys" + tiny.END + "user: u")


def test_ready_answers_are_tokenised_and_no_more(folder, chat, tmp_path):
    end = chat.eos_ids[0]
    records = [
        {"prompt": "a", "response": "yes", "temperature": 0.0, "finish": "stop", "id": 7},
        {"prompt": "b", "response": "cut \ufffd", "temperature": 0.8, "finish": "length"},
        {"prompt": "c", "response": "no temperature"},
        {"messages": [{"role": "user", "content": "d"}, {"role": "assistant", "content": "e"},
                      {"role": "user", "content": "f"}, {"role": "assistant", "content": "g"}]},
    ]  # fmt: skip
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    found = make(folder, tmp_path / "out", responses=str(path))
    answers = []
    for number in range(4):
        tokens, mask = document(found, number)
        answers.append([token for token, one in zip(tokens, mask, strict=True) if one])
    encode = lambda text: chat.tokenizer(text)["input_ids"]  # noqa: E731
    assert answers[0] == [*encode("yes"), end]
    assert answers[1] == encode("cut "), "no end of turn, no half character"
    assert answers[2] == [*encode("no temperature"), end]
    assert answers[3] == [*encode("e"), end, *encode("g"), end]
    assert document(found, 0)[0][:-4] == chat.encode(["a"])
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [(row["group"], row["answers"]) for row in rows] == [
        ("0.0", 1), ("0.8", 1), ("unknown", 3), ("all", 5)
    ]  # fmt: skip
    assert len(make(folder, tmp_path / "out", responses=str(path), count=2).starts) == 3


def test_a_template_that_strips_thinking(folder, tmp_path, monkeypatch):
    """Each answer is in the sample that the target saw when it wrote it."""
    template = (folder / "chat_template.jinja").read_text()
    shorter = template.replace(
        "{{ message['content'] }}",
        "{{ message['content'] if loop.last or message['role'] == 'user' else 'stripped' }}",
    )
    load = chats.load_tokenizer

    def patched(*arguments):
        tokenizer = load(*arguments)
        tokenizer.chat_template = shorter
        return tokenizer

    monkeypatch.setattr(chats, "load_tokenizer", patched)
    prompts = write(tmp_path / "p.jsonl", {"turns": ["one", "two"]})
    found = make(folder, tmp_path / "out", prompts=prompts)
    assert found.manifest["documents"] == 2 and found.manifest["counts"]["conversations"] == 1
    assert found.conversations.tolist() == [0, 0]
    tokenizer = patched("x", folder)
    second = tokenizer.decode(document(found, 1)[0])
    assert second.startswith("user: one<|end|>assistant: stripped<|end|>user: two")


# --- a kill ---

# The command, which kills itself, without a warning, when six answers are in the journal.
KILLED = """
import os, signal
from eval import results
from scripts import generate_data, journal

add, answers = journal.Journal.add, []

def add_and_die(self, answer):
    add(self, answer)
    answers.append(answer)
    if len(answers) == 6:
        os.kill(os.getpid(), signal.SIGKILL)

journal.Journal.add = add_and_die
results.main(generate_data.run)
"""


def test_a_killed_run_goes_on_where_it_was(folder, tmp_path):
    prompts = write(tmp_path / "p.jsonl", *({"prompt": f"{n} or more?"} for n in range(40)))
    # Sampled, so that noise which depended on the restart would show.
    changes = dict(
        prompts=prompts, max_new_tokens=100, max_length=512, batch=2, temperatures=(0.8,)
    )
    command = [
        sys.executable, "-c", KILLED, f"--config={CONFIG}",
        f"--workdir={tmp_path / 'killed'}", f"--config.target={folder}", "--config.count=0",
        f"--config.prompts={prompts}", "--config.max_new_tokens=100", "--config.max_length=512",
        "--config.batch=2", "--config.rounds=8", "--config.shard_tokens=300",
        "--config.temperatures=(0.8,)",
    ]  # fmt: skip
    path = tmp_path / "killed" / generate_data.JOURNAL
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = path.read_bytes()
    assert before.count(b"\n") == 1 + 6, "it was stopped on the way"
    with pytest.raises(ValueError, match="isn't complete"):
        data.read(tmp_path / "killed")
    path.write_bytes(before[:-9])  # as a kill in the middle of a line would leave it

    whole = make(folder, tmp_path / "whole", **changes)
    again = make(folder, tmp_path / "killed", **changes)
    assert again.manifest == whole.manifest
    assert np.array_equal(again.tokens, whole.tokens) and np.array_equal(again.mask, whole.mask)
    after = path.read_bytes()
    kept = before[: before[:-1].rfind(b"\n") + 1]
    assert after.startswith(kept), "what was done is not done again"
    places = [tuple(json.loads(line)[:2]) for line in after.splitlines()[1:]]
    assert sorted(places) == [(number, 0) for number in range(40)]


def test_a_journal_lets_one_run_write(tmp_path):
    path = tmp_path / "j" / "journal.jsonl"
    with journal.Journal(path, {"seed": 0, "temperatures": (0.0, 0.8)}) as first:
        first.add(journal.Answer(3, 1, [5, 6], True))
        with pytest.raises(RuntimeError, match="another run is writing"):
            journal.Journal(path, {"seed": 0})
    with journal.Journal(path, {"seed": 0, "temperatures": (0.0, 0.8)}) as again:
        assert again.answers == {(3, 1): journal.Answer(3, 1, [5, 6], True)}
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with pytest.raises(ValueError, match=r"is damaged .*delete it"):
        journal.Journal(path, {"seed": 0, "temperatures": (0.0, 0.8)})
    path.write_bytes(b'{"seed"')  # killed within the first line
    with journal.Journal(path, {"seed": 1}) as fresh:
        assert fresh.answers == {}


# --- bad input ---


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is '\\[1\\]'; it must be like"),
        ("{}", 'line 2 has only no keys; it needs "prompt"'),
        ('{"text": "x"}', "line 2 has only 'text'"),
        ('{"prompt": " "}', "line 2: \"prompt\" holds ' '; it must be a text"),
        ('{"turns": []}', 'line 2: "turns" is'),
        ('{"turns": ["a", 3]}', 'line 2: "turns" holds 3'),
        ('{"messages": ["a"]}', "line 2 holds the message 'a'"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "line 2: \"role\" is 'tool'"),
        ('{"messages": [{"role": "user"}]}', 'line 2: "content" holds None'),
        ('{"messages": [{"role": "system", "content": "x"}]}', "no message of the user"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        list(conversations.read(str(path)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "a"}, 'line 1 has no answer; it needs a "response"'),
        ({"prompt": "a", "response": 3}, '"response" holds 3'),
        ({"prompt": "a", "response": "b", "temperature": -1}, '"temperature" is -1'),
        ({"prompt": "a", "response": "b", "finish": "eos"}, "\"finish\" is 'eos'"),
    ],
)
def test_a_bad_ready_answer_is_named(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        list(conversations.read_ready(write(tmp_path / "r.jsonl", fields)))


def test_bad_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"can't read 'no.jsonl': No such file"):
        list(conversations.read("no.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"empty.jsonl is empty"):
        list(conversations.read(str(tmp_path / "empty.jsonl")))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 99)[:-12])
    with pytest.raises(ValueError, match=r"can't read .*cut.jsonl.gz"):
        list(conversations.read(str(tmp_path / "cut.jsonl.gz")))


def test_a_data_set_on_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it weren't installed
    with pytest.raises(ValueError, match="needs the datasets package: pip install datasets"):
        list(conversations.read("owner/name"))
    asked = []

    def load_dataset(name, split):
        asked.append((name, split))
        if name == "owner/gone":
            raise FileNotFoundError("no such data set\nand so on")
        return [{"prompt": "a"}, {"text": "b"}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    found = conversations.read("owner/name:test")
    assert next(found) == ("owner/name:test, record 0", None, ("a",))
    with pytest.raises(ValueError, match="record 1 has only 'text'"):
        next(found)
    with pytest.raises(
        ValueError, match=r"can't load .*'owner/gone' from the hub: no such data set$"
    ):
        list(conversations.read("owner/gone"))
    assert asked == [("owner/name", "test"), ("owner/gone", "train")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "config.count=0; the built-in prompts"),
        ({"prompts": "a.jsonl", "responses": "b.jsonl"}, "both given"),
        ({"count": 1, "temperatures": ()}, "config.temperatures is empty"),
        ({"count": 1, "temperatures": (-1.0,)}, "config.temperatures holds -1.0"),
        (
            {"count": 1, "max_length": 24},
            "config.max_length=24; it must be an integer of at least 25",
        ),
        ({"count": 1, "max_length": 2048}, "config.max_length=2048, but .* takes 1024 tokens"),
        ({"count": 1, "batch": 0}, "config.batch=0"),
        ({"count": 1, "speed": 3}, "config.speed: there is no such key"),
        ({"count": 1, "target": "/no/folder"}, "no folder '/no/folder'"),
    ],
)
def test_bad_settings_are_named(folder, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        make(folder, tmp_path, **changes)


def test_a_wrong_command_is_one_sentence_and_exit_code_2(tmp_path):
    command = [sys.executable, "-m", "scripts.generate_data", f"--config={CONFIG}",
               f"--workdir={tmp_path}", "--config.responses=missing.jsonl"]  # fmt: skip
    command.append(f"--config.target={tiny.make_folder(tmp_path / 'model')}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "can't read 'missing.jsonl': No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_prompts_are_what_a_chat_is_given(chat):
    messages = [{"role": "user", "content": "a"}]
    assert chat_mask.prompt(chat.tokenizer, messages) == chat.encode(["a"])
