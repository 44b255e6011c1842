import subprocess
import sys

import pytest

from scripts import generate
from tests.eval import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.make_folder(tmp_path_factory.mktemp("model"))


def answer(folder, capsys, **arguments):
    text = generate.run("abcabcabc", target=str(folder), max_new_tokens=20, **arguments)
    out, err = capsys.readouterr()
    assert out == text + "\n"  # what was streamed is the answer
    return text, err


def test_the_drafter_changes_the_passes_and_not_the_answer(folder, capsys):
    plain, err = answer(folder, capsys, drafter="none")
    assert "20 tokens in 20 target passes: 1.00 tokens per pass" in err
    assert "tokens per second" in err and "first token" in err
    assert answer(folder, capsys, drafter="ngram")[0] == plain
    copy, err = answer(folder, capsys, drafter=str(folder), k=3, times=True)
    assert copy == plain
    assert "20 tokens in 5 target passes: 4.00 tokens per pass" in err
    assert "model and tokenizer:" in err


def test_a_folder_may_hold_a_head_or_a_distilled_model(folder, tmp_path, capsys):
    plain, _ = answer(folder, capsys, drafter="none")
    for drafter, k in (
        (tiny.make_head(tmp_path / "head"), None),
        (tiny.make_medusa(tmp_path / "medusa"), 2),
    ):
        assert answer(folder, capsys, drafter=str(drafter), k=k)[0] == plain
    student = tiny.make_student(tmp_path / "student", folder)
    text, err = answer(folder, capsys, drafter=str(student), k=3)
    assert text == plain and "20 tokens in 5 target passes" in err


def test_a_seed_repeats_a_sampled_answer(folder, capsys):
    first = answer(folder, capsys, temperature=1.0, seed=1)[0]
    assert answer(folder, capsys, temperature=1.0, seed=1)[0] == first
    assert answer(folder, capsys, temperature=1.0, seed=2)[0] != first


def test_a_lossy_verifier_is_chosen_by_name_and_warned_of(folder, tmp_path, capsys):
    """A draft model whose law is the target's: block keeps all it drafts, typical what is likely."""
    student = tiny.make_student(tmp_path / "student", folder)
    arguments = {"drafter": str(student), "k": 3, "temperature": 3.0}
    default, quiet = answer(folder, capsys, **arguments)
    block, err = answer(folder, capsys, verifier="block", **arguments)
    assert block == default and "warning" not in quiet + err
    typical, err = answer(folder, capsys, verifier="typical", **arguments)
    assert typical != block
    assert err.count("warning: typical(epsilon=0.09, delta=0.3) is lossy: what it samples") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"verifier": "greedy"}, "--verifier=greedy; choose from match, .*, block, typical$"),
        ({"verifier": "typical"}, "--verifier=typical samples, and --temperature=0 takes the most"),
        ({"prompt": " "}, "--prompt is empty"),
        ({"k": -1}, "k=-1; it must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"drafter": "bogus"}, "--drafter=bogus: give ngram, none"),
        ({"prompt": "caf\udce9"}, r"--prompt='caf\\udce9' isn't UTF-8"),
        ({"seed": 10**20}, r"--seed=100000000000000000000; it must be 0 to 2\*\*32 - 1"),
        ({"max_new_tokens": 1023}, r"takes 1024 in all; give --max_new_tokens=\d+ at most, or a"),
        ({"prompt": "x" * 1024}, "takes 1024 in all; give a shorter prompt"),
    ],
)
def test_bad_values_are_named(folder, arguments, message):
    with pytest.raises(ValueError, match=message):
        generate.run(**{"prompt": "x", "target": str(folder), **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--prompt is missing"),
        (
            ["--prompt=a", "--verifier=best", "--temperature=1"],
            "--verifier=best; choose from match",
        ),
        (["--prompt=a", "b"], "unexpected argument 'b'"),
        (["--prompt=a", "--size=3"], "Unknown command line flag 'size'"),
        (["--prompt=a", "--target=/no/such/folder"], "no folder '/no/such/folder'"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_exit_code_2(arguments, message):
    command = [sys.executable, "-m", "scripts.generate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
