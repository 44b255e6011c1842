"""What ``scripts.generate_data`` tells: progress while it runs, counts and a table at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from eval import results
from train import data
from train.chat_mask import Masked


class Answered(NamedTuple):
    """A conversation with its answers, as tokens.

    Attributes:
      name: for messages.
      temperature: of the sampling; None: not known.
      samples: one, or several where the template changes what came before.
      finished: of each answer, whether the target ended it.
    """

    name: str
    temperature: float | None
    samples: list[Masked]
    finished: list[bool]


class Speed(NamedTuple):
    """What decoding took in this run: tokens and seconds."""

    tokens: int
    seconds: float


class Progress:
    """A line on stderr now and then: how far, how fast, how long still.

    Args:
      total: answers in all.
      done: answers that were there before.

    Attributes:
      total: as above; turns that are left out on the way are taken off it.
      tokens: of the answers of this run.
    """

    def __init__(self, total: int, done: int) -> None:
        self.total, self.tokens = total, 0
        self._before, self._done = done, done
        self._begun = self._shown = time.perf_counter()
        self._terminal = sys.stderr.isatty()
        if done:
            print(f"{done:,} of {total:,} answers were there already", file=sys.stderr, flush=True)

    def add(self, tokens: int) -> None:
        """Counts an answer."""
        self.tokens += tokens
        self._done += 1
        now = time.perf_counter()
        if now - self._shown > (1 if self._terminal else 20):
            self._shown = now
            print(
                self.line(now - self._begun),
                end="\r" if self._terminal else "\n",
                file=sys.stderr,
                flush=True,
            )

    def end(self) -> None:
        """Leaves the last line standing."""
        print(self.line(time.perf_counter() - self._begun), file=sys.stderr, flush=True)

    def line(self, seconds: float) -> str:
        """What there is to say after so many seconds."""
        new = self._done - self._before
        text = f"{self._done:,} of {self.total:,} answers, {self.tokens:,} tokens in this run"
        if not new or seconds <= 0:
            return text
        left = (self.total - self._done) * seconds / new
        return f"{text}, {self.tokens / seconds:.0f} tokens/s, {_duration(left)} left   "


class Tally:
    """Counts what goes into the shards.

    Attributes:
      counts: by what they are called in the manifest.
      answers: by temperature, as the manifest has it.
      speeds: by temperature, what decoding took.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.speeds: Mapping[float | None, Speed] = {}
        self._by: defaultdict[float | None, Counter[str]] = defaultdict(Counter)

    def of(self, answered: Iterable[Answered]) -> Iterator[data.Sample]:
        """The samples of the conversations, counted as they pass."""
        for one in answered:
            new = Counter(
                {
                    "conversations": 1,
                    "answers": len(one.finished),
                    "answers ended by the target": sum(one.finished),
                    "answer tokens": sum(sum(sample.mask) for sample in one.samples),
                    "prompt tokens": sum(
                        len(sample.mask) - sum(sample.mask) for sample in one.samples
                    ),
                }
            )
            self.counts += new
            self._by[one.temperature] += new
            self.answers[_group(one.temperature)] += len(one.finished)
            for number, sample in enumerate(one.samples):
                yield data.Sample(one.name, sample.tokens, sample.mask, continues=number > 0)

    def rows(self) -> list[dict[str, Any]]:
        """A flat row for each temperature, and one for all."""
        rows = [
            self._row(_group(key), key, counts, self.speeds.get(key))
            for key, counts in self._by.items()
        ]
        tokens, seconds = (
            sum(column) for column in zip(Speed(0, 0.0), *self.speeds.values(), strict=True)
        )
        whole = Speed(int(tokens), seconds) if tokens else None
        return [*rows, self._row("all", None, self.counts, whole)]

    def _row(
        self, group: str, temperature: float | None, counts: Counter[str], speed: Speed | None
    ) -> dict[str, Any]:
        answers = counts["answers"]
        return {
            "group": group,
            "temperature": temperature,
            "answers": answers,
            "ended": counts["answers ended by the target"] / answers,
            "answer_tokens": counts["answer tokens"],
            "prompt_tokens": counts["prompt tokens"],
            "tokens_per_answer": counts["answer tokens"] / answers,
            "tokens_per_second": speed.tokens / speed.seconds if speed else None,
        }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows, for people."""
    lines = []
    for row in rows:
        speed = row["tokens_per_second"]
        lines.append(
            {
                "temperature": row["group"],
                "answers": f"{row['answers']:,}",
                "ended": f"{row['ended']:.1%}",
                "answer tokens": f"{row['answer_tokens']:,}",
                "prompt tokens": f"{row['prompt_tokens']:,}",
                "an answer": f"{row['tokens_per_answer']:.1f}",
                "tok/s": "" if speed is None else f"{speed:.0f}",
            }
        )
    return results.table(lines)


def summary(manifest: Mapping[str, Any]) -> str:
    """What was written, in a sentence."""
    left_out = manifest["counts"].get("turns left out", 0)
    more = f"; {left_out:,} turns left out, their prompts too long" if left_out else ""
    return (
        f"{manifest['documents']:,} documents, {manifest['tokens']:,} tokens, "
        f"{manifest['supervised']:,} of them supervised, in {len(manifest['shards'])} shards{more}"
    )


def _group(temperature: float | None) -> str:
    """What the answers of a temperature are called."""
    return "unknown" if temperature is None else str(float(temperature))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
