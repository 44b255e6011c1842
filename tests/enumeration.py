"""Laws enumerated, not sampled: every draft, every place to stop, every token after it.

A rule in law form (``specjax.verify.law``) is applied to all drafts of an instance; what it emits
is summed up in float64. Right rules give the target's law to 1e-12.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.draft import Draft
from specjax.verify import law
from tests import support

EXACT = 1e-12


class Instance(NamedTuple):
    """Laws that depend on the whole prefix, and drafts that may be cut or given by the prefix.

    Per depth n, over the ``V ** n`` prefixes: ``p[n]`` and ``q[n]`` are ``[V ** n, V]``; ``stop[n]``
    says that no draft goes on from the prefix; ``fixed[n]`` is the given token, where ``given[n]``.
    """

    vocab: int
    k: int
    p: list[np.ndarray]
    q: list[np.ndarray]
    stop: list[np.ndarray]
    given: list[np.ndarray]
    fixed: list[np.ndarray]


# Every vocabulary of 3 to 5 ids with every draft length of 1 to 4.
SIZES = [(vocab, k) for vocab in (3, 4, 5) for k in (1, 2, 3, 4)]

# zeros: the share of ids of probability 0. Drafts end by what was drafted (cut: the share of
# prefixes), or where the drafter is not sure (no id has a q of ``sure``). given: the share of
# prefixes after which the token is given, not drawn.
KINDS: dict[str, dict[str, float]] = {
    "sampled": {},
    "zeros": dict(zeros=0.4),
    "partial": dict(zeros=0.2, cut=0.3),
    "confidence": dict(zeros=0.2, sure=0.5),
    "given": dict(zeros=0.2, given=1.0),
    "mixed": dict(zeros=0.2, cut=0.2, given=0.4),
}


def make(
    seed: int,
    vocab: int,
    k: int,
    *,
    zeros: float = 0.0,
    cut: float = 0.0,
    sure: float = 0.0,
    given: float = 0.0,
) -> Instance:
    """A random instance; see ``KINDS``."""
    rng = np.random.default_rng(seed)

    def laws(count: int) -> np.ndarray:
        probs = rng.dirichlet(np.full(vocab, 0.7), count)
        probs = np.where(rng.random(probs.shape) < zeros, 0, probs)
        probs[np.sum(probs, 1) == 0, 0] = 1
        return probs / np.sum(probs, 1, keepdims=True)

    sizes = [vocab**n for n in range(k + 1)]
    p, q = [laws(size) for size in sizes], [laws(size) for size in sizes]
    return Instance(
        vocab,
        k,
        p=p,
        q=q,
        stop=[(rng.random(len(law)) < cut) | (np.max(law, 1) < sure) for law in q],
        given=[rng.random(size) < given for size in sizes],
        fixed=[rng.integers(0, vocab, size) for size in sizes],
    )


def iid(p: Any, q: Any, k: int) -> Instance:
    """The same two laws after every prefix."""
    vocab = len(p)
    sizes = [vocab**n for n in range(k + 1)]
    none = [np.zeros(size, bool) for size in sizes]
    fixed = [np.zeros(size, int) for size in sizes]
    laws = ([np.tile(np.asarray(x, float), (size, 1)) for size in sizes] for x in (p, q))
    return Instance(vocab, k, *laws, none, none, fixed)


def prefixes_of(sequences: np.ndarray, vocab: int) -> list[np.ndarray]:
    """For each depth n the number of every sequence's prefix of n tokens."""
    out = [np.zeros(len(sequences), np.int64)]
    for n in range(sequences.shape[1]):
        out.append(out[-1] * vocab + sequences[:, n])
    return out


def drafts_of(case: Instance) -> tuple[Draft, np.ndarray, np.ndarray]:
    """All ``V ** k`` drafts, how likely each is, and the target's laws along it."""
    draft, weight, p = _drafts_after(case, np.zeros(1, np.int64), 0, case.k)
    return draft, weight, p


def _drafts_after(
    case: Instance, starts: np.ndarray, depth: int, k: int
) -> tuple[Draft, np.ndarray, np.ndarray]:
    """All drafts of k tokens after each of the prefixes ``starts`` of ``depth`` tokens."""
    tokens = np.tile(support.sequences(case.vocab, k), (len(starts), 1))
    inner = prefixes_of(tokens, case.vocab)
    first = np.repeat(starts, case.vocab**k)
    prefix = [first * case.vocab**n + at for n, at in enumerate(inner)]
    weight = np.ones(len(tokens))
    length = np.zeros(len(tokens), np.int32)
    alive = np.ones(len(tokens), bool)
    given = np.zeros(tokens.shape, bool)
    for n in range(k):
        at = prefix[n]
        alive &= ~case.stop[depth + n][at]
        length += alive
        given[:, n] = case.given[depth + n][at]
        drawn = case.q[depth + n][at, tokens[:, n]]
        weight *= np.where(given[:, n], tokens[:, n] == case.fixed[depth + n][at], drawn)
    p, q = (
        np.stack([laws[depth + n][prefix[n]] for n in range(k + 1)], 1) for laws in (case.p, case.q)
    )
    # What a drafter may leave undefined must not be read.
    undefined = np.arange(k + 1) >= length[:, None]
    undefined[:, :k] |= given
    q = np.where(undefined[:, :, None], np.nan, q)
    return Draft(*map(jnp.asarray, (tokens, length, q, given))), weight, p


@partial(jax.jit, static_argnums=0)
def law_and_followers(rule: law.Rule, draft: Draft, p: Any) -> tuple:
    """``stop [M, N+1]``, and the distribution ``[M, N+1, V]`` of the token after each node."""
    q, given = law.drafted_from(draft)
    out = jax.vmap(rule, (0, 0, 0, None if q is None else 0, 0))(
        draft.tokens, draft.length, p, q, given
    )
    nodes = jnp.arange(p.shape[1], dtype=jnp.int32)
    over_nodes = jax.vmap(law.residual, (0, None, None, None, None, None, None))
    over_drafts = jax.vmap(over_nodes, (None, 0, 0, 0, None if q is None else 0, 0, 0))
    weights = over_drafts(nodes, out.weight, draft.tokens, p, q, given, draft.length)
    return out.stop, weights / jnp.sum(weights, -1, keepdims=True)


def emitted_law(rule: law.Rule, case: Instance) -> tuple[np.ndarray, float, np.ndarray]:
    """The joint law of the next k + 1 tokens, the expected accepted count, and all of ``stop``."""
    draft, weight, p = drafts_of(case)
    stop, follow = (np.asarray(x) for x in law_and_followers(rule, draft, jnp.asarray(p)))
    assert stop.dtype == follow.dtype == np.float64
    joint = rest_law(case, np.asarray(draft.tokens), weight[:, None] * stop, follow)
    accepted = float(np.sum(weight[:, None] * stop * np.arange(case.k + 1)))
    return joint, accepted, stop


def rest_law(
    case: Instance, tokens: np.ndarray, weight: np.ndarray, follow: np.ndarray
) -> np.ndarray:
    """The joint of k + 1 tokens when row m stops at node n with ``weight[m, n]``.

    After n accepted tokens comes one from ``follow[m, n]``, and then the target's own.
    """
    prefix = prefixes_of(tokens, case.vocab)
    total = np.zeros(case.vocab ** (case.k + 1))
    for n in range(case.k + 1):
        emitted = np.zeros((case.vocab**n, case.vocab))
        np.add.at(emitted, prefix[n], weight[:, n, None] * follow[:, n])
        reached = emitted.reshape(-1)
        for depth in range(n + 1, case.k + 1):
            reached = (reached[:, None] * case.p[depth]).reshape(-1)
        total += reached
    return total


def target_law(case: Instance, count: int | None = None) -> np.ndarray:
    """The target's own law of the next ``count`` tokens; k + 1 by default."""
    reached = np.ones(1)
    for probs in case.p[:count]:
        reached = (reached[:, None] * probs).reshape(-1)
    return reached


_AT_ONCE = 64  # prefixes a call, so that all depths share one program


def law_over_rounds(
    rule: law.Rule, case: Instance, k: int, count: int, *, budget: bool
) -> np.ndarray:
    """The joint law of the next ``count`` tokens when rounds of k follow each other.

    Args:
      rule: the rule.
      case: with laws for all depths that are reached: ``count``, and without a budget k more.
      k: draft tokens a round.
      count: tokens.
      budget: drafts near the end are cut so that they fit, as ``sample`` cuts them at its budget.
        Otherwise the last round overshoots, and what does is dropped.

    Returns:
      ``[V ** count]``.
    """
    vocab = case.vocab
    over = 0 if budget else k
    # starts[d][x]: the chance that a round starts, or the end lies, at the prefix x of d tokens.
    starts = [np.zeros(vocab**depth) for depth in range(count + over + 1)]
    starts[0][0] = 1
    for depth in range(count):
        nodes = min(k, count - depth - 1) if budget else k
        every = np.flatnonzero(starts[depth])
        for at in range(0, len(every), _AT_ONCE):
            some = every[at : at + _AT_ONCE]
            padded = np.resize(some, _AT_ONCE)
            draft, weight, p = _drafts_after(case, padded, depth, nodes)
            out = law_and_followers(rule, draft, jnp.asarray(p))
            rows = len(some) * vocab**nodes
            stop, follow, tokens = (np.asarray(x)[:rows] for x in (*out, draft.tokens))
            first = np.repeat(some, vocab**nodes)
            chance = weight[:rows] * starts[depth][first]
            for n, prefix in enumerate(prefixes_of(tokens, vocab)):
                ends = (first * vocab**n + prefix)[:, None] * vocab + np.arange(vocab)
                new = (chance * stop[:, n])[:, None] * follow[:, n]
                size = len(starts[depth + n + 1])
                starts[depth + n + 1] += np.bincount(ends.reshape(-1), new.reshape(-1), size)
    total = np.zeros(vocab**count)
    for depth in range(count, len(starts)):
        total += starts[depth].reshape(vocab**count, -1).sum(1)
    return total
