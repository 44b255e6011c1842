"""The measurement of ``eval.batch_sweep``: modes that take turns on batches of prompts.

A decoding takes seconds, in which a busy machine changes its speed. So the decodings of all modes
stand next to each other, each a few rounds on at a time, and what slows one down slows them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from eval.chat import Chat
from eval.models import HEADS, Head
from eval.modes import PLAIN, Mode, sampling_of
from eval.synthetic import synthetic
from eval.timing import CompileLog
from specjax import verify
from specjax.costs import CostTable
from specjax.draft import Drafter
from specjax.loop import chosen_widths, decode_state
from specjax.sample import Run, check_logits, learned
from specjax.state import FinishReason
from specjax.stats import Stats

if TYPE_CHECKING:
    from eval.batch_sweep import Settings

ADAPTIVE = "adaptive"
_SLICE_S = 0.2  # seconds of a turn, about: far longer than the call takes


class Trial(NamedTuple):
    """One decoding of a batch.

    Attributes:
      tokens: int32 ``[B, max_new_tokens]``, what came out.
      seconds: until every row was finished; without prefill.
      full_s: until the first row was: with speculation rows finish at different times, and those
        that are finished still cost what they did.
      full_tokens: what all rows had emitted by then.
      stats: the run's counters, as numpy arrays.
      drafter_params: those for the next batch, with what the drafter has learned.
    """

    tokens: np.ndarray
    seconds: float
    full_s: float
    full_tokens: int
    stats: Stats
    drafter_params: Any = None

    @property
    def tokens_per_second(self) -> float:
        """Of the whole batch, to the end."""
        return self.tokens.size / self.seconds

    @property
    def full_tokens_per_second(self) -> float:
        """Of the whole batch, while it is full."""
        return self.full_tokens / self.full_s


class Cell(NamedTuple):
    """A batch size at a context, and an acceptance rate.

    Attributes:
      batch: rows.
      context: tokens of each prompt.
      alpha: the rate at which drafts were accepted, whatever they were; None: verified.
      prompts: the ids of each repeat's rows.
      trials: by mode, plain decoding first, one a repeat; equal places are a pair.
    """

    batch: int
    context: int
    alpha: float | None
    prompts: list[list[list[int]]]
    trials: dict[Mode, list[Trial]]


class Bench:
    """A target with a head, and what is asked of them."""

    def __init__(self, settings: Settings, chat: Chat, head: Head, texts: Sequence[Sequence[int]]):
        """Args are the settings, the models, and encoded prompts (none: random ids)."""
        self._s, self._chat, self._head = settings, chat, head
        order = np.random.default_rng(settings.seed).permutation(len(texts))
        self._texts = [list(texts[i]) for i in order]
        kind = HEADS[head.mode]
        self._params = kind.params(head.config, head.weights, head.ids, chat.params)
        self._rounds = 1  # of a turn
        self._log = CompileLog()
        self._alphas = settings.synthetic_alpha or (None,)
        self.compile_s: dict[Mode, float] = {}
        self.recompiled: list[str] = []  # programs compiled while measuring: there must be none

    @property
    def total(self) -> int:
        """Steps that ``calibrate`` and ``run`` take: calibrations, compilations, decodings."""
        s = self._s
        cells = len(s.contexts) * len(self._alphas)
        decodings = sum(map(s.repeats_of, s.batches)) * cells * s.num_modes
        programs = 1 + (s.num_modes - 1) * len(self._alphas)
        return len(s.batches) * (1 + programs) + decodings

    def calibrate(self, done: Callable[[str], Any] = lambda what: None) -> CostTable:
        """What rounds cost here at every batch size; one table for all acceptance rates."""
        s = self._s
        contexts = s.contexts[0], s.contexts[-1] + s.max_new_tokens
        # Costs don't depend on how much is accepted.
        rule = self._rule(None if self._alphas == (None,) else 0.5)
        drafter, sampling = self._drafter(s.ks[-1]), sampling_of(s.temperature)
        return specjax.calibrate(
            self._chat.target, self._chat.params, drafter, self._params,
            batches=s.batches, contexts=contexts, sampling=sampling, verifier=rule,
            # Those of the run, which may be more than those of the drafter alone.
            widths=chosen_widths(None, specjax.adaptive(drafter)),
            fresh=s.fresh, progress=lambda what: done(f"calibrating, {what}"),
        )  # fmt: skip

    def run(self, table: CostTable, done: Callable[[str], Any] = lambda what: None) -> list[Cell]:
        """Measures everything.

        Args:
          table: what ``calibrate`` gave.
          done: called after each step, with a few words.

        Returns:
          The cells, by batch, context and acceptance rate.
        """
        cells = []
        for batch in self._s.batches:
            plain = Mode(PLAIN, self._s.temperature, self._rule(None))
            groups = [[plain, *self._drafting(table, batch, alpha)] for alpha in self._alphas]
            for mode in [plain, *(mode for modes in groups for mode in modes[1:])]:
                self.compile_s[mode] = self._warm_up(mode, batch)
                done(f"compiling, batch {batch}")
            compiled = len(self._log.programs)
            for context in self._s.contexts:
                for alpha, modes in zip(self._alphas, groups, strict=True):
                    cells.append(self._measure(batch, context, alpha, modes, done))
            self.recompiled += self._log.programs[compiled:]
        return cells

    def prompts(self, batch: int, context: int, repeat: int) -> list[list[int]]:
        """The ids of a repeat's rows, ``context`` each.

        A text that is shorter follows on others, one that is longer lacks its beginning: what is
        answered is always its end.
        """
        rows = []
        for number in range(repeat * batch, (repeat + 1) * batch):
            if not self._texts:
                rng, vocab = np.random.default_rng((self._s.seed, number)), self._chat.config
                rows.append(rng.integers(vocab.vocab_size, size=context).tolist())
                continue
            ids: list[int] = []
            at = number
            while len(ids) < context:
                ids, at = self._texts[at % len(self._texts)] + ids, at - 1
            rows.append(ids[-context:])
        return rows

    def _drafter(self, k: int) -> Drafter:
        return HEADS[self._head.mode].drafter(self._head.config, k)

    def _rule(self, alpha: float | None) -> verify.Verifier:
        if alpha is not None:
            return synthetic(alpha, greedy=self._s.temperature == 0)
        return verify.BY_NAME[self._s.verifier] if self._s.temperature else verify.greedy

    def _drafting(self, table: CostTable, batch: int, alpha: float | None) -> list[Mode]:
        rule, params = self._rule(alpha), self._params
        modes = [
            Mode(f"k={k}", self._s.temperature, rule, self._drafter(k), params) for k in self._s.ks
        ]
        longest = self._drafter(self._s.ks[-1])
        target = self._chat.target, self._chat.params
        given = specjax.adaptive_params(*target, [longest], [params], [table], batch=batch)
        chosen = specjax.adaptive(longest)
        return [*modes, Mode(ADAPTIVE, self._s.temperature, rule, chosen, given)]

    def _warm_up(self, mode: Mode, batch: int) -> float:
        """Compiles a mode; seconds of it: its first call less its second."""
        rows, seconds = self.prompts(batch, self._s.contexts[0], 0), []
        for _ in range(2):
            begun = time.perf_counter()
            [trial] = self._race([mode], rows, 0, min(4, self._s.max_new_tokens), 1)
            seconds.append(time.perf_counter() - begun)
        if mode.drafter is None:
            round_s = trial.seconds / int(trial.stats.widths.sum())
            self._rounds = max(1, math.ceil(_SLICE_S / round_s))
        return max(seconds[0] - seconds[1], 0.0)

    def _measure(
        self,
        batch: int,
        context: int,
        alpha: float | None,
        modes: Sequence[Mode],
        done: Callable[[str], Any],
    ) -> Cell:
        repeats = self._s.repeats_of(batch)
        prompts = [self.prompts(batch, context, repeat) for repeat in range(repeats)]
        trials: dict[Mode, list[Trial]] = {mode: [] for mode in modes}
        hopeful = [mode.drafter_params for mode in modes]
        for repeat, rows in enumerate(prompts):
            raced = self._race(modes, rows, repeat, self._s.max_new_tokens, self._rounds)
            for mode, trial in zip(modes, raced, strict=True):
                trials[mode].append(trial)
                mode.drafter_params = trial.drafter_params  # the next repeat knows what this saw
                done(f"batch {batch}, context {context}")
        for mode, given in zip(modes, hopeful, strict=True):
            mode.drafter_params = given
        return Cell(batch, context, alpha, prompts, trials)

    def _race(
        self, modes: Sequence[Mode], rows: list[list[int]], repeat: int, budget: int, rounds: int
    ) -> list[Trial]:
        """Decodes a batch in each mode, every row to its budget, ``rounds`` at a time."""
        # The same in all modes, and in no two cells: what was learned may depend on noise.
        key = jax.random.key(self._s.seed)
        for number in (repeat, len(rows), len(rows[0])):
            key = jax.random.fold_in(key, number)
        raced = []
        for mode in modes:
            run = specjax.start(
                self._chat.target, self._chat.params, rows, **mode.arguments(key),
                max_new_tokens=budget, max_length=self._s.slots,
            )  # fmt: skip
            jax.block_until_ready(run.state)
            raced.append(_Decoding(run))
        turn = repeat
        while any(one.running for one in raced):
            # Each turn begins with another mode: none profits from its place.
            first = turn % len(raced)
            for one in (*raced[first:], *raced[:first]):
                if one.running:
                    one.go_on(rounds)
            turn += 1
        return [one.finish(budget) for one in raced]


class _Decoding:
    """A decoding that is timed a few rounds at a time."""

    def __init__(self, run: Run):
        self._run, self._start = run, np.asarray(run.request.start)
        self._seconds = 0.0
        self._full: tuple[float, int] | None = None  # when the first row was finished
        self.running = True

    def go_on(self, rounds: int) -> None:
        """Runs so many rounds, or until the first row is finished, or all are."""
        run, batch = self._run, len(self._start)
        numbers = rounds, batch if self._full else 1
        limits = (jnp.asarray(number, jnp.int32) for number in numbers)
        begun = time.perf_counter()
        state = decode_state(run.engine, run.params, run.request, run.state, *limits)
        length = np.asarray(state.length)  # waits for it
        self._seconds += time.perf_counter() - begun
        self._run = run._replace(state=state)
        reason = np.asarray(state.reason)
        if self._full is None and np.any(reason != FinishReason.RUNNING):
            self._full = self._seconds, int(np.sum(length - self._start))
        self.running = bool(np.any(reason == FinishReason.RUNNING))

    def finish(self, budget: int) -> Trial:
        """What came of it.

        Raises:
          ValueError: the model's logits were no distribution.
        """
        check_logits(self._run)
        assert self._full is not None
        tokens, stats = jax.device_get((self._run.state.tokens, self._run.state.stats))
        start = self._start[0]  # all prompts are of one length
        tokens = tokens[:, start : start + budget]
        return Trial(tokens, self._seconds, *self._full, stats, learned(self._run))
