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
      run: what the answers depend on; a journal of another run is refused.

    Raises:
      ValueError: it is of another run, or damaged; says how and what to do.
      RuntimeError: another process is writing it.
    """

    def __init__(self, path: pathlib.Path, run: Mapping[str, Any]) -> None:
        self.answers: dict[tuple[int, int], Answer] = {}
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
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._file, whole)
        lines = content[:whole].splitlines()
        if not lines:
            self._write(run)
            return
        try:
            found = dict(json.loads(lines[0]))
            answers = [Answer(*json.loads(line)) for line in lines[1:]]
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{self._path} is damaged ({error}): delete it to start again"
            ) from error
        for key in {**run, **found}:
            if run.get(key) != found.get(key):
                differs = f"{key}{_values(found.get(key), run.get(key))}"
                raise ValueError(
                    f"{self._path} is of a run with another {differs}: take another --workdir, or "
                    "delete it to start again"
                )
        self.answers = {(answer.conversation, answer.turn): answer for answer in answers}

    def _write(self, record: Any) -> None:
        line = json.dumps(record).encode() + b"\n"
        while line:  # a full disk may take a part; the rest then fails
            line = line[os.write(self._file, line) :]


def _values(found: Any, wanted: Any) -> str:
    """The two values, where a person can tell them apart; checksums say nothing."""
    checksums = all(isinstance(x, str) and len(x) >= 32 for x in (found, wanted))
    return "" if checksums else f" ({found!r}, not {wanted!r})"
