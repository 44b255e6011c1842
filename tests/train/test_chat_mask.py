"""What the target wrote, and nothing else, is supervised: told by templates, not by separators."""

import pathlib
import re

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers

from train import chat_mask
from train.chat_mask import Turn

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As SmolLM2's: a system message where there is none.
DEFAULT_SYSTEM = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "<|im_start|>system\nBe nice.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen3's and DeepSeek's: thinking is dropped from all answers but the last message.
STRIPS_THINKING = (
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen3's: the last answer is given an empty block of thinking where it has none.
INSERTS_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last and '<think>' not in m.content %}"
    "<think>\n{{ (m.reasoning_content or '') | trim }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAGGED_INSERTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{%- generation %}<think>\n\n</think>\n\n"
    "{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAGGED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{%- generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Mistral's: no generation prompt, the answer follows the user's turn at once.
INST = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}"
)


def make(template: str) -> transformers.PreTrainedTokenizerFast:
    """Bytes, a token for two line breaks, and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*alphabet, "ĊĊ"])}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("Ċ", "Ċ")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([tokenizers.AddedToken(t, special=True) for t in SPECIAL])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


def talk(*texts: str) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)
    ]


def found(tokenizer, messages, **options) -> list[tuple[str, list[str]]]:
    """Each sample's text, and the texts of its supervised spans."""
    ends = tokenizer.convert_tokens_to_ids(["</s>", "<|im_end|>"])
    out = []
    turns = chat_mask.turns(tokenizer, messages, ends, **options)
    for sample in chat_mask.join(turns):
        assert len(sample.tokens) == len(sample.mask)
        spans, last = [], False
        for token, mask in zip(sample.tokens, sample.mask, strict=True):
            if mask:
                spans = [*spans, []] if not last else spans
                spans[-1].append(token)
            last = mask
        out.append((tokenizer.decode(sample.tokens), [tokenizer.decode(span) for span in spans]))
    return out


@pytest.mark.parametrize("template", [CHATML, DEFAULT_SYSTEM, TAGGED])
def test_answers_and_their_ends_are_supervised(template):
    tokenizer = make(template)
    [(text, spans)] = found(tokenizer, talk("Hi", "Hello!", "1+1?", "2, \u00e9h", "Thanks"))
    assert spans == ["Hello!<|im_end|>", "2, \u00e9h<|im_end|>"]
    assert text.endswith("<|im_start|>assistant\n2, \u00e9h<|im_end|>"), "no line break after it"
    assert text.startswith("<|im_start|>system\nBe nice." if template == DEFAULT_SYSTEM else
                           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!")  # fmt: skip
    system = [{"role": "system", "content": "Rhyme."}, *talk("Hi", "Hello!")]
    [(text, spans)] = found(tokenizer, system)
    assert spans == ["Hello!<|im_end|>"] and "Be nice" not in text and "Rhyme." in text


@pytest.mark.parametrize("template", [CHATML, TAGGED])
def test_an_answer_that_was_cut_has_no_end(template):
    tokenizer = make(template)
    messages = talk("Hi", "One", "More", "Two and th")
    [(text, spans)] = found(tokenizer, messages, finished=False)
    assert spans == ["One<|im_end|>", "Two and th"]
    assert text.endswith("Two and th")


def test_no_generation_prompt_is_needed_where_the_answer_follows_at_once():
    [(text, spans)] = found(make(INST), talk("Hi", "Hello!", "More", "Bye"))
    assert text == "<s>[INST] Hi [/INST] Hello!</s>[INST] More [/INST] Bye</s>"
    assert spans == [" Hello!</s>", " Bye</s>"]


def test_a_header_never_passes_for_the_answer():
    headless = CHATML.replace(
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", ""
    )
    with pytest.raises(ValueError, match="no generation prompt, and something precedes"):
        found(make(headless), talk("Hi", "Hello!"))


def test_stripped_thinking_makes_samples_of_their_own():
    """The target saw the first answer's thinking when it wrote it, and not in the second turn."""
    first, second = "<think>\nhm\n</think>\n\nHello!", "<think>\nso\n</think>\n\nBye"
    tokenizer = make(STRIPS_THINKING)
    [one, two] = found(tokenizer, talk("Hi", first, "Go", second))
    assert one[1] == [f"{first}<|im_end|>"] and one[0].endswith(f"{first}<|im_end|>")
    assert two[1] == [f"{second}<|im_end|>"]
    assert "hm" not in two[0] and "assistant\nHello!<|im_end|>\n<|im_start|>user\nGo" in two[0]
    # Without thinking nothing is stripped, and the turns stay together.
    assert len(found(tokenizer, talk("Hi", "Hello!", "Go", second))) == 1
    assert len(found(make(CHATML), talk("Hi", first, "Go", second))) == 1


@pytest.mark.parametrize("template", [INSERTS_THINKING, TAGGED_INSERTS])
def test_what_the_template_inserts_is_not_the_targets(template):
    block = "<think>\n\n</think>\n\n"
    tokenizer = make(template)
    [(text, spans)] = found(tokenizer, talk("Hi", "H\u00e9llo!"))
    assert text.endswith(f"assistant\n{block}H\u00e9llo!<|im_end|>")
    assert spans == ["H\u00e9llo!<|im_end|>"]
    samples = found(tokenizer, talk("Hi", "Hello!", "Go", "Bye"))
    assert [spans for _, spans in samples] == (
        [["Hello!<|im_end|>"], ["Bye<|im_end|>"]]  # the first answer loses its block
        if template == INSERTS_THINKING
        else [["Hello!<|im_end|>", "Bye<|im_end|>"]]
    )


def test_the_targets_own_thinking_is_its_own():
    tokenizer = make(INSERTS_THINKING)
    own = "<think>\nhm\n</think>\n\nHello!"
    [(_, spans)] = found(tokenizer, talk("Hi", own))
    assert spans == [f"{own}<|im_end|>"]
    messages = talk("Hi", "Hello!")
    messages[-1]["reasoning_content"] = "hm\n"
    [(_, spans)] = found(tokenizer, messages)
    assert spans == [f"{own}<|im_end|>"]


def test_an_answer_that_is_no_continuation_is_refused():
    prefilled = STRIPS_THINKING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    with pytest.raises(ValueError, match="does not render this answer as a continuation"):
        found(make(prefilled), talk("Hi", "Hello!"))
    # One that does think continues the prompt.
    [(_, spans)] = found(make(prefilled), talk("Hi", "<think>\nhm</think>Hello!"))
    assert spans == ["hm</think>Hello!<|im_end|>"]


def test_tags_that_mark_nothing_are_refused():
    for role, message in (
        ("nobody", "mark 0 spans where the conversation has 1 answers"),
        ("user", "mark 'a<.im_end.>' as the answer"),
    ):
        broken = TAGGED.replace("== 'assistant' %}{%-", f"== {role!r} %}}{{%-")
        with pytest.raises(ValueError, match=message):
            found(make(broken), talk("a", "b"))


def test_the_prompt_stays_as_the_target_was_given_it():
    """An answer that begins with a line break must not merge with the one that ends the prompt."""
    tokenizer = make(CHATML)
    messages = talk("Hi", "\nHello!")
    [turn] = chat_mask.turns(tokenizer, messages, tokenizer.convert_tokens_to_ids(["<|im_end|>"]))
    assert turn.prompt == chat_mask.prompt(tokenizer, messages[:1])
    assert tokenizer.decode(turn.answer) == "\nHello!<|im_end|>"


def test_what_a_template_refuses_is_said():
    refusing = "{{ raise_exception('no system here') }}"
    with pytest.raises(ValueError, match="refuses the messages: no system here"):
        chat_mask.prompt(make(refusing), talk("a"))


def test_join_keeps_every_token_and_its_place():
    turns = [
        Turn([1, 2], [3, 4]),
        Turn([1, 2, 3, 4, 5], [6]),  # goes on
        Turn([1, 2, 3, 4, 9], [7]),  # something changed
        Turn([1, 2, 3, 4, 9, 7], [8, 8]),  # goes on, with nothing new in between
    ]
    first, second = chat_mask.join(turns)
    assert first.tokens == [1, 2, 3, 4, 5, 6]
    assert first.mask == [False, False, True, True, False, True]
    assert second.tokens == [1, 2, 3, 4, 9, 7, 8, 8]
    assert second.mask == [False] * 5 + [True] * 3
    assert turns[0].prompt == [1, 2], "what was given is left alone"
    assert chat_mask.join([]) == []


def test_the_real_template():
    folder = pathlib.Path.home() / ".cache/specjax/smollm2-135m-instruct"
    if not (folder / "tokenizer.json").is_file():
        pytest.skip("the real model isn't here")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    messages = talk("What is 2+2?", "4.\n\nAnything else?", "No.", "\n\nFine \U0001f600")
    [(text, spans)] = found(tokenizer, messages)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert spans == ["4.\n\nAnything else?<|im_end|>", "\n\nFine \U0001f600<|im_end|>"]
    ids = tokenizer.apply_chat_template(messages[:3], add_generation_prompt=True)["input_ids"]
    turns = chat_mask.turns(tokenizer, messages, [tokenizer.eos_token_id])
    assert turns[1].prompt == list(ids)
    assert len(re.findall(r"<\|im_end\|>", text)) == 5
