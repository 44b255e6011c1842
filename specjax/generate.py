"""Decoding many prompts: ``generate_many``, whose batch stays full however long answers are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from specjax import stats, validate
from specjax.draft import Drafter, Params
from specjax.loop import (
    buffer_slots,
    cache_dtype,
    chunk_size,
    decode_state,
    learned_params,
    prefilled,
    prepare,
)
from specjax.state import BAD_LOGITS, LENGTH, RUNNING, Engine, FinishReason, Request, State
from specjax.target import Target
from specjax.verify import Verifier
from specjax.warp import Sampling

Learn = Callable[[Any, list[int]], Any]  # (drafter_params, an answer) -> drafter_params


class Prompt(NamedTuple):
    """A prompt with a number of its own.

    Attributes:
      number: what ``Finished`` calls it and its noise is keyed by, 0 to 2**32 - 1.
      tokens: ids.
    """

    number: int
    tokens: Sequence[int]


class Finished(NamedTuple):
    """An answer.

    Attributes:
      number: the prompt's.
      tokens: what was emitted; an EOS counts.
      finish_reason: EOS or LENGTH.
      rounds: target passes it took.
      drafted: draft tokens submitted.
      accepted: draft tokens kept.
    """

    number: int
    tokens: list[int]
    finish_reason: FinishReason
    rounds: int
    drafted: int
    accepted: int


def generate_many(
    target: Target,
    params: Any,
    prompts: Iterable[Sequence[int] | Prompt],
    *,
    max_new_tokens: int,
    max_length: int,
    batch: int = 32,
    drafter: Drafter | None = None,
    drafter_params: Any = None,
    sampling: Sampling | None = None,
    verifier: Verifier | None = None,
    eos_ids: Sequence[int] = (),
    key: Array | None = None,
    widths: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    rounds: int = 64,
    refill: int | None = None,
    learn: Learn | None = None,
) -> Iterator[Finished]:
    """Decodes any number of prompts, each answer given as soon as it is finished.

    A finished row of the batch takes the next prompt, so a long answer holds nobody up. A prompt's
    noise is ``fold_in(key, number)``: its answer depends neither on its row and neighbours nor on
    what was decoded before, and is the one ``specjax.sample`` gives for that key. To go on with a
    stopped run, give the remaining prompts with their own numbers (``Prompt``).

    The prompts may come from a lazy iterator; up to ``batch`` of them are taken ahead. Answers come
    in the order in which they are finished, which is the same each time. Refilling writes rows of
    the cache and of the drafter's state: every array in them must have the batch as its first axis.

    A drafter may learn from the answers: ``drafter=suffix(), drafter_params=past_outputs(32768),
    learn=remember`` (of ``specjax.drafters``) drafts from what was answered before. Distributions
    stay the target's, and so do answers that no draft can change: greedy ones, and those of match
    and coupled verification. Under token and block verification at a temperature above 0 an
    answer's tokens then depend on what came before it, in this order and batch, though its law
    doesn't: it is no longer the one ``specjax.sample`` gives for its key. The same goes for
    ``adaptive`` drafters, whose draft lengths a batch shares, and which keep what they have learned
    in a row when it takes its next prompt (and forget it when this iterator ends: ``sample`` hands
    it on).

    Args:
      target: the model.
      params: its parameters.
      prompts: lists of ids, numbered from 0, or ``Prompt``s.
      max_new_tokens: the budget of each prompt.
      max_length: slots of a row: the longest prompt, the budget, and the draft's N.
      batch: B, rows decoded at a time.
      drafter: what guesses; None decodes plainly, in the same loop.
      drafter_params: the drafter's parameters.
      sampling: how to sample, the same for all (numbers, no arrays); greedy by default.
      verifier: as for ``sample``.
      eos_ids: ids that end a row (emitted as its last token).
      key: one typed key; needed for sampling only.
      widths: as for ``sample``.
      dtype: of the caches; by default that of the parameters.
      rounds: most rounds between two looks at what is finished.
      refill: prompts prefilled together, and the finished rows that end those rounds early. By
        default chosen by the platform: where a wide pass costs more than a narrow one, rows are
        refilled one by one, at once.
      learn: ``(drafter_params, tokens) -> drafter_params``, called with every answer's tokens in
        the order in which answers are given, while the device waits; what it returns are the
        drafter's parameters from then on, of the same structure, shapes and dtypes. None: they
        stay.

    Returns:
      An iterator of the answers.

    Raises:
      ValueError: for bad arguments at once; while iterating, for costs of another batch
        (``adaptive``), and for a prompt that can't be decoded, or whose logits hold NaN, +inf or
        nothing finite; names its number. Answers that were finished by then are given first, also
        where the iterator of the prompts or ``learn`` raises.
    """
    batch, rounds = validate.count("batch", batch), validate.count("rounds", rounds)
    refill = None if refill is None else validate.count("refill", refill)
    if max_length is None:
        raise ValueError(
            "max_length=None; it must be an int here, where prompts come later: room for the "
            "longest prompt, max_new_tokens and the draft"
        )
    max_length = validate.count("max_length", max_length)
    _check_scalar(sampling, key)
    _check_learn(learn, drafter)
    engine, settings = prepare(
        target, drafter, drafter_params, sampling, verifier, key, widths, batch
    )
    budget = validate.count("max_new_tokens", max_new_tokens)
    buffer_slots(1, budget, engine.num_nodes, max_length)
    return _Rows(
        engine=engine,
        params=Params(params, drafter_params),
        sampling=settings,
        eos_ids=jnp.asarray(validate.ids(eos_ids, target.vocab_size)),
        key=key,
        budget=budget,
        slots=max_length,
        dtype=jnp.dtype(cache_dtype(params) if dtype is None else validate.floating(dtype)),
        batch=batch,
        rounds=rounds,
        refill=min(batch, refill or (1 if jax.default_backend() == "cpu" else 8)),
        learn=learn,
    ).run(_numbered(prompts))


class _Rows:
    """The rows of the batch: which prompt each holds, and what the device knows of them."""

    def __init__(
        self,
        *,
        engine: Engine,
        params: Params,
        sampling: Sampling,
        eos_ids: Array,
        key: Array | None,
        budget: int,
        slots: int,
        dtype: Any,
        batch: int,
        rounds: int,
        refill: int,
        learn: Learn | None,
    ) -> None:
        self._engine, self._params, self._dtype = engine, params, dtype
        self._learn = learn
        self._sampling, self._eos_ids, self._key = sampling, eos_ids, key
        self._budget, self._slots, self._rounds, self._refill = budget, slots, rounds, refill
        self._prompt: list[int | None] = [None] * batch  # the prompt of each row, if it has one
        self._number = np.zeros(batch, np.uint32)
        self._start = np.ones(batch, np.int32)
        self._state = self._empty()

    def run(self, prompts: Iterator[Prompt]) -> Iterator[Finished]:
        """Fills, decodes and yields until there are neither prompts nor unfinished rows."""
        finished: list[Finished] = []
        while True:
            try:
                self._learn_from(finished)
                self._fill(prompts)
                if busy := sum(number is not None for number in self._prompt):
                    self._decode(busy)
            except Exception:
                yield from finished
                raise
            # The device is at work by now; whoever takes the answers needn't hurry.
            yield from finished
            if not busy:
                return
            finished, bad = self._collect()
            if bad is not None:
                yield from finished
                raise bad

    def _learn_from(self, finished: list[Finished]) -> None:
        """Gives the drafter what it makes of the answers."""
        if self._learn is None:
            return
        for one in finished:
            before = self._params.drafter
            after = self._learn(before, list(one.tokens))  # the answer's own stay as they are
            _check_learned(before, after)
            self._params = self._params._replace(drafter=after)

    def _keep_learned(self, rows: list[int]) -> None:
        """What the drafter itself has learned in rows that are about to be refilled."""
        ended = np.isin(np.arange(len(self._prompt)), rows)
        after = learned_params(self._engine, self._params, self._state.drafter, ended)
        self._params = self._params._replace(drafter=after)

    def _fill(self, prompts: Iterator[Prompt]) -> None:
        """Gives the free rows their next prompts, a few rows at a time."""
        free = [row for row, number in enumerate(self._prompt) if number is None]
        for at in range(0, len(free), self._refill):
            rows = free[at : at + self._refill]
            new = list(itertools.islice(prompts, len(rows)))
            if not new:
                return
            tokens = np.zeros((self._refill, self._slots), np.int32)
            length = np.ones(self._refill, np.int32)
            where = np.full(self._refill, len(self._prompt), np.int32)  # no such row: left out
            for place, (row, prompt) in enumerate(zip(rows, new, strict=False)):
                ids = self._checked(prompt)
                tokens[place, : len(ids)] = ids
                length[place], where[place] = len(ids), row
                self._prompt[row], self._number[row] = prompt.number, prompt.number
                self._start[row] = len(ids)
            self._state = _refill(
                self._engine,
                chunk_size(self._slots),
                self._dtype,
                self._params,
                self._state,
                where,
                tokens,
                length,
            )

    def _decode(self, busy: int) -> None:
        """Starts a few rounds; they end early when as many rows are free as are refilled at once.

        Near the end, when there are no more prompts, each free row stays free.
        """
        enough = len(self._prompt) - busy + min(self._refill, busy)
        request = Request(
            # Copies: jax may read numpy's memory later, when the next prompt is in it.
            start=jnp.array(self._start),
            end=jnp.array(self._start + self._budget),
            keys=self._keys(),
            sampling=self._sampling,
            eos_ids=self._eos_ids,
        )
        limits = jnp.asarray(self._rounds, jnp.int32), jnp.asarray(enough, jnp.int32)
        self._state = decode_state(self._engine, self._params, request, self._state, *limits)

    def _collect(self) -> tuple[list[Finished], ValueError | None]:
        """The answers of the rows that are finished by now, which are free then; what is wrong."""
        reasons = np.asarray(self._state.reason)
        rows = [
            row
            for row, number in enumerate(self._prompt)
            if number is not None and reasons[row] != RUNNING
        ]
        if not rows:
            return [], None
        tokens, length, counted = jax.device_get(
            (self._state.tokens, self._state.length, self._state.stats)
        )
        self._keep_learned(rows)
        out, bad = [], None
        for row in rows:
            number = self._prompt[row]
            assert number is not None
            emitted = tokens[row, self._start[row] : length[row]].tolist()
            if reasons[row] == BAD_LOGITS:
                bad = bad or ValueError(
                    "the target's logits hold NaN, +inf or nothing finite in prompt "
                    f"{number} after {len(emitted)} new tokens; check its parameters and dtype"
                )
                continue
            counts = (counted.rounds[row], counted.drafted[row], counted.accepted[row].sum())
            out.append(Finished(number, emitted, FinishReason(reasons[row]), *map(int, counts)))
            self._prompt[row] = None
        return out, bad

    def _checked(self, prompt: Prompt) -> np.ndarray:
        vocab_size = self._engine.target.vocab_size
        tokens, _ = validate.prompts([prompt.tokens], None, vocab_size, first=prompt.number)
        try:
            buffer_slots(tokens.shape[1], self._budget, self._engine.num_nodes, self._slots)
        except ValueError as error:
            raise ValueError(f"prompt {prompt.number}: {error}") from None
        return tokens[0]

    def _keys(self) -> Array:
        if self._key is None:  # greedy decoding: never read
            return validate.row_keys(None, len(self._prompt))
        return _fold(self._key, jnp.array(self._number))

    def _empty(self) -> State:
        """A batch of finished rows; each holds one token that nobody reads.

        Zeros are a legal state of a finished row. Only shapes are computed here.
        """
        batch, slots = len(self._prompt), self._slots

        def shapes(rows: int) -> State:
            return jax.eval_shape(
                partial(prefilled, self._engine, chunk_size(slots), self._dtype),
                self._params,
                jax.ShapeDtypeStruct((rows, slots), jnp.int32),
                jax.ShapeDtypeStruct((rows,), jnp.int32),
            )

        state = shapes(batch)
        for what, part in (("cache of the target", state.cache), ("drafter", state.drafter)):
            for leaf in jax.tree.leaves(part):
                if leaf.shape[:1] != (batch,):
                    raise ValueError(
                        f"the {what} has an array of shape {leaf.shape} in its state; rows can be "
                        f"refilled only where every array has the batch ({batch}) as first axis"
                    )
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
        ones = jnp.ones([batch], jnp.int32)
        return state._replace(length=ones, reason=LENGTH * ones)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(4,))
def _refill(
    engine: Engine,
    chunk: int,
    dtype: Any,
    params: Params,
    state: State,
    rows: Array,
    tokens: Array,
    length: Array,
) -> State:
    """Prefills a few prompts and puts them into rows of the batch; no other row is touched.

    Args:
      engine: the static half.
      chunk: tokens a prefill pass takes.
      dtype: of the caches.
      params: parameters of target and drafter.
      state: of the batch.
      rows: int32 ``[P]``, the row of each prompt; B leaves it out.
      tokens: int32 ``[P, S]``.
      length: int32 ``[P]``.

    Returns:
      The state of the batch.
    """
    new = prefilled(engine, chunk, dtype, params, tokens, length)

    def put(whole: Array, part: Array) -> Array:
        return whole.at[rows].set(part, mode="drop")

    # Passes by width are the batch's, not a row's.
    counters = *jax.tree.map(put, state.stats[:-1], new.stats[:-1]), state.stats.widths
    parts = *jax.tree.map(put, state[:-1], new[:-1]), stats.Stats(*counters)
    return State(*parts)


@jax.jit
def _fold(key: Array, numbers: Array) -> Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def _numbered(prompts: Iterable[Sequence[int] | Prompt]) -> Iterator[Prompt]:
    for at, item in enumerate(prompts):
        prompt = item if isinstance(item, Prompt) else Prompt(at, item)
        number = prompt.number
        whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not (whole and 0 <= number < 2**32):
            raise ValueError(f"a prompt has number {number!r}; it must be an int, 0 to 2**32 - 1")
        yield prompt


def _check_learn(learn: Learn | None, drafter: Drafter | None) -> None:
    if learn is not None and not callable(learn):
        raise ValueError(
            f"learn={learn!r}; it must be a function of drafter_params and an answer's tokens, "
            "such as drafters.remember"
        )
    if learn is not None and drafter is None:
        raise ValueError("learn without a drafter; pass drafter=..., such as drafters.suffix()")


def _check_learned(before: Any, after: Any) -> None:
    """Programs are compiled for a structure, its shapes and dtypes."""
    was: Any = jax.tree.structure(before)
    is_now: Any = jax.tree.structure(after)
    if is_now != was:
        raise ValueError(f"learn made {is_now} of drafter_params {was}; their structure must stay")
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        shapes = np.shape(old), np.shape(new)
        dtypes = jnp.result_type(old), jnp.result_type(new)
        if shapes[0] != shapes[1] or dtypes[0] != dtypes[1]:
            raise ValueError(
                f"learn made {dtypes[1]} {shapes[1]} of {dtypes[0]} {shapes[0]} in drafter_params; "
                "shapes and dtypes must stay, as drafters.remember keeps them"
            )


def _check_scalar(sampling: Sampling | None, key: Array | None) -> None:
    for name, value in zip(Sampling._fields, sampling or (), strict=False):
        shape = np.asarray(value).shape
        if shape:
            raise ValueError(
                f"{name} has shape {shape}; generate_many takes one number for all prompts (rows "
                "change theirs): call it once for each setting"
            )
    if key is not None:
        validate.row_keys(key, np.shape(key)[0] if np.ndim(key) else 1)
        if key.ndim:
            raise ValueError(
                f"key has shape {key.shape}; it must be one key, which each prompt's number is "
                "folded into"
            )
