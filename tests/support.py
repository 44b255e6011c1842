"""What several tests of the core share: references in numpy, a chi-square test, small drafters.

The references know nothing of caches, rounds or jax: a scripted target's logits are a function of
the prefix alone, so plain decoding of it fits in a few lines.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import Array

import specjax
from eval import toy
from specjax import cache as kv
from specjax import prospects
from specjax.by_cost import by_cost
from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.drafters import (
    CorpusTable,
    MedusaParams,
    PastOutputs,
    corpus_table,
    past_outputs,
    remember,
)
from specjax.heads import MedusaConfig
from specjax.policies import Outcome
from specjax.prospects import Costs
from specjax.target import Target

SIGNIFICANCE = 1e-6


# --- scripted targets, in numpy ---


def _scramble(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def logits_after(table: Any, prefixes: Any) -> np.ndarray:
    """What a scripted target says after each prefix: ``[..., n]`` ids to ``[..., V]``."""
    table, tokens = np.asarray(table), np.asarray(prefixes, np.uint32)
    positions = np.arange(tokens.shape[-1], dtype=np.uint32)
    mixed = _scramble(tokens * np.uint32(0x9E3779B1) + _scramble(positions + np.uint32(1)))
    row = _scramble(np.sum(mixed, -1, dtype=np.uint32, keepdims=True))[..., 0]
    return table[row % np.uint32(len(table))]


def plain_greedy(
    table: Any, prompt: Sequence[int], count: int, eos: Sequence[int] = ()
) -> list[int]:
    """Plain greedy decoding, up to and including the first EOS."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(logits_after(table, tokens))))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


class Round(NamedTuple):
    """One greedy round, as it should go."""

    drafted: int
    accepted: int
    emitted: int


def greedy_rounds(
    table: Any, draft_table: Any, prompt: Sequence[int], k: int, budget: int
) -> list[Round]:
    """The rounds of greedy decoding with a draft model that makes no mistake with its cache."""
    tokens, end, rounds = list(prompt), len(prompt) + budget, []
    while len(tokens) < end:
        drafted = min(k, end - len(tokens) - 1)
        draft = plain_greedy(draft_table, tokens, drafted)
        truth = plain_greedy(table, tokens, drafted + 1)
        accepted = 0
        while accepted < drafted and draft[accepted] == truth[accepted]:
            accepted += 1
        tokens += truth[: accepted + 1]
        rounds.append(Round(drafted, accepted, accepted + 1))
    return rounds


# --- warping, in numpy ---


def warp(
    logits: Any,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> np.ndarray:
    """Temperature, top-k, top-p, min-p by sorting, float64 ``[..., V]``; ties stay."""
    logits = np.asarray(logits, np.float64)
    flat = [
        _warp_row(row, temperature, top_k, top_p, min_p)
        for row in logits.reshape(-1, logits.shape[-1])
    ]
    return np.reshape(flat, logits.shape)


def _warp_row(
    x: np.ndarray, temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> np.ndarray:
    if temperature == 0:
        return np.eye(len(x))[np.argmax(x)]
    x = (x - np.max(x)) / temperature
    if top_k is not None:
        x = np.where(x >= np.sort(x)[::-1][min(top_k, len(x)) - 1], x, -np.inf)
    probs = np.exp(x) / np.sum(np.exp(x))
    keep = np.ones(len(x), bool)
    if top_p is not None:
        falling = np.sort(probs)[::-1]
        count = int(np.searchsorted(np.cumsum(falling), top_p)) + 1
        keep &= probs >= falling[min(count, len(x)) - 1]
    if min_p is not None:
        keep &= probs >= min_p * np.max(probs)
    probs = np.where(keep, probs, 0)
    return probs / np.sum(probs)


# --- statistics ---


def joint_law(
    table: Any, prompt: Sequence[int], count: int, eos: int | None = None, **settings: Any
) -> np.ndarray:
    """The law of the first ``count`` tokens, ``[V ** count]``; an EOS repeats for ever."""
    vocab = np.asarray(table).shape[1]
    law, prefixes = np.ones(1), np.asarray([prompt])
    ended = np.zeros(1, bool)
    for _ in range(count):
        probs = warp(logits_after(table, prefixes), **settings)
        if eos is not None:
            probs = np.where(ended[:, None], np.eye(vocab)[eos], probs)
        law = (law[:, None] * probs).reshape(-1)
        ids = np.tile(np.arange(vocab), len(prefixes))
        prefixes = np.concatenate([np.repeat(prefixes, vocab, 0), ids[:, None]], 1)
        ended = np.repeat(ended, vocab) | (ids == eos)
    return law


def p_value(tokens: Any, law: np.ndarray, vocab: int) -> float:
    """Chi-square of the joint of ``tokens [n, count]`` against a law ``[V ** count]``."""
    tokens = np.asarray(tokens)
    cells = tokens @ (vocab ** np.arange(tokens.shape[1])[::-1])
    return p_value_of_counts(np.bincount(cells, minlength=len(law)), law)


def p_value_of_counts(counts: np.ndarray, law: np.ndarray) -> float:
    """Chi-square p-value; cells that expect fewer than 5 are pooled; 0 for an impossible outcome."""
    if np.any(counts[law == 0]):
        return 0.0
    expected = law * counts.sum() / law.sum()
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = np.sum((counts - expected) ** 2 / expected)
    return float(scipy.stats.chi2.sf(statistic, max(len(expected) - 1, 1)))


# --- running ---


def copied(tree: Any) -> Any:
    """A copy in numpy, which no donation can reach; typed keys are left out."""
    return jax.tree.map(lambda x: np.array(x, copy=True), tree)


def rounds_of(run: Any, most: int = 100) -> Iterator[tuple[Any, Any]]:
    """Decodes round by round; yields the run and a copy of its state (the first: before any)."""
    yield run, copied(run.state)
    for _ in range(most):
        if np.all(run.state.done):
            return
        run = specjax.decode(run, rounds=1)
        yield run, copied(run.state)
    raise AssertionError(f"not done after {most} rounds")


def ends_by_probability(start: Callable[[float], Any]) -> None:
    """Sampled drafts end where the product of the largest probabilities falls below a threshold.

    Args:
      start: ``min_prob`` -> a run at temperature 1, of one key, whose rounds begin with a draft.
    """

    def draft_of(min_prob: float) -> Draft:
        run = start(min_prob)
        return specjax.round.propose(run.engine, run.params, run.request, run.state)[0]

    whole = draft_of(0.0)
    sure = np.cumprod(np.max(np.asarray(whole.probs)[:, :-1], -1), 1)
    drafted = np.arange(sure.shape[1]) < np.asarray(whole.length)[:, None]
    for share in (0.3, 0.7):
        min_prob = float(np.quantile(sure[drafted], share))
        short = draft_of(min_prob)
        want = np.sum(drafted & (sure >= min_prob * (1 + 1e-5)), 1)
        most = np.sum(drafted & (sure >= min_prob * (1 - 1e-5)), 1)
        length = np.asarray(short.length)
        assert np.all((want <= length) & (length <= most)), (length, want)
        assert 0 < length.sum() < drafted.sum(), "the threshold decided nothing"
        for row, count in enumerate(length):
            same = np.asarray(short.tokens)[row, :count], np.asarray(whole.tokens)[row, :count]
            np.testing.assert_array_equal(*same)


def sequences(vocab: int, count: int) -> np.ndarray:
    """All sequences of ``count`` ids, int32 ``[V ** count, count]``."""
    every = list(itertools.product(range(vocab), repeat=count))
    return np.asarray(every, np.int32).reshape(len(every), count)


# --- a target with features that say all, and heads that read them ---


@functools.cache
def ring(vocab: int, name: str = "ring") -> Target:
    """A target that says ``params [V]`` of the last token; its only feature is that token's one-hot."""

    def init_cache(batch: int, capacity: int, dtype: Any) -> toy.BigramCache:
        return toy.bigram(vocab).init_cache(batch, capacity, dtype)

    def apply(
        params: Array, tokens: Array, cache: Any, *, positions: Any = None, mask: Any = None,
        layers: tuple[int, ...] = (),
    ) -> tuple:  # fmt: skip
        del positions, mask
        features = jax.nn.one_hot(tokens, vocab) if layers else None
        logits = jax.nn.one_hot(params[tokens], vocab)
        return logits, features, cache._replace(length=cache.length + tokens.shape[1])

    return Target(init_cache, apply, kv.rollback, vocab, name=name)


def ring_heads(follows: np.ndarray, right: Sequence[bool]) -> tuple[MedusaConfig, MedusaParams]:
    """Medusa heads that know what a ring says; those that aren't right say what follows that."""
    vocab, numbers = len(follows), np.arange(len(follows))
    config = MedusaConfig(vocab, len(right), num_blocks=1, draft_vocab_size=vocab)
    heads, token = {}, follows[numbers]  # the target's own output
    for i, is_right in enumerate(right):
        token = follows[token]
        guess = token if is_right else (token + 1) % vocab
        heads |= {
            f"block_{i}_0": jnp.zeros([vocab, vocab]),
            f"block_{i}_0_bias": jnp.zeros([vocab]),
            f"projection_{i}": jnp.eye(vocab, dtype=jnp.float32)[guess],
        }
    return config, MedusaParams(heads, jnp.arange(vocab, dtype=jnp.int32))


# --- corpus tables ---

Counts = Mapping[tuple[int, ...], Mapping[int, int]]


def table_of(counts: Counts, doubt: Sequence[float], ranks: int = 8) -> CorpusTable:
    """A table of contexts (tuples of 1 to N tokens, oldest first) and counts of what follows."""
    rows = []
    for context, follows in counts.items():
        padded = np.full(len(doubt), -1, np.int32)
        padded[: len(context)] = context[::-1]
        hashed = corpus_table.hashes(padded[None])
        key, check = (int(each[0, len(context) - 1]) for each in hashed)
        best = sorted(follows.items(), key=lambda item: (-item[1], item[0]))[:ranks]
        rows.append((key, check >> 16, sum(follows.values()), best))
    rows.sort(key=lambda row: row[0])
    return CorpusTable(
        keys=np.array([row[0] for row in rows], np.uint32),
        checks=np.array([row[1] for row in rows], np.uint16),
        totals=np.array([row[2] for row in rows], np.uint16),
        sizes=np.array([len(row[3]) for row in rows], np.uint8),
        tokens=np.array([token for row in rows for token, _ in row[3]], np.uint16),
        counts=np.array([count for row in rows for _, count in row[3]], np.uint16),
        doubt=np.array(doubt, np.float32),
    )


def counts_of(texts: Sequence[Sequence[int]], orders: int) -> dict[tuple[int, ...], Counter[int]]:
    """What follows every 1 to N tokens of texts."""
    out: dict[tuple[int, ...], Counter[int]] = {}
    for text in texts:
        for at in range(1, len(text)):
            for n in range(1, min(orders, at) + 1):
                out.setdefault(tuple(text[at - n : at]), Counter())[text[at]] += 1
    return out


# --- drafters ---


def past_of(outputs: Iterable[Sequence[int]], capacity: int) -> PastOutputs:
    """What is remembered of these outputs."""
    return functools.reduce(remember, outputs, past_outputs(capacity))


class MarkovParams(NamedTuple):
    """Logits ``[V, V]`` by the last token, and bool ``[V]``: tokens that end a draft (kept in it)."""

    logits: Array
    ends: Array


@functools.cache
def markov(
    k: int, given: tuple[bool, ...] | None = None, ids: tuple[int, ...] | None = None
) -> Drafter:
    """Draws a chain by a table of the last token; nodes of ``given`` take its argmax instead.

    With ``ids`` the logits are ``[V, Vd]``: it drafts these tokens alone, as an EAGLE head with a
    draft vocabulary does. What a draft may leave undefined is NaN: the probabilities of given nodes,
    and those past the end.
    """

    def init(params: Params, prefill: Prefill) -> tuple[()]:
        del params, prefill
        return ()

    def propose(params: Params, state: tuple[()], context: Context, limit: Array) -> tuple:
        table, ends = params.drafter
        some = {} if ids is None else {"ids": jnp.array(ids, jnp.int32)}
        last = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, 1)[:, 0]
        alive = ~ends[last]
        tokens, laws, length = [], [], jnp.zeros_like(limit)
        for node in range(k):
            logits = table[last]
            token, probs = context.draw(logits, node + 1, **some)
            if given is not None and given[node]:
                token = jnp.argmax(logits, -1).astype(jnp.int32)
                probs = None if probs is None else jnp.full_like(probs, jnp.nan)
            tokens.append(token)
            laws.append(probs)
            length = length + alive.astype(jnp.int32)
            alive, last = alive & ~ends[token], token
        probs = None
        if laws[0] is not None:
            length_so_far = jnp.minimum(length, limit)
            probs = jnp.stack([*laws, jnp.full_like(laws[0], jnp.nan)], 1)
            past = jnp.arange(k + 1, dtype=jnp.int32) >= length_so_far[:, None]
            probs = jnp.where(past[:, :, None], jnp.nan, probs)
        flags = None if given is None else jnp.broadcast_to(jnp.array(given), (len(last), k))
        draft = Draft(jnp.stack(tokens, 1), jnp.minimum(length, limit), probs, flags)
        return draft, state, context.cache

    def update(params: Params, state: Any, context: Context, record: Record) -> Any:
        del params, context, record
        return state

    return Drafter(init, propose, update, num_nodes=k, name="markov")


@functools.cache
def sticky(k: int) -> Drafter:
    """Its law for a position depends on what the round before drafted there, judged or not.

    That is legal (the past may decide anything), but only if no position's noise is used twice.
    ``drafter_params`` are logits ``[V + 1, V]``; the last row serves positions not drafted before.
    """

    def init(params: Params, prefill: Prefill) -> tuple[Array, Array]:
        del params
        batch = prefill.length.shape[0]
        return jnp.zeros([batch, k], jnp.int32), jnp.full([batch], -2 * k, jnp.int32)

    def propose(params: Params, state: Any, context: Context, limit: Array) -> tuple:
        before, start = state
        fresh = params.drafter.shape[0] - 1
        tokens, laws = [], []
        for node in range(k):
            at = (context.length + node - start)[:, None]
            row = jnp.take_along_axis(before, at, 1, mode="fill", fill_value=fresh)[:, 0]
            token, probs = context.draw(params.drafter[row], node + 1)
            tokens.append(token)
            laws.append(probs)
        probs = jnp.stack([*laws, jnp.zeros_like(laws[0])], 1)
        return Draft(jnp.stack(tokens, 1), limit, probs), state, context.cache

    def update(params: Params, state: Any, context: Context, record: Record) -> Any:
        del params, state
        return record.draft.tokens, context.length

    return Drafter(init, propose, update, num_nodes=k, name="sticky")


def costs_of(
    passes: Any = (1.0, 1.0, 1.0, 1.0, 1.0),
    step: float = 0.0,
    *,
    drafters: int = 1,
    accepted: float = 0.6,
    drafted: float = 1.0,
) -> Costs:
    """Costs of a device: a pass by draft length, and a draft step, in passes."""
    passes = np.asarray(passes, np.float32)
    nodes = len(passes) - 1
    draft = np.tile(step * np.arange(nodes + 1), (drafters, 1))
    shape = drafters, nodes
    return Costs(
        *(jnp.asarray(x, jnp.float32) for x in ([10], passes[None], draft)),
        jnp.full(shape, accepted, jnp.float32),
        jnp.full(shape, drafted, jnp.float32),
        jnp.zeros((2, *shape), jnp.float32),
        jnp.zeros([drafters], jnp.float32),
    )


FLAT, STEEP = costs_of(), costs_of((1, 4, 7, 10, 13))  # drafting is free; it never pays


def context_of(batch: int, length: int = 9, done: Any = None) -> Context:
    """What a policy sees of a batch."""
    done = jnp.zeros([batch], bool) if done is None else jnp.asarray(done)
    return Context(None, jnp.full([batch], length, jnp.int32), done, None, None)


def outcome_of(limits: Any, drafted: Any, accepted: Any, active: Any = None) -> Outcome:
    """Of rows ``[B]`` of one drafter, or ``[B, D]``."""
    numbers = [jnp.asarray(x, jnp.int32) for x in (limits, drafted, accepted)]
    numbers = [x[:, None] if x.ndim == 1 else x for x in numbers]
    rows = jnp.ones(numbers[0].shape[:1], bool) if active is None else jnp.asarray(active)
    return Outcome(rows, *numbers)


def geometric(alpha: float, batch: int, seed: int) -> Callable[[int, np.ndarray], Any]:
    """Independent acceptance of each token with the same chance."""
    rng = np.random.default_rng(seed)
    return lambda number, limits: rng.geometric(1 - alpha, batch) - 1


def counts_after(limits: list[int], accepted: list[int], rows: int = 1) -> prospects.Counts:
    """What a policy that hardly forgets has counted after these rounds, of whole drafts."""
    policy = by_cost(memory=10**6)
    state = policy.init(FLAT, rows, 1, FLAT.draft.shape[1] - 1)
    for limit, right in zip(limits, accepted, strict=True):
        numbers = ([x] * rows for x in (limit, limit, right))
        state = policy.learn(FLAT, state, outcome_of(*numbers))
    return state
