"""Prompts of the project's own: about functions of the Python standard library, and from templates.

Any number of distinct ones, offline, under no licence but Python's and this project's. They are a
function of the seed (and of the Python version, whose library the code is from), and a longer list
begins with the shorter one.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import random
from collections.abc import Callable, Iterator

from scripts import prompt_words as words

# How often each kind comes up; about as a mixed set of instructions has them.
_SHARES = {
    "code": 6,
    "code_task": 2,
    "story": 3,
    "list": 3,
    "letter": 2,
    "summary": 3,
    "translation": 1,
    "arithmetic": 3,
    "question": 3,
    "role_play": 2,
    "extraction": 2,
    "explanation": 4,
}
_SMALLEST, _LARGEST = 120, 1_600  # characters of a function


def prompts(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Makes prompts, no two alike.

    Args:
      count: how many.
      seed: of the choice.

    Yields:
      ``{"prompt": ..., "source": ...}``; the source is the kind.

    Raises:
      ValueError: so many can't be made.
    """
    kinds = [kind for kind, share in _SHARES.items() for _ in range(share)]
    seen: set[str] = set()
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")  # its own: a prompt doesn't depend on the others
        for _ in range(200):
            kind = draw.choice(kinds)
            prompt = _MAKERS[kind](draw)
            if prompt not in seen:
                break
        else:
            raise ValueError(f"only {number} distinct prompts were found; ask for no more")
        seen.add(prompt)
        yield {"prompt": prompt, "source": kind}


# --- code ---


@functools.cache
def functions() -> tuple[str, ...]:
    """Sources of functions of the standard library, short enough to talk about."""
    found: dict[str, None] = {}
    for name in words.MODULES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            continue  # not in this Python
        text = pathlib.Path(spec.origin).read_text(encoding="utf-8")
        lines = text.splitlines()  # ast.get_source_segment splits them anew each time
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                source = _dedented(lines[node.lineno - 1 : node.end_lineno])
                if _SMALLEST <= len(source) <= _LARGEST:
                    found[source] = None
    return tuple(found)


def _dedented(lines: list[str]) -> str:
    """A text without its first line's indentation; lines that have less stay."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip(" "))]
    return "\n".join(line.removeprefix(indent) for line in lines)


def _code(draw: random.Random) -> str:
    source = draw.choice(functions())
    return f"{draw.choice(words.CODE_REQUESTS)}\n\n```python\n{source}\n```"


def _code_task(draw: random.Random) -> str:
    what = draw.choice(words.CODE_TASKS)
    language = draw.choice(("Python", "Python", "Python", "JavaScript", "Java", "C"))
    return draw.choice(words.CODE_TASK_FORMS).format(what=what, language=language)


# --- text ---


def _story(draw: random.Random) -> str:
    return draw.choice(words.STORY_FORMS).format(
        who=draw.choice(words.CHARACTERS),
        where=draw.choice(words.PLACES),
        what=draw.choice(words.EVENTS),
        name=draw.choice(words.NAMES),
        count=draw.choice((100, 150, 200, 250)),
    )


def _list(draw: random.Random) -> str:
    return draw.choice(words.LIST_FORMS).format(
        count=draw.choice(("three", "four", "five", "six", "seven", "ten")),
        what=draw.choice(words.LIST_SUBJECTS),
        who=draw.choice(words.PEOPLE),
    )


def _letter(draw: random.Random) -> str:
    return draw.choice(words.LETTER_FORMS).format(
        to=draw.choice(words.RECIPIENTS),
        why=draw.choice(words.OCCASIONS),
        tone=draw.choice(words.TONES),
        name=draw.choice(words.NAMES),
    )


def _explanation(draw: random.Random) -> str:
    return draw.choice(words.EXPLANATION_FORMS).format(
        what=draw.choice(words.TOPICS), who=draw.choice(words.PEOPLE)
    )


def _role_play(draw: random.Random) -> str:
    return draw.choice(words.ROLE_FORMS).format(
        role=draw.choice(words.ROLES),
        what=draw.choice(words.TOPICS),
        event=draw.choice(words.EVENTS),
        who=draw.choice(words.PEOPLE),
    )


def _translation(draw: random.Random) -> str:
    sentence = draw.choice(words.SENTENCES).format(
        name=draw.choice(words.NAMES),
        where=draw.choice(words.PLACES),
        number=draw.randint(2, 40),
        day=draw.choice(words.DAYS),
        thing=draw.choice(words.THINGS),
    )
    language = draw.choice(("French", "German", "Spanish", "Italian", "Portuguese"))
    form = draw.choice(("Translate to {}: {}", "Translate English to {}: {}", "How do you say this "
                        "in {}? {}"))  # fmt: skip
    return form.format(language, sentence)


# --- with something given ---


def passage(draw: random.Random) -> tuple[str, dict[str, str]]:
    """A short passage, and what it says: person, place, thing, year, number, day."""
    facts = {
        "name": draw.choice(words.NAMES),
        "other": draw.choice(words.SURNAMES),
        "town": draw.choice(words.TOWNS),
        "thing": draw.choice(words.THINGS),
        "year": str(draw.randint(1890, 2019)),
        "number": str(draw.randint(12, 950)),
        "day": draw.choice(words.DAYS),
    }
    opening, middle, end = (
        draw.choice(parts) for parts in (words.OPENINGS, words.MIDDLES, words.ENDINGS)
    )
    return f"{opening} {middle} {end}".format(**facts), facts


def _summary(draw: random.Random) -> str:
    text, _ = passage(draw)
    if draw.random() < 0.5:
        text = f"{text}\n\n{passage(draw)[0]}"
    return draw.choice(words.SUMMARY_FORMS).format(text=text)


def _question(draw: random.Random) -> str:
    text, _ = passage(draw)
    return draw.choice(words.QUESTION_FORMS).format(
        text=text, question=draw.choice(words.QUESTIONS)
    )


def _extraction(draw: random.Random) -> str:
    text, _ = passage(draw)
    return draw.choice(words.EXTRACTION_FORMS).format(text=text)


def _arithmetic(draw: random.Random) -> str:
    a, b, c = draw.randint(3, 60), draw.randint(2, 12), draw.randint(2, 9)
    text = draw.choice(words.PROBLEMS).format(
        name=draw.choice(words.NAMES),
        other=draw.choice(words.NAMES),
        thing=draw.choice(words.GOODS),
        a=a,
        b=b,
        c=c,
        more=a + draw.randint(5, 80),
        much=a * b + draw.randint(5, 50),
    )
    return text + draw.choice(("", "", " Think step by step.", " Explain your answer."))


_MAKERS: dict[str, Callable[[random.Random], str]] = {
    "code": _code,
    "code_task": _code_task,
    "story": _story,
    "list": _list,
    "letter": _letter,
    "summary": _summary,
    "translation": _translation,
    "arithmetic": _arithmetic,
    "question": _question,
    "role_play": _role_play,
    "extraction": _extraction,
    "explanation": _explanation,
}
