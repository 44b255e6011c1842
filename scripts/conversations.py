"""Reading prompts and ready answers: JSON lines in the usual forms, and data sets on the hub.

One JSON object a line (a name that ends in .gz is unpacked), in one of these forms; further keys
are ignored::

  {"prompt": "Why?"}
  {"turns": ["Why?", "And then?"]}                                        the user's turns
  {"messages": [{"role": "user", "content": "Why?"}, ...]}                also "system"
  {"conversations": [{"from": "human", "value": "Why?"}, ...]}            ShareGPT

Answers in them are dropped where the target is to give its own. Ready answers are kept: the last
two forms hold them, or a "response" beside "prompt", and optionally "temperature" (they were
sampled at) and "finish" ("stop": the end of the turn follows; "length": it was cut).
"""

from __future__ import annotations

import gzip
import importlib
import json
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard"), "assistant"),
    "system": "system",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_EXAMPLE = '{"prompt": "Why is the sky blue?"}'


class Conversation(NamedTuple):
    """What a user says.

    Attributes:
      name: where it comes from, for messages.
      system: the system's message, if there is one.
      turns: the user's messages.
    """

    name: str
    system: str | None
    turns: tuple[str, ...]


class Ready(NamedTuple):
    """A conversation with its answers.

    Attributes:
      name: where it comes from, for messages.
      messages: as chat templates take them; the last one is an answer.
      temperature: the answers were sampled at; None: not said.
      finished: the last answer was ended, not cut.
    """

    name: str
    messages: list[dict[str, str]]
    temperature: float | None
    finished: bool


def read(source: str) -> Iterator[Conversation]:
    """Reads prompts.

    Args:
      source: a file, or a data set on the hub ("owner/name", "owner/name:split").

    Yields:
      The conversations, in the source's order.

    Raises:
      ValueError: there is no such source, or a line that can't be used; names it.
    """
    for where, fields in _records(source):
        messages = _messages(fields, where)
        system = [text["content"] for text in messages if text["role"] == "system"]
        users = [text["content"] for text in messages if text["role"] == "user"]
        if not users:
            raise ValueError(f"{where} has no message of the user")
        yield Conversation(where, "\n\n".join(system) or None, tuple(users))


def read_ready(source: str) -> Iterator[Ready]:
    """Reads conversations with answers; as ``read``."""
    for where, fields in _records(source):
        messages = _messages(fields, where)
        if "response" in fields and not (messages and messages[-1]["role"] == "assistant"):
            messages.append({"role": "assistant", "content": _text(fields, "response", where)})
        while messages and messages[-1]["role"] != "assistant":
            messages.pop()
        if not messages:
            raise ValueError(f'{where} has no answer; it needs a "response" beside "prompt"')
        temperature = fields.get("temperature")
        if temperature is not None and (
            isinstance(temperature, bool)
            or not isinstance(temperature, int | float)
            or not temperature >= 0
        ):
            raise ValueError(f'{where}: "temperature" is {temperature!r}; it must be at least 0')
        finish = fields.get("finish", "stop")
        if finish not in ("stop", "length"):
            raise ValueError(f'{where}: "finish" is {finish!r}; it must be "stop" or "length"')
        yield Ready(where, messages, temperature, finish == "stop")


def _records(source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    path = pathlib.Path(source).expanduser()
    if not path.is_file() and _HUB_ID.fullmatch(source) and not path.suffix.startswith(".json"):
        yield from _hub(source)
        return
    found = False
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where} is not JSON ({error}); it must be like {_EXAMPLE}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"{where} is {line.strip()[:40]!r}; it must be like {_EXAMPLE}")
        found = True
        yield where, fields
    if not found:
        raise ValueError(f"{path} is empty; give it one JSON object a line, such as {_EXAMPLE}")


def _lines(path: pathlib.Path) -> Iterator[str]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            yield from file
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it is cut short"
        raise ValueError(f"can't read {str(path)!r}: {reason}") from error


def _hub(source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    name, _, split = source.partition(":")
    try:
        # Optional, and large: who reads files never needs it.
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise ValueError(
            f"there is no file {source!r}, and a data set on the hub needs the datasets package: "
            "pip install datasets"
        ) from None
    try:
        records: Iterable[Mapping[str, Any]] = datasets.load_dataset(name, split=split or "train")
    except Exception as error:  # its own errors are of many kinds
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ValueError(f"can't load the data set {source!r} from the hub: {reason}") from error
    for number, fields in enumerate(records):
        yield f"{source}, record {number}", fields


def _messages(fields: Mapping[str, Any], where: str) -> list[dict[str, str]]:
    """The messages of any form, as {"role", "content"}; of several forms that which says most."""
    for form, role, content in (
        ("messages", "role", "content"),
        ("conversations", "from", "value"),
    ):
        if form in fields:
            return [_message(m, role, content, where) for m in _list(fields, form, where)]
    if "turns" in fields:
        texts = _list(fields, "turns", where)
        turns = ({"turns": text} for text in texts)
        return [{"role": "user", "content": _text(t, "turns", where, empty=False)} for t in turns]
    if "prompt" in fields:
        return [{"role": "user", "content": _text(fields, "prompt", where, empty=False)}]
    raise ValueError(
        f"{where} has only {', '.join(map(repr, fields)) or 'no keys'}; it needs "
        '"prompt", "turns", "messages" or "conversations"'
    )


def _message(message: Any, role: str, content: str, where: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} holds the message {message!r}; it must be a JSON object")
    if message.get(role) not in _ROLES:
        names = ", ".join(_ROLES)
        raise ValueError(f'{where}: "{role}" is {message.get(role)!r}; it must be one of {names}')
    out = {"role": _ROLES[message[role]], "content": _text(message, content, where)}
    if message.get("reasoning_content") is not None:  # templates of models that think render it
        out["reasoning_content"] = _text(message, "reasoning_content", where)
    return out


def _list(fields: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = fields[key]
    if not isinstance(value, list) or not value:
        raise ValueError(f'{where}: "{key}" is {value!r}; it must be a list of one or more')
    return value


def _text(fields: Mapping[str, Any], key: str, where: str, empty: bool = True) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not (empty or value.strip()):
        raise ValueError(f'{where}: "{key}" holds {value!r}; it must be a text')
    return value
