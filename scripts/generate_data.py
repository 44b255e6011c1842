"""Makes training data: prompts in, the target's own answers out, as token shards with a mask.

  python -m scripts.generate_data --config=configs/generate_data_smollm2.py --workdir=runs/data
      [--config.prompts=FILE|OWNER/NAME] [--config.responses=FILE] [--config.smoke]
      [--config.KEY=VALUE ...]

A head learns to guess what its target says, so the target itself answers (every turn of a
conversation), through ``specjax.generate_many``. Ready answers of the same target
(--config.responses) are only tokenised. Files: ``scripts/conversations.py`` says what they hold.

A run that is killed, however hard, goes on where it was when the command is given again: answers
are in ``journal.jsonl`` as soon as they are finished, and the same answers come out. The workdir
ends up with the shards and ``manifest.json`` (see ``train/data.py``) and results.json; data that
were in it stay whole until then.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import specjax
from eval import chat as chats
from eval import results
from scripts import conversations, prompt_source
from scripts.conversations import Conversation
from scripts.data_report import Answered, Progress, Speed, Tally, summary, table
from scripts.data_settings import FILTERS, Settings
from scripts.journal import Answer, Journal, has_answers
from specjax import FinishReason, device
from specjax.generate import Prompt
from specjax.models import ModelConfig, fingerprint, loading
from train import chat_mask, data
from train.chat_mask import Turn

JOURNAL = "journal.jsonl"


def run(config: Mapping[str, Any], workdir: str | pathlib.Path) -> list[str]:
    """Makes the data, prints the table and writes the results; see the module's docstring.

    Args:
      config: see ``Settings``.
      workdir: a folder; made if it isn't there.

    Returns:
      No failed checks.

    Raises:
      ValueError: a setting, a prompt or an answer that can't be used.
      RuntimeError: another run is at work in the workdir.
    """
    make(results.read(Settings, config), workdir)
    return []


def make(settings: Settings, workdir: str | pathlib.Path) -> pathlib.Path:
    """Makes the data; as ``run``.

    Returns:
      The folder of token shards, for ``train.data.read``.
    """
    settings = settings.shortened() if settings.smoke else settings
    settings.check()
    print(device.describe(), file=sys.stderr, flush=True)
    folder, tally = pathlib.Path(workdir), Tally()
    write = _write_ready if settings.responses else _write_generated
    manifest = write(settings, _speaker(settings), folder, tally)
    rows = tally.rows()
    results.write(folder, settings, rows, [], manifest=manifest)
    print(f"{table(rows)}\n\n{summary(manifest)}\ndata: {folder}, {folder}/results.json")
    return folder


class Speaker(NamedTuple):
    """What is known of the target without its weights being loaded.

    Attributes:
      folder: of the model.
      config: what it is made of.
      tokenizer: a transformers tokenizer with a chat template.
      eos_ids: ids that end an answer.
    """

    folder: pathlib.Path
    config: ModelConfig
    tokenizer: Any
    eos_ids: tuple[int, ...]


def _speaker(settings: Settings) -> Speaker:
    folder = chats.find(settings.target)
    config = loading.read_config(folder)
    tokenizer = chats.load_tokenizer(settings.target, folder)
    eos_ids = chats.eos_ids(folder, tokenizer, config.vocab_size)
    return Speaker(folder, config, tokenizer, eos_ids)


def _about(settings: Settings, speaker: Speaker, tally: Tally) -> dict[str, Any]:
    """What the manifest says of any data."""
    return {
        "target": fingerprint.target(speaker.folder),
        "tokenizer": fingerprint.tokenizer(speaker.folder),
        "chat_template": fingerprint.text(speaker.tokenizer.get_chat_template()),
        "target_name": settings.target,
        "source": settings.responses or settings.prompts or "built-in",
        "counts": tally.counts,
    }


# --- ready answers ---


def _write_ready(
    settings: Settings, speaker: Speaker, folder: pathlib.Path, tally: Tally
) -> dict[str, Any]:
    if has_answers(folder / JOURNAL):
        raise ValueError(
            f"{folder} holds answers of the target's own ({JOURNAL}), which those of "
            f"config.responses={settings.responses!r} would replace: take another --workdir, or "
            "delete that file"
        )
    about = _about(settings, speaker, tally)
    about["sampling"] = {"as found": True, "answers by temperature": tally.answers}
    answered = ready(settings, speaker.tokenizer, speaker.eos_ids)
    return data.write(folder, tally.of(answered), about, shard_tokens=settings.shard_tokens)


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


def _write_generated(
    settings: Settings, speaker: Speaker, folder: pathlib.Path, tally: Tally
) -> dict[str, Any]:
    # All that can be known before the journal is opened is checked before.
    if settings.max_length > speaker.config.max_positions:
        raise ValueError(
            f"config.max_length={settings.max_length}, but {settings.target} takes "
            f"{speaker.config.max_positions} tokens at most"
        )
    taken = take(settings)
    about = _about(settings, speaker, tally)
    names = ("temperatures", *FILTERS, "max_new_tokens", "seed")
    about["sampling"] = {name: getattr(settings, name) for name in names}
    with Journal(folder / JOURNAL, _identity(settings, speaker, taken, about)) as journal:
        tally.speeds = answer_all(settings, taken, journal)
        if journal.left_out and not journal.answers:
            raise ValueError(
                f"config.max_length={settings.max_length} has room for no prompt of the "
                f"{len(taken)} and its answer of config.max_new_tokens="
                f"{settings.max_new_tokens}: give a larger one, or shorter prompts"
            )
        answered = from_journal(settings, taken, speaker.tokenizer, journal, tally.counts)
        return data.write(folder, tally.of(answered), about, shard_tokens=settings.shard_tokens)


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
    progress = Progress(_total(journal, taken), len(journal.answers))
    for turn in range(max(len(one.turns) for one in taken)):
        for temperature in dict.fromkeys(settings.temperatures):
            chosen = [
                number
                for number, one in enumerate(taken)
                if settings.temperature(number) == temperature
                and _next_turn(journal, number, one) == turn
            ]
            begun, before = time.perf_counter(), progress.tokens
            prompts = _prompts(settings, chat.tokenizer, taken, journal, chosen, turn)
            for answer in _decode(settings, chat, taken, prompts, turn, temperature):
                journal.add(answer)
                progress.add(len(answer.tokens))
            progress.total = _total(journal, taken)
            held = speeds.get(temperature, Speed(0, 0.0))
            speeds[temperature] = Speed(
                held.tokens + progress.tokens - before,
                held.seconds + time.perf_counter() - begun,
            )
    progress.end()
    return {temperature: speed for temperature, speed in speeds.items() if speed.tokens}


def _prompts(
    settings: Settings,
    tokenizer: Any,
    taken: Sequence[Conversation],
    journal: Journal,
    chosen: Iterable[int],
    turn: int,
) -> Iterator[Prompt]:
    """What the target is to answer; the journal gets the conversations that grow too long here."""
    for number in chosen:
        ids = _turns(tokenizer, taken[number], number, journal, turn)[turn].prompt
        if len(ids) + settings.max_new_tokens <= settings.max_length:
            yield Prompt(number, ids)
        else:
            journal.leave_out(number, turn)


def _decode(
    settings: Settings,
    chat: chats.Chat,
    taken: Sequence[Conversation],
    prompts: Iterator[Prompt],
    turn: int,
    temperature: float,
) -> Iterator[Answer]:
    """The answers to one turn of some conversations, as they are finished."""
    # A key a turn, into which the conversation's number is folded: an answer never depends on what
    # was or wasn't in the journal when the run began.
    key = jax.random.fold_in(jax.random.key(settings.seed, impl="threefry2x32"), turn)
    try:
        for done in specjax.generate_many(
            chat.target,
            chat.params,
            prompts,
            max_new_tokens=settings.max_new_tokens,
            max_length=settings.max_length,
            batch=settings.batch,
            rounds=settings.rounds,
            sampling=settings.sampling(temperature),
            eos_ids=chat.eos_ids,
            key=key if temperature else None,
        ):
            yield Answer(done.number, turn, done.tokens, done.finish_reason == FinishReason.EOS)
    except _NamedError:
        raise
    except ValueError as error:
        raise ValueError(_named(str(error), taken)) from error


def from_journal(
    settings: Settings,
    taken: Sequence[Conversation],
    tokenizer: Any,
    journal: Journal,
    counts: Counter[str],
) -> Iterator[Answered]:
    """The conversations with all their answers; ``counts`` gets the turns left out as too long."""
    for number, one in enumerate(taken):
        held = _answerable(journal, number, one)
        counts["turns left out"] += len(one.turns) - held
        if not held:
            continue
        turns = _turns(tokenizer, one, number, journal, held - 1)
        turns = [
            turn._replace(answer=journal.answers[number, at].tokens)
            for at, turn in enumerate(turns)
        ]
        finished = [journal.answers[number, at].finished for at in range(held)]
        temperature = settings.temperature(number)
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
            raise _NamedError(f"{one.name}: {error}") from error
        if at < last:
            tokens = journal.answers[number, at].tokens
            said = tokenizer.decode(tokens, skip_special_tokens=True)
            messages.append({"role": "assistant", "content": said})
    return out


class _NamedError(ValueError):
    """Says already in which file and line."""


def _named(message: str, taken: Sequence[Conversation]) -> str:
    """A message of ``generate_many``, which calls a conversation "prompt" and its number."""
    return re.sub(r"\bprompt (\d+)", lambda found: taken[int(found[1])].name, message, count=1)


def _answerable(journal: Journal, number: int, one: Conversation) -> int:
    """How many turns of a conversation are answered in the end, as far as one can tell yet."""
    return journal.left_out.get(number, len(one.turns))


def _total(journal: Journal, taken: Sequence[Conversation]) -> int:
    return sum(_answerable(journal, number, one) for number, one in enumerate(taken))


def _next_turn(journal: Journal, number: int, one: Conversation) -> int | None:
    """The first turn of a conversation that is still to be answered; None when there is none."""
    turns = range(_answerable(journal, number, one))
    return next((at for at in turns if (number, at) not in journal.answers), None)


def _identity(
    settings: Settings,
    speaker: Speaker,
    taken: Sequence[Conversation],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """What the answers depend on: a journal of anything else is no use."""
    spoken = json.dumps([[one.system, one.turns] for one in taken])
    names = ("temperatures", *FILTERS, "max_new_tokens", "max_length", "seed")
    return {  # settings first: they decide which prompts are taken, too
        **{name: about[name] for name in ("target", "tokenizer", "chat_template")},
        # Of generation_config.json too, which no fingerprint covers.
        "eos_ids": speaker.eos_ids,
        **{name: getattr(settings, name) for name in names},
        # Resolved: the default is another one on another device.
        "dtype": str(jnp.dtype(settings.dtype or device.default_dtype())),
        "list of prompts": fingerprint.text(spoken),
    }


def _first(items: Iterable[Any], count: int) -> Iterator[Any]:
    return itertools.islice(items, count or None)


if __name__ == "__main__":
    results.main(run)
