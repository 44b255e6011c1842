"""A file of finished answers that only grows: what a killed run has done is not done again."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """An answer of the target.

    Attributes:
      conversation: its number.
      turn: from 0.
      tokens: ids the target emitted.
      finished: it ended its turn; else it was cut.
    """

    conversation: int
    turn: int
    tokens: list[int]
    finished: bool


class Journal:
    """Answers by ``(conversation, turn)``, each in the file before it is here.

    An answer is written by one call of the system, as a line. A run that is killed leaves at most
    one incomplete line, the last, which the next run removes. A lock, which the system drops when
    the process ends however it ends, keeps a second run out.

    Args:
      path: made if it isn't there.
      run: what the answers depend on; a journal that has answers of another run is refused, one
        that has none is begun anew.

    Attributes:
      answers: by conversation and turn.
      left_out: by conversation, the turn from which on it is not answered, where there is one.

    Raises:
      ValueError: it is of another run, or damaged; says how and what to do.
      RuntimeError: another process is writing it.
    """

    def __init__(self, path: pathlib.Path, run: Mapping[str, Any]) -> None:
        self.answers: dict[tuple[int, int], Answer] = {}
        self.left_out: dict[int, int] = {}
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            self._load(json.loads(json.dumps(run)))  # tuples become lists, as in the file
        except BaseException:
            self.close()
            raise

    def add(self, answer: Answer) -> None:
        """Writes an answer down."""
        self._write(answer)
        self.answers[answer.conversation, answer.turn] = answer

    def leave_out(self, conversation: int, turn: int) -> None:
        """Writes down that a conversation is not answered from this turn on."""
        self._write((conversation, turn))
        self.left_out[conversation] = turn

    def close(self) -> None:
        """Lets others write."""
        os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"another run is writing {self._path}: wait for it, or take another --workdir"
            ) from None

    def _load(self, run: Mapping[str, Any]) -> None:
        found, self.answers, self.left_out, whole = _read(self._path)
        if whole < os.fstat(self._file).st_size:
            os.ftruncate(self._file, whole)
        differing = [key for key in {**run, **found} if run.get(key) != found.get(key)]
        if found and not differing:
            return
        if self.answers:
            key = differing[0]
            differs = f"{key}{_values(found.get(key), run.get(key))}"
            raise ValueError(
                f"{self._path} is of a run with another {differs}: take another --workdir, or "
                "delete it to start again"
            )
        self.left_out = {}  # by other settings
        os.ftruncate(self._file, 0)
        self._write(run)

    def _write(self, record: Any) -> None:
        line = json.dumps(record).encode() + b"\n"
        while line:  # a full disk may take a part; the rest then fails
            line = line[os.write(self._file, line) :]


def has_answers(path: pathlib.Path) -> bool:
    """Whether there is a journal with answers in it.

    Raises:
      ValueError: it is damaged.
    """
    return path.is_file() and bool(_read(path)[1])


_Contents = tuple[dict[str, Any], dict[tuple[int, int], Answer], dict[int, int], int]


def _read(path: pathlib.Path) -> _Contents:
    """The run, its answers, what it left out, and the bytes up to the end of the last whole line.

    The run is empty where there is no line yet.
    """
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    run, answers, left_out = {}, {}, {}
    try:
        for number, line in enumerate(content[:whole].splitlines()):
            record = json.loads(line)
            if number == 0:
                run = dict(record)
            elif len(record) == 2:
                conversation, turn = record
                left_out[conversation] = turn
            else:
                answer = Answer(*record)
                answers[answer.conversation, answer.turn] = answer
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to start again") from error
    return run, answers, left_out, whole


def _values(found: Any, wanted: Any) -> str:
    """The two values, where a person can tell them apart; checksums say nothing."""
    checksums = all(isinstance(x, str) and len(x) >= 32 for x in (found, wanted))
    return "" if checksums else f" ({found!r}, not {wanted!r})"
