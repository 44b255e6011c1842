"""Prompts to measure with: the built-in set, and files of the same form.

A file holds one JSON object a line: ``{"category": "story", "turns": ["Tell me ..."]}``, and
optionally ``"name"``. Other keys (Spec-Bench's ``question_id``) are ignored.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, NamedTuple

BUILTIN = pathlib.Path(__file__).with_name("prompts_builtin.jsonl")

# Measured with more repeats than the others: the pair that the project's article used.
ARTICLE = ("article_edit", "article_story")


class Prompt(NamedTuple):
    """What a user says.

    Attributes:
      name: unique in its set.
      category: the kind of task.
      turns: the user's messages, in order.
    """

    name: str
    category: str
    turns: tuple[str, ...]


def read(path: str | os.PathLike[str] | None = None) -> list[Prompt]:
    """Reads a prompt file.

    Args:
      path: the file; the built-in set by default.

    Returns:
      Its prompts, in the file's order.

    Raises:
      ValueError: no such file, no prompts in it, or a malformed line; names line and field.
    """
    path = pathlib.Path(path) if path else BUILTIN
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ValueError(f"can't read the prompt file {str(path)!r}: {reason}") from error
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        prompt = _parse(line, where, number)
        if prompt.name in prompts:
            raise ValueError(f'{where}: the "name" {prompt.name!r} occurs twice; rename one')
        prompts[prompt.name] = prompt
    if not prompts:
        raise ValueError(
            f"{path} holds no prompts; give it one JSON object a line, such as "
            '{"category": "story", "turns": ["Tell me a story."]}'
        )
    return list(prompts.values())


def _parse(line: str, where: str, number: int) -> Prompt:
    try:
        fields: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{where} is {line.strip()[:40]!r}; it must be a JSON object")
    turns = fields.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ValueError(f'{where}: "turns" is {turns!r}; it must be a list of one or more texts')
    for turn in turns:
        if not isinstance(turn, str) or not turn.strip():
            raise ValueError(f'{where}: "turns" holds {turn!r}; every turn must be a text')
    for field, default in (("category", None), ("name", str(number))):
        value = fields.get(field, default)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f'{where}: "{field}" is {value!r}; it must be a text')
        fields[field] = value
    return Prompt(fields["name"], fields["category"], tuple(turns))
