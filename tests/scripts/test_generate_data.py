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
from safetensors.numpy import load_file, save_file

import specjax
from eval import chat as chats
from scripts import conversations, data_settings, generate_data, journal
from specjax import device
from tests.eval import tiny
from train import chat_mask, data

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "generate_data_smollm2.py"
SMALL = {
    "prompts": "",
    "responses": "",
    "count": 0,
    "temperatures": (0.0, 0.8),
    "top_k": None,
    "top_p": None,
    "min_p": None,
    "max_new_tokens": 24,
    "max_length": 256,
    "batch": 3,
    "rounds": 8,
    "shard_tokens": 300,
    "seed": 0,
    "dtype": "",
    "smoke": False,
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


def answers_of(found: data.Documents) -> list[list[int]]:
    """The supervised tokens of each document."""
    parts = (document(found, number) for number in range(len(found.lengths)))
    return [
        [token for token, one in zip(tokens, mask, strict=True) if one] for tokens, mask in parts
    ]


def load_nothing(*_):
    raise AssertionError("the model is loaded")


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
    assert "9 of 9 answers" in err and "tokens/s" in err and "left" in err

    with pytest.raises(ValueError, match=r"another seed \(0, not 1\): take another --workdir"):
        make(folder, tmp_path / "out", prompts=prompts, seed=1)
    other = write(tmp_path / "q.jsonl", {"prompt": "x"})
    with pytest.raises(ValueError, match="of a run with another list of prompts"):
        make(folder, tmp_path / "out", prompts=other)


def test_nothing_is_left_to_do_not_even_loading_the_model(folder, tmp_path, monkeypatch):
    """Also where turns were left out: a first one, and one that follows an answer."""
    talks = [*PROMPTS[:2], {"prompt": "too long " * 30}, {"turns": ["one", "too long " * 30, "x"]}]
    prompts = write(tmp_path / "p.jsonl", *talks)
    found = make(folder, tmp_path / "out", prompts=prompts)
    assert found.manifest["counts"]["answers"] == 3
    assert found.manifest["counts"]["turns left out"] == 3
    path = tmp_path / "out" / generate_data.JOURNAL
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [line for line in lines if len(line) == 2] == [[2, 0], [3, 1]]
    monkeypatch.setattr(chats, "load", load_nothing)
    again = make(folder, tmp_path / "out", prompts=prompts)
    assert again.manifest == found.manifest
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # as if killed
    with pytest.raises(AssertionError, match="is loaded"):
        make(folder, tmp_path / "out", prompts=prompts)


def test_prompts_that_are_all_too_long(folder, tmp_path):
    prompts = write(tmp_path / "p.jsonl", {"prompt": "too long " * 30})
    with pytest.raises(ValueError, match=r"config.max_length=256 has room for no prompt of the 1"):
        make(folder, tmp_path / "out", prompts=prompts)
    found = make(folder, tmp_path / "out", prompts=prompts, max_length=512)
    assert found.manifest["documents"] == 1, "in the same workdir, as nothing was answered"


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_filters_are_of_the_sampled_answers(folder, greedy, tmp_path, narrow):
    """One that leaves the most probable token alone makes them the greedy ones."""
    prompts = write(tmp_path / "p.jsonl", *PROMPTS)
    found = make(folder, tmp_path / "out", prompts=prompts, **narrow)
    assert answers_of(found) == greedy
    sampling = found.manifest["sampling"]
    assert {"top_k": None, "top_p": None, "min_p": None, **narrow}.items() <= sampling.items()
    (name,) = narrow
    with pytest.raises(ValueError, match=rf"of a run with another {name} \("):
        make(folder, tmp_path / "out", prompts=prompts)


@pytest.fixture(scope="module")
def greedy(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("greedy")
    prompts = write(place / "p.jsonl", *PROMPTS)
    return answers_of(make(folder, place / "out", prompts=prompts, temperatures=(0.0,)))


def test_answers_depend_on_what_ends_them_and_on_the_dtype(tmp_path, monkeypatch):
    folder = tiny.make_folder(tmp_path / "model")
    prompts = write(tmp_path / "p.jsonl", *PROMPTS[:2])
    make(folder, tmp_path / "out", prompts=prompts)
    monkeypatch.setattr(chats, "load", load_nothing)
    make(folder, tmp_path / "out", prompts=prompts, dtype="float32")  # as by default here
    with pytest.raises(ValueError, match=r"another dtype \('float32', not 'float16'\)"):
        make(folder, tmp_path / "out", prompts=prompts, dtype="float16")
    with monkeypatch.context() as patched:
        patched.setattr(device, "default_dtype", lambda: np.dtype("float16"))
        with pytest.raises(ValueError, match=r"another dtype \('float32', not 'float16'\)"):
            make(folder, tmp_path / "out", prompts=prompts)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7]}')
    with pytest.raises(ValueError, match=r"another eos_ids \(\[256\], not \[7, 256\]\)"):
        make(folder, tmp_path / "out", prompts=prompts)


def test_a_smoke_run_is_short(folder, tmp_path):
    prompts = write(tmp_path / "p.jsonl", *PROMPTS)
    settings = data_settings.Settings(
        **SMALL | {"target": str(folder), "prompts": prompts, "max_new_tokens": 99, "smoke": True}
    )
    place = generate_data.make(settings, tmp_path / "out")
    assert place == tmp_path / "out"
    answers = answers_of(data.read(place))
    assert len(answers) == 8 and max(map(len, answers)) == 24
    ran = json.loads((place / "results.json").read_text())["config"]
    assert (ran["count"], ran["max_new_tokens"], ran["batch"], ran["smoke"]) == (8, 24, 3, True)


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
    answers = answers_of(found)
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
    assert found.manifest["sampling"] == {
        "as found": True,
        "answers by temperature": {"0.0": 1, "0.8": 1, "unknown": 3},
    }
    assert len(make(folder, tmp_path / "out", responses=str(path), count=2).starts) == 3


def test_data_are_not_lost_to_another_source(folder, tmp_path):
    prompts = write(tmp_path / "p.jsonl", PROMPTS[1])
    good = write(tmp_path / "r.jsonl", {"prompt": "a", "response": "b"})
    bad = write(tmp_path / "s.jsonl", {"prompt": "a", "response": "b"}, {"prompt": "c"})
    ready = make(folder, tmp_path / "ready", responses=good)
    for name, message in ((bad, "line 2 has no answer"), ("typo.jsonl", "can't read 'typo")):
        with pytest.raises(ValueError, match=message):
            make(folder, tmp_path / "ready", responses=name)
        assert data.read(tmp_path / "ready").manifest == ready.manifest
    own = make(folder, tmp_path / "own", prompts=prompts)
    with pytest.raises(ValueError, match=r"own holds answers of the target's own .*another --work"):
        make(folder, tmp_path / "own", responses=good)
    assert data.read(tmp_path / "own").manifest == own.manifest
    (tmp_path / "own" / generate_data.JOURNAL).unlink()
    assert answers_of(make(folder, tmp_path / "own", responses=good)) == answers_of(ready)


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
        prompts=prompts, max_new_tokens=100, max_length=512, batch=2, temperatures=(0.8,),
        top_k=90, top_p=0.9, min_p=0.01,
    )  # fmt: skip
    command = [
        sys.executable, "-c", KILLED, f"--config={CONFIG}",
        f"--workdir={tmp_path / 'killed'}", f"--config.target={folder}", "--config.count=0",
        f"--config.prompts={prompts}", "--config.max_new_tokens=100", "--config.max_length=512",
        "--config.batch=2", "--config.rounds=8", "--config.shard_tokens=300",
        "--config.temperatures=(0.8,)", "--config.top_k=90", "--config.top_p=0.9",
        "--config.min_p=0.01",
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


def test_a_journal_without_answers_is_begun_anew(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert not journal.has_answers(path)
    with journal.Journal(path, {"seed": 0}) as first:
        first.leave_out(2, 1)
    with journal.Journal(path, {"seed": 0}) as same:
        assert same.left_out == {2: 1}
    assert not journal.has_answers(path)
    with journal.Journal(path, {"seed": 1}) as other:
        assert other.left_out == {}, "by other settings"
        other.add(journal.Answer(0, 0, [1], True))
        other.leave_out(4, 0)
    assert journal.has_answers(path)
    with pytest.raises(ValueError, match=r"another seed \(1, not 0\)"):
        journal.Journal(path, {"seed": 0})
    with journal.Journal(path, {"seed": 1}) as again:
        assert list(again.answers) == [(0, 0)] and again.left_out == {4: 0}


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


def test_the_form_that_says_most_is_read(tmp_path):
    """Data sets on the hub repeat a conversation's first turn as its "prompt"."""
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "user", "content": "c"},
    ]
    path = write(tmp_path / "m.jsonl", {"prompt": "a", "messages": said})
    [one] = conversations.read(path)
    assert one.turns == ("a", "c")
    [ready] = conversations.read_ready(path)
    assert ready.messages == said[:2]
    [ready] = conversations.read_ready(
        write(tmp_path / "r.jsonl", {"prompt": "a", "messages": said, "response": "d"})
    )
    assert ready.messages == [*said, {"role": "assistant", "content": "d"}]
    shared = [{"from": "human", "value": "a"}, {"from": "chatgpt", "value": "b"}]
    [ready] = conversations.read_ready(write(tmp_path / "s.jsonl", {"conversations": shared}))
    assert [m["role"] for m in ready.messages] == ["user", "assistant"]


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
        ({"max_length": 2048}, "config.max_length=2048, but .* takes 1024 tokens"),
        ({"dtype": "float99"}, "config.dtype='float99'; choose from float32, .* or ''"),
        ({"top_k": 0}, "config.top_k=0; it must be at least 1"),
        ({"prompts": "typo.jsonl"}, "can't read 'typo.jsonl'"),
        ({"speed": 3}, "config.speed: there is no such key"),
        ({"target": "/no/folder"}, "no folder '/no/folder'"),
    ],
)
def test_a_refused_setting_leaves_no_journal(folder, tmp_path, changes, message):
    prompts = write(tmp_path / "p.jsonl", PROMPTS[1])
    with pytest.raises(ValueError, match=message):
        make(folder, tmp_path / "out", **{"prompts": prompts, **changes})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("bad", "message"), [("vocabulary", "holds id"), ("weights", "NaN")])
def test_a_prompt_that_cannot_be_decoded_is_named(tmp_path, bad, message):
    """By its line, which isn't its number: the first one is empty."""
    folder = tiny.make_folder(tmp_path / "model", vocab_size=200 if bad == "vocabulary" else 257)
    if bad == "weights":
        weights = load_file(folder / "model.safetensors")
        save_file(
            {name: np.nan * one for name, one in weights.items()}, folder / "model.safetensors"
        )
    path = tmp_path / "p.jsonl"
    path.write_text('\n\n{"prompt": "abc"}\n')
    with pytest.raises(ValueError, match=rf"(^|in ){path}, line 3 ") as error:
        make(folder, tmp_path / "out", prompts=str(path))
    assert message in str(error.value) and "prompt 0" not in str(error.value)


def test_a_prompt_that_the_template_refuses_is_named_once(tmp_path):
    folder = tiny.make_folder(tmp_path / "model")
    template = folder / "chat_template.jinja"
    refuse = "{% if messages[0]['content'] == 'bad' %}{{ raise_exception('not so') }}{% endif %}"
    template.write_text(refuse + template.read_text())
    path = write(tmp_path / "prompt 0.jsonl", PROMPTS[1], {"prompt": "bad"})
    with pytest.raises(ValueError, match=rf"^{path}, line 2: the chat template refuses .* not so"):
        make(folder, tmp_path / "out", prompts=path)


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
