"""Makes training data: prompts in, the target's own answers out, as token shards with a mask.

  python -m scripts.generate_data --config=configs/generate_data_smollm2.py --workdir=runs/data
      [--config.prompts=FILE|OWNER/NAME] [--config.responses=FILE] [--config.KEY=VALUE ...]

A head learns to guess what its target says, so the target itself answers (every turn of a
conversation), through ``specjax.generate_many``. Ready answers of the same target
(--config.responses) are only tokenised. Files: ``scripts/conversations.py`` says what they hold.

A run that is killed, however hard, goes on where it was when the command is given again: answers
are in ``journal.jsonl`` as soon as they are finished, and the same answers come out. The workdir
ends up with the shards and ``manifest.json`` (see ``train/data.py``) and results.json.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

import specjax
from eval import chat as chats
from eval import results
from scripts import conversations, prompt_source
from scripts.conversations import Conversation
from scripts.data_report import Answered, Progress, Speed, Tally, summary, table
from scripts.journal import Answer, Journal
from specjax import FinishReason, device
from specjax.generate import Prompt
from specjax.models import fingerprint, loading
from train import chat_mask, data
from train.chat_mask import Turn

JOURNAL = "journal.jsonl"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run depends on.

    Attributes:
      target: a folder, a hub id, or "smollm2", the default model.
      prompts: a file, or a data set on the hub ("owner/name[:split]"); "": the built-in source.
      responses: a file of ready answers, which are tokenised and no more; "": the target answers.
      count: conversations to take; 0: all (the built-in source needs a number).
      temperatures: conversation i is answered at the one of number i modulo their count; 0 takes
        the most probable token.
      max_new_tokens: most tokens of an answer.
      max_length: slots of a row. A turn whose prompt leaves no room for an answer is left out.
      batch: rows decoded at a time.
      rounds: most rounds between two looks at what is finished.
      shard_tokens: tokens a shard holds.
      seed: of the noise, and of the built-in prompts.
      dtype: of the weights; "": the device's.
    """

    target: str
    prompts: str
    responses: str
    count: int
    temperatures: tuple[float, ...]
    max_new_tokens: int
    max_length: int
    batch: int
    rounds: int
    shard_tokens: int
    seed: int
    dtype: str


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Makes the data, prints the table and writes the results; see the module's docstring.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      No failed checks.

    Raises:
      ValueError: a setting, a prompt or an answer that can't be used.
    """
    settings = results.read(Settings, config)
    _check(settings)
    print(device.describe(), file=sys.stderr, flush=True)
    folder = pathlib.Path(workdir)
    tally = Tally()
    model = chats.find(settings.target)
    tokenizer = chats.load_tokenizer(settings.target, model)
    about = {
        "target": fingerprint.target(model),
        "tokenizer": fingerprint.tokenizer(model),
        "chat_template": fingerprint.text(tokenizer.get_chat_template()),
        "target_name": settings.target,
        "source": settings.responses or settings.prompts or "built-in",
        "counts": tally.counts,
    }
    if settings.responses:
        eos_ids = chats.eos_ids(model, tokenizer, loading.read_config(model).vocab_size)
        manifest = data.write(
            folder,
            tally.of(ready(settings, tokenizer, eos_ids)),
            about | {"sampling": "as found; counts by temperature"},
            shard_tokens=settings.shard_tokens,
        )
    else:
        taken = take(settings)
        about["sampling"] = {
            key: getattr(settings, key) for key in ("temperatures", "max_new_tokens", "seed")
        }
        with Journal(folder / JOURNAL, _identity(settings, taken, about)) as journal:
            tally.speeds = answer_all(settings, taken, journal)
            answered = from_journal(settings, taken, tokenizer, journal, tally.counts)
            manifest = data.write(
                folder, tally.of(answered), about, shard_tokens=settings.shard_tokens
            )
    rows = tally.rows()
    results.write(folder, settings, rows, [], manifest=manifest)
    print(f"{table(rows)}\n\n{summary(manifest)}\ndata: {folder}, {folder}/results.json")
    return []


# --- ready answers ---


def ready(settings: Settings, tokenizer: Any, eos_ids: Sequence[int]) -> Iterator[Answered]:
    """The file of ready answers, tokenised."""
    for found in _first(conversations.read_ready(settings.responses), settings.count):
        messages = [dict(message) for message in found.messages]
        if not found.finished:  # what a tokenizer makes of half a character
            messages[-1]["content"] = messages[-1]["content"].rstrip("\ufffd")
        try:
            turns = chat_mask.turns(tokenizer, messages, eos_ids, finished=found.finished)
        except ValueError as error:
            raise ValueError(f"{found.name}: {error}") from error
        finished = [True] * (len(turns) - 1) + [found.finished]
        yield Answered(found.name, found.temperature, chat_mask.join(turns), finished)


# --- the target's answers ---


def take(settings: Settings) -> list[Conversation]:
    """The conversations to answer; a conversation's number is its place here."""
    if settings.prompts:
        return list(_first(conversations.read(settings.prompts), settings.count))
    made = prompt_source.prompts(settings.count, settings.seed)
    return [
        Conversation(f"built-in prompt {number}", None, (fields["prompt"],))
        for number, fields in enumerate(made)
    ]


def answer_all(
    settings: Settings, taken: Sequence[Conversation], journal: Journal
) -> dict[float, Speed]:
    """Has the target answer what isn't in the journal yet, turn by turn.

    All first turns come first: a second one needs the answer to the first. Prompts of one
    temperature are decoded together, as a greedy batch needs no probabilities.

    Returns:
      By temperature, what decoding took in this run.
    """
    speeds: dict[float, Speed] = {}
    if all(_next_turn(journal, number, one) is None for number, one in enumerate(taken)):
        return speeds
    chat = chats.load(settings.target, settings.dtype or None)
    if settings.max_length > chat.config.max_positions:
        raise ValueError(
            f"config.max_length={settings.max_length}, but {settings.target} takes "
            f"{chat.config.max_positions} tokens at most"
        )
    progress = Progress(sum(len(one.turns) for one in taken), len(journal.answers))
    for turn in range(max(len(one.turns) for one in taken)):
        for temperature in dict.fromkeys(settings.temperatures):
            chosen = [
                number
                for number, one in enumerate(taken)
                if _temperature(settings, number) == temperature
                and _next_turn(journal, number, one) == turn
            ]
            begun, before = time.perf_counter(), progress.tokens
            for answer in _decode(settings, chat, taken, journal, chosen, turn, temperature):
                journal.add(answer)
                progress.add(len(answer.tokens))
            held = speeds.get(temperature, Speed(0, 0.0))
            speeds[temperature] = Speed(
                held.tokens + progress.tokens - before,
                held.seconds + time.perf_counter() - begun,
            )
    progress.end()
    return {temperature: speed for temperature, speed in speeds.items() if speed.tokens}


def _decode(
    settings: Settings,
    chat: chats.Chat,
    taken: Sequence[Conversation],
    journal: Journal,
    chosen: Sequence[int],
    turn: int,
    temperature: float,
) -> Iterator[Answer]:
    """The answers to one turn of some conversations, as they are finished."""

    def prompts() -> Iterator[Prompt]:
        for number in chosen:
            ids = _turns(chat.tokenizer, taken[number], number, journal, turn)[turn].prompt
            if len(ids) + settings.max_new_tokens <= settings.max_length:
                yield Prompt(number, ids)

    # A key a turn, into which the conversation's number is folded: an answer never depends on what
    # was or wasn't in the journal when the run began.
    key = jax.random.fold_in(jax.random.key(settings.seed, impl="threefry2x32"), turn)
    for done in specjax.generate_many(
        chat.target,
        chat.params,
        prompts(),
        max_new_tokens=settings.max_new_tokens,
        max_length=settings.max_length,
        batch=settings.batch,
        rounds=settings.rounds,
        sampling=specjax.Sampling(temperature=temperature),
        eos_ids=chat.eos_ids,
        key=key if temperature else None,
    ):
        yield Answer(done.number, turn, done.tokens, done.finish_reason == FinishReason.EOS)


def from_journal(
    settings: Settings,
    taken: Sequence[Conversation],
    tokenizer: Any,
    journal: Journal,
    counts: Counter[str],
) -> Iterator[Answered]:
    """The conversations with all their answers; ``counts`` gets the turns left out as too long."""
    for number, one in enumerate(taken):
        held = 0
        while (number, held) in journal.answers:
            held += 1
        counts["turns left out"] += len(one.turns) - held
        if not held:
            continue
        turns = _turns(tokenizer, one, number, journal, held - 1)
        turns = [
            turn._replace(answer=journal.answers[number, at].tokens)
            for at, turn in enumerate(turns)
        ]
        finished = [journal.answers[number, at].finished for at in range(held)]
        temperature = _temperature(settings, number)
        yield Answered(one.name, temperature, chat_mask.join(turns), finished)


def _turns(
    tokenizer: Any, one: Conversation, number: int, journal: Journal, last: int
) -> list[Turn]:
    """What the target is given in each turn up to ``last``; the answers are left empty."""
    messages = [{"role": "system", "content": one.system}] if one.system else []
    out = []
    for at, text in enumerate(one.turns[: last + 1]):
        messages.append({"role": "user", "content": text})
        try:
            out.append(Turn(chat_mask.prompt(tokenizer, messages), []))
        except ValueError as error:
            raise ValueError(f"{one.name}: {error}") from error
        if at < last:
            tokens = journal.answers[number, at].tokens
            said = tokenizer.decode(tokens, skip_special_tokens=True)
            messages.append({"role": "assistant", "content": said})
    return out


def _next_turn(journal: Journal, number: int, one: Conversation) -> int | None:
    """The first turn of a conversation that isn't answered; None when all are."""
    return next((at for at in range(len(one.turns)) if (number, at) not in journal.answers), None)


def _temperature(settings: Settings, number: int) -> float:
    return settings.temperatures[number % len(settings.temperatures)]


def _identity(
    settings: Settings, taken: Sequence[Conversation], about: Mapping[str, Any]
) -> dict[str, Any]:
    """What the answers depend on: a journal of anything else is no use."""
    spoken = json.dumps([[one.system, one.turns] for one in taken])
    names = ("temperatures", "max_new_tokens", "max_length", "seed", "dtype")
    return {  # settings first: they decide which prompts are taken, too
        **{name: about[name] for name in ("target", "tokenizer", "chat_template")},
        **{name: getattr(settings, name) for name in names},
        "list of prompts": fingerprint.text(spoken),
    }


def _first(items: Iterable[Any], count: int) -> Iterator[Any]:
    return itertools.islice(items, count or None)


def _check(s: Settings) -> None:
    least = {name: getattr(s, name) for name in ("max_new_tokens", "batch", "rounds")}
    results.at_least(1, **least, shard_tokens=s.shard_tokens)
    results.at_least(0, count=s.count, seed=s.seed)
    results.at_least(s.max_new_tokens + 1, max_length=s.max_length)
    if not s.temperatures:
        raise ValueError("config.temperatures is empty; give one or more, such as (0.0, 0.8)")
    for temperature in s.temperatures:
        if not (temperature >= 0 and math.isfinite(temperature)):
            raise ValueError(f"config.temperatures holds {temperature}; 0 (greedy) or more, finite")
    if s.prompts and s.responses:
        raise ValueError("config.prompts and config.responses are both given; drop one of them")
    if not s.prompts and not s.responses and not s.count:
        raise ValueError("config.count=0; the built-in prompts have no end: say how many")


if __name__ == "__main__":
    results.main(run)
