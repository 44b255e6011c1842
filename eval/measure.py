"""The measurement itself: every prompt in every mode, round-robin, warm-up outside.

A noisy machine slows what runs at about the same time alike, so the modes take turns within each
repeat of a prompt, and a speed-up is a ratio of two decodings that stood next to each other.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from eval import timing
from eval.chat import Chat
from eval.modes import Mode
from eval.prompts import ARTICLE, Prompt
from eval.settings import Settings
from eval.timing import CompileLog, Decoding, DraftClock, DraftTime, PassClock
from specjax import stats

_BLOCK = 256  # buffers are a multiple of this; slots that are not filled cost nothing


class Trial(NamedTuple):
    """One decoding and what passes took at that time.

    Attributes:
      repeat: its number; equal numbers of a prompt in two modes are a pair.
      decoding: the decoding.
      passes: seconds of a target pass, by width.
      drafts: what the drafter's own work takes in a round, drafter by drafter (see
        ``Mode.alone``).
    """

    repeat: int
    decoding: Decoding
    passes: dict[int, float]
    drafts: tuple[DraftTime, ...]


class Cell(NamedTuple):
    """One prompt in one mode.

    Attributes:
      prompt: the prompt; a later turn has a name of its own.
      ids: what the model was given.
      mode: how it decoded.
      trials: one a repeat.
      bursts: sizes of the bursts of a streamed answer and the pauses between them; None where the
        prompt was not streamed.
    """

    prompt: Prompt
    ids: list[int]
    mode: Mode
    trials: list[Trial]
    bursts: tuple[list[int], list[float]] | None

    @property
    def tokens(self) -> list[int]:
        """What came out the first time."""
        return self.trials[0].decoding.tokens


def plan(
    settings: Settings, modes: Sequence[Mode], prompts: Sequence[Prompt]
) -> list[tuple[Prompt, list[Mode]]]:
    """Which modes each prompt is measured in.

    The copy of the target and sampling run on fewer prompts, to save time; see ``Settings``.
    """
    rank: collections.Counter[str] = collections.Counter()
    out = []
    for index, prompt in enumerate(prompts):
        few = settings.sampled_per_category
        sampled = not few or rank[prompt.category] < few or prompt.name in ARTICLE
        rank[prompt.category] += 1
        chosen = [
            mode
            for mode in modes
            if (mode.greedy or sampled) and not (mode.is_copy and index >= settings.copy_prompts)
        ]
        out.append((prompt, chosen))
    return out


def budget_of(settings: Settings, prompt: Prompt) -> int:
    """Most new tokens of a prompt."""
    article = prompt.name in ARTICLE
    return settings.article_new_tokens if article else settings.max_new_tokens


def capacity(
    settings: Settings, chat: Chat, modes: Sequence[Mode], prompts: Sequence[Prompt]
) -> int:
    """Slots of the one buffer that all prompts share.

    Raises:
      ValueError: a prompt and its answer are longer than the model's context.
    """
    most = 0
    for prompt in prompts:
        turns = prompt.turns[: settings.turns]
        messages = [text for turn in turns for text in (turn, "")][:-1]
        # Earlier answers are encoded again, which may take a few tokens more than they had.
        needed = len(chat.encode(messages)) + len(turns) * (budget_of(settings, prompt) + 16)
        if needed > chat.config.max_positions:
            raise ValueError(
                f"prompt {prompt.name!r} needs up to {needed} tokens with its answers, but "
                f"{chat.name} takes {chat.config.max_positions}; remove it, or lower "
                "config.max_new_tokens or config.turns"
            )
        most = max(most, needed)
    return -(-(most + max(mode.k for mode in modes)) // _BLOCK) * _BLOCK


class Bench:
    """A model, its modes, and one buffer size for all prompts: one compiled program a mode."""

    def __init__(
        self, settings: Settings, chat: Chat, modes: Sequence[Mode], prompts: Sequence[Prompt]
    ):
        self._settings, self._chat, self.modes = settings, chat, list(modes)
        self._plan = plan(settings, modes, prompts)
        self._log = CompileLog()
        self._arguments: dict[str, Any] = {
            "max_length": capacity(settings, chat, modes, prompts),
            "eos_ids": () if settings.synthetic_alpha is not None else chat.eos_ids,
        }
        self.recompiled: list[str] = []  # programs compiled while measuring: there must be none

    @property
    def total(self) -> int:
        """Decodings that ``run`` will measure (later turns not counted)."""
        return sum(self._repeats(p, mode) for p, modes in self._plan for mode in modes)

    def warm_up(self, done: Callable[[], Any] = lambda: None) -> dict[Mode, float]:
        """Compiles everything that will run.

        Args:
          done: called after each mode.

        Returns:
          Seconds of tracing and compiling by mode: its first call less its second.
        """
        prompt = self._chat.encode(self._plan[0][0].turns[:1])
        seconds, widths = {}, {1}
        for mode in self.modes:
            begun = time.perf_counter()
            widths |= set(self._decode(mode, prompt, 0, 0, 3).widths)
            middle = time.perf_counter()
            self._decode(mode, prompt, 0, 0, 3)
            seconds[mode] = max(2 * middle - begun - time.perf_counter(), 0.0)
            self._stream(mode, prompt, 0, 3)
            if mode.learn:
                mode.learn(mode.drafter_params, prompt)
            done()
        target, params, slots = self._chat.target, self._chat.params, self._arguments["max_length"]
        self._clock = PassClock(target, params, sorted(widths), slots)
        # At one length, for what a drafter does hardly depends on it.
        middle = len(prompt) + budget_of(self._settings, self._plan[0][0]) // 2
        self._draft_clocks: dict[Any, DraftClock] = {}
        for mode in self.modes:
            for one in mode.alone:
                if _work(one) not in self._draft_clocks:
                    budget = {"max_new_tokens": timing.draft_slots(one.k)}
                    apart = list(range(min(middle, slots - budget["max_new_tokens"] - one.k)))
                    clock = DraftClock(target, params, one, apart, **budget, **self._arguments)
                    self._draft_clocks[_work(one)] = clock
        return seconds

    def run(self, done: Callable[[str], Any] = lambda name: None) -> list[Cell]:
        """Measures every prompt in every mode of its own.

        Args:
          done: called after each decoding, with the prompt's name.

        Returns:
          The cells, prompt by prompt; plain decoding first within a temperature.
        """
        compiled, cells = len(self._log.programs), []
        for index, (prompt, modes) in enumerate(self._plan):
            messages: list[str] = []
            for turn, text in enumerate(prompt.turns[: self._settings.turns]):
                messages.append(text)
                one = prompt if turn == 0 else prompt._replace(name=f"{prompt.name}/{turn + 1}")
                new = self._measure(index, one, self._chat.encode(messages), modes, done)
                messages.append(self._chat.decode(new[0].tokens))
                cells += new
        self.recompiled = self._log.programs[compiled:]
        return cells

    def _measure(
        self, index: int, prompt: Prompt, ids: list[int], modes: list[Mode], done: Callable
    ) -> list[Cell]:
        trials: dict[Mode, list[Trial]] = {mode: [] for mode in modes}
        new = budget_of(self._settings, prompt)
        middle = len(ids) + new / 2
        for repeat in range(max(self._repeats(prompt, mode) for mode in modes)):
            now = [mode for mode in modes if repeat < self._repeats(prompt, mode)]
            passes = self._clock(middle)
            works = {mode: [_work(one) for one in mode.alone] for mode in now}
            wanted = {work for own in works.values() for work in own}
            drafts = {work: self._draft_clocks[work]() for work in wanted}
            # Each repeat begins with another mode: none profits from its place.
            shift = (index + repeat) % len(now)
            for mode in now[shift:] + now[:shift]:
                decoding = self._decode(mode, ids, index, repeat, new)
                own = tuple(drafts[work] for work in works[mode])
                trials[mode].append(Trial(repeat, decoding, passes, own))
                done(prompt.name)
        streamed = prompt.name in ARTICLE or len(self._plan) <= len(ARTICLE)
        bursts = {
            # The pauses of some rounds say as much as those of all; a refused draft must be found.
            mode: self._stream(mode, ids, index, new if mode.is_copy else self._short(new))
            if _wants_stream(mode, own, streamed)
            else None
            for mode, own in trials.items()
        }
        cells = [Cell(prompt, ids, mode, trials[mode], bursts[mode]) for mode in modes]
        for cell in cells:  # now, so that no prompt finds its own output
            cell.mode.drafter_params = cell.trials[0].decoding.drafter_params
            if cell.mode.learn:
                cell.mode.drafter_params = cell.mode.learn(cell.mode.drafter_params, cell.tokens)
        return cells

    def _short(self, budget: int) -> int:
        return min(budget, self._settings.max_new_tokens)

    def _repeats(self, prompt: Prompt, mode: Mode) -> int:
        if mode.is_copy:  # a check, not a speed-up
            return 1
        article = prompt.name in ARTICLE
        return self._settings.article_repeats if article else self._settings.repeats

    def _decode(self, mode: Mode, ids: list[int], index: int, repeat: int, budget: int) -> Decoding:
        what = self._chat.target, self._chat.params, mode, ids, self._key(index, repeat)
        return timing.run_once(*what, max_new_tokens=budget, **self._arguments)

    def _stream(
        self, mode: Mode, ids: list[int], index: int, budget: int
    ) -> tuple[list[int], list[float]]:
        what = self._chat.target, self._chat.params, mode, ids, self._key(index, 0)
        return timing.stream_once(*what, max_new_tokens=budget, **self._arguments)

    def _key(self, index: int, repeat: int) -> jax.Array:
        """Noise of a prompt and repeat; the same in all modes and on all machines."""
        return jax.random.fold_in(jax.random.key(self._settings.seed), 1000 * index + repeat)


def _work(mode: Mode) -> tuple[Any, ...]:
    """What a round of whole drafts is, the same for modes that differ in thresholds only.

    A run has one head of a kind, one draft model and one corpus, so names tell them apart.
    """
    assert mode.drafter is not None
    return mode.drafter.name, mode.k, mode.greedy


def _wants_stream(mode: Mode, trials: Sequence[Trial], streamed: bool) -> bool:
    """A copy's pauses interest nobody; where one of its drafts was refused, the place does."""
    if not mode.is_copy:
        return streamed
    return any(stats.acceptance_rate(trial.decoding.stats) < 1 for trial in trials)
