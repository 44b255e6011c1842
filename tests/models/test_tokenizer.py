"""Building tokenizers from GGUF metadata, and loading them through transformers.

smollm2_tokens.jsonl holds texts and the ids that llama.cpp's own tokenizer gives for them with the
real model's GGUF file (special tokens parsed).
"""

import json
import pathlib
import subprocess
import sys

import pytest

from specjax.models import gguf_file, tokenizer
from tests.models import tiny_gguf

GOLDEN = [
    json.loads(line)
    for line in pathlib.Path(__file__)
    .with_name("smollm2_tokens.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]


@pytest.fixture
def metadata(tmp_path):
    return gguf_file.open_file(tiny_gguf.write(tmp_path / "tiny.gguf")).metadata


@pytest.fixture
def tiny(metadata, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    assert sorted(tokenizer.save_from_gguf(metadata, folder)) == sorted(
        path.name for path in folder.iterdir()
    )
    return tokenizer.load(folder)


@pytest.fixture(scope="module")
def real(smollm2_folder):
    return tokenizer.load(smollm2_folder)


def test_merges_and_digits(tiny):
    # "12" is a merge, but the smollm pre-tokenizer cuts between digits first.
    assert tiny.tokenize("hello w12") == ["hello", "Ġw", "1", "2"]


def test_digits_stay_together_in_gpt2(metadata):
    built = tokenizer.from_gguf(metadata | {"tokenizer.ggml.pre": "gpt-2"})
    assert built.encode("w12").tokens == ["w", "12"]


@pytest.mark.parametrize("text", ["", " ", "hello 12\n", "naïve — 你好", "\U0001f600\x00\x7f\xff"])
def test_every_text_comes_back(tiny, text):
    assert tiny.decode(tiny(text)["input_ids"]) == text


def test_special_tokens(tiny):
    assert tiny("<|im_start|>h<|im_end|>")["input_ids"][::2] == [1, 2]
    assert (tiny.bos_token_id, tiny.eos_token_id, tiny.pad_token_id) == (1, 2, 2)
    assert tiny.unk_token_id == 0
    assert tiny.decode([1, *tiny("h")["input_ids"], 2], skip_special_tokens=True) == "h"
    assert tiny.model_max_length == 128


def test_user_defined_tokens_are_whole_but_not_special(metadata):
    types = list(metadata["tokenizer.ggml.token_type"])
    types[0] = 4
    built = tokenizer.from_gguf(metadata | {"tokenizer.ggml.token_type": types})
    ids = built.encode("h<|endoftext|>").ids
    assert ids[-1] == 0
    assert built.decode(ids) == "h<|endoftext|>"


def test_chat_template(tiny):
    text = tiny.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert text == "<|im_start|>user\nhello<|im_end|>\n"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model is 'llama'; only 'gpt2'"),
        ({"tokenizer.ggml.pre": "qwen2"}, r"pre is 'qwen2'; supported are \['gpt-2', 'smollm'\]"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "names a token twice"),
    ],
)
def test_unsupported_tokenizers_are_named(metadata, change, message):
    with pytest.raises(ValueError, match=message):
        tokenizer.from_gguf(metadata | change)


def test_a_missing_field_is_named(metadata):
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(ValueError, match=r"lacks the field 'tokenizer\.ggml\.merges'"):
        tokenizer.from_gguf(metadata)


def test_an_empty_folder(tmp_path):
    with pytest.raises(ValueError, match="there is no tokenizer to load at"):
        tokenizer.load(tmp_path)


def test_the_library_imports_no_tokenizer_packages():
    code = (
        "import sys, specjax.device, specjax.models.tokenizer, specjax.models.gguf_file\n"
        "heavy = {'transformers', 'tokenizers', 'gguf', 'torch', 'absl.app', 'ml_collections'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    root = pathlib.Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


@pytest.mark.model
@pytest.mark.parametrize("golden", GOLDEN, ids=range(len(GOLDEN)))
def test_real_ids_equal_llama_cpps(real, golden):
    ids = real(golden["text"])["input_ids"]
    assert ids == golden["ids"]
    assert real.decode(ids) == golden["text"]


@pytest.mark.model
def test_real_vocabulary_and_special_tokens(real):
    assert len(real) == real.vocab_size == 49152
    assert (real.bos_token, real.eos_token, real.pad_token, real.unk_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert real.decode(range(17), skip_special_tokens=True) == ""
    assert real.convert_tokens_to_ids(["<repo_name>", "<empty_output>"]) == [3, 16]


@pytest.mark.model
def test_real_vocabulary_lacks_some_bytes(real):
    # 21 bytes have no token: those UTF-8 never uses, six control characters, and the first bytes
    # of unassigned planes. The original tokenizer and llama.cpp drop them too.
    assert real("a\x04b")["input_ids"] == real("a")["input_ids"] + real("b")["input_ids"]


@pytest.mark.model
def test_real_chat_template_has_a_default_system_prompt(real):
    system = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n"
    )
    chat = [{"role": "user", "content": "Hi"}]
    user = "<|im_start|>user\nHi<|im_end|>\n"
    render = real.apply_chat_template
    assert render(chat, tokenize=False) == system + user
    assert (
        render(chat, tokenize=False, add_generation_prompt=True)
        == system + user + "<|im_start|>assistant\n"
    )
    own = [{"role": "system", "content": "Be brief."}, *chat]
    assert render(own, tokenize=False) == "<|im_start|>system\nBe brief.<|im_end|>\n" + user
    assert render(chat)["input_ids"] == real(system + user)["input_ids"]
