"""Which tokens of a conversation the target wrote, as its chat template itself tells.

A turn is what the target was given (the ids of the prompt) and what it wrote (the ids of the
answer, with the token that ended it). Where the turns of a conversation continue each other, they
make one sample; where a template changes what came before (many strip earlier thinking), each part
is a sample of its own, as the target saw it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

Messages = Sequence[dict[str, Any]]  # {"role": ..., "content": ...}, as templates take them


class Turn(NamedTuple):
    """One answer.

    Attributes:
      prompt: ids the target was given.
      answer: ids it wrote.
    """

    prompt: list[int]
    answer: list[int]


class Masked(NamedTuple):
    """A sample to train on.

    Attributes:
      tokens: ids ``[n]``.
      mask: ``[n]``, true on what the target wrote.
    """

    tokens: list[int]
    mask: list[bool]


def join(turns: Iterable[Turn]) -> list[Masked]:
    """The samples of a conversation: a turn whose prompt continues the sample so far extends it."""
    samples: list[Masked] = []
    for turn in turns:
        held = len(samples[-1].tokens) if samples else 0
        if not samples or turn.prompt[:held] != samples[-1].tokens:
            samples.append(Masked([], []))
            held = 0
        tokens, mask = samples[-1]
        tokens += turn.prompt[held:] + turn.answer
        mask += [False] * (len(turn.prompt) - held) + [True] * len(turn.answer)
    return samples


def prompt(tokenizer: Any, messages: Messages) -> list[int]:
    """The ids a target is given to answer these messages.

    Args:
      tokenizer: a transformers tokenizer with a chat template.
      messages: the last one is the user's.

    Raises:
      ValueError: the template refuses them.
    """
    return _encode(tokenizer, _render(tokenizer, messages, add_generation_prompt=True))


def turns(
    tokenizer: Any, messages: Messages, eos_ids: Collection[int], *, finished: bool = True
) -> list[Turn]:
    """The answers in a conversation of texts, as the chat template renders them.

    An answer ends with the first id of ``eos_ids``: what a template writes after it (a line break,
    often) no target ever emitted. Nor did it emit what a template puts before the answer's own
    text (an empty block of thinking): that counts as given.

    Args:
      tokenizer: a transformers tokenizer with a chat template.
      messages: the conversation; the messages of role "assistant" are the answers.
      eos_ids: ids that end an answer.
      finished: whether the target ended its last answer; else that has no end-of-turn token.

    Returns:
      One turn for each answer.

    Raises:
      ValueError: the template refuses the messages, or hides where an answer begins.
    """
    tagged = re.search(r"\{%-?\s*generation\b", tokenizer.get_chat_template())
    find = _by_tags if tagged else _by_prefix
    out = []
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            turn = find(tokenizer, messages[: at + 1])
            whole = finished or at + 1 < len(messages)
            out.append(turn._replace(answer=_ended(turn.answer, eos_ids, whole)))
    return out


def _ended(answer: list[int], eos_ids: Collection[int], finished: bool) -> list[int]:
    end = next((at for at, token in enumerate(answer) if token in eos_ids), None)
    return answer if end is None else answer[: end + finished]


def _by_tags(tokenizer: Any, messages: Messages) -> Turn:
    """The last answer, by the template's ``{% generation %}`` tags."""
    rendered = _apply(tokenizer, messages, return_assistant_tokens_mask=True)
    ids, mask = list(rendered["input_ids"]), [0, *rendered["assistant_masks"], 0]
    edges = [at for at in range(len(ids) + 1) if mask[at] != mask[at + 1]]
    answers = sum(message["role"] == "assistant" for message in messages)
    if len(edges) != 2 * answers:
        raise ValueError(
            f"the chat template's generation tags mark {len(edges) // 2} spans where the "
            f"conversation has {answers} answers; an answer is empty, or the tags are wrong"
        )
    given, marked = ids[: edges[-2]], ids[edges[-2] : edges[-1]]
    text = tokenizer.decode(marked)
    begins = _begins(messages[-1], text)
    if begins is None:
        raise ValueError(
            f"the chat template's generation tags mark {text[:40]!r} as the answer "
            f"{messages[-1]['content'][:40]!r}; correct the tags"
        )
    before = sum(
        len(tokenizer.decode(marked[: at + 1])) <= begins
        for at in range(len(marked) if begins else 0)
    )
    return Turn(given + marked[:before], marked[before:])


def _by_prefix(tokenizer: Any, messages: Messages) -> Turn:
    """The last answer: what a rendering with it has more than the prompt without it."""
    before = _render(tokenizer, messages[:-1], add_generation_prompt=True)
    whole = _render(tokenizer, messages)
    if not whole.startswith(before):
        raise ValueError(
            "the chat template does not render this answer as a continuation of its prompt, so "
            "what the target wrote can't be told; add {% generation %} tags to the template"
        )
    answer = whole[len(before) :]
    begins = _begins(messages[-1], answer)
    if begins != 0 and before == _render(tokenizer, messages[:-1]):
        # No generation prompt. That is fine where the answer follows at once ([/INST]), and wrong
        # where the template writes a header first, which would pass for the target's own words.
        raise ValueError(
            "the chat template has no generation prompt, and something precedes the answer; "
            "add one (`if add_generation_prompt`), or {% generation %} tags"
        )
    before, answer = before + answer[: begins or 0], answer[begins or 0 :]
    given, ids = _encode(tokenizer, before), _encode(tokenizer, whole)
    if ids[: len(given)] == given:
        return Turn(given, ids[len(given) :])
    # The end of the prompt and the beginning of the answer would make one token. The target was
    # given the prompt alone.
    return Turn(given, _encode(tokenizer, answer))


def _begins(message: dict[str, Any], rendered: str) -> int | None:
    """Where what the target wrote begins in the rendering of its answer.

    Args:
      message: its content, and what it thought (``reasoning_content``), if that is known.
      rendered: what the template has after the prompt.

    Returns:
      0 where nothing but white space precedes it (templates trim), and where its own thinking does;
      None where the template doesn't write it, or not in these words.
    """
    places = [at for at, letter in enumerate(rendered) if not letter.isspace()]
    squeezed = "".join(rendered[at] for at in places)
    thought, said = (
        "".join(str(message.get(name) or "").split()) for name in ("reasoning_content", "content")
    )
    if thought and thought in squeezed:
        return 0  # with the tag before it
    found = squeezed.find(said)
    return places[found] if found > 0 else None if found < 0 else 0


def _render(tokenizer: Any, messages: Messages, **options: Any) -> str:
    return _apply(tokenizer, messages, tokenize=False, **options)


def _encode(tokenizer: Any, text: str) -> list[int]:
    # The template has written the special tokens already.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _apply(tokenizer: Any, messages: Messages, **options: Any) -> Any:
    import jinja2  # as late as transformers does

    try:
        return tokenizer.apply_chat_template(list(messages), **options)
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template refuses the messages: {error}") from error
