"""What must hold between any two rounds, for every drafter and every accepted count.

Scripted caches remember tokens and positions, so "the cache equals one rebuilt from scratch" is a
comparison of integers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, testing
from specjax.draft import Drafter
from specjax.drafters import draft_model, first_of, medusa, ngram, suffix
from specjax.heads import MedusaConfig
from specjax.state import State
from tests import support
from tests.planted import laws

VOCAB, K, BUDGET = 16, 4, 20
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
PROMPTS = [[int(i * 7 + n) % VOCAB for i in range(n)] for n in range(1, 10)]  # 1 to 9 tokens


def corrupted(seed: int, share: float) -> jax.Array:
    """The target's table with another best id in a share of its rows."""
    wrong = np.random.default_rng(seed).random((len(TABLE), 1)) < share
    return jnp.where(wrong, jnp.roll(TABLE, 1, 1), TABLE)


def holds_true_entries(cache: testing.ScriptedCache, state: State, count: np.ndarray) -> None:
    """The first ``count[b]`` entries are the row's own tokens at their own positions."""
    for row, n in enumerate(count):
        np.testing.assert_array_equal(cache.tokens[row, :n], state.tokens[row, :n])
        np.testing.assert_array_equal(cache.positions[row, :n], np.arange(n))


def draft_model_state(before: State | None, state: State) -> None:
    """F12, F14, F49: ``length - 1`` true entries, or one fewer after a fully accepted draft."""
    cache = state.drafter.cache
    holds_true_entries(cache, state, cache.length)
    missing = state.length - 1 - cache.length
    accepted = drafted = np.zeros_like(missing)
    if before is not None:
        drafted = state.stats.drafted - before.stats.drafted
        accepted = (state.stats.accepted - before.stats.accepted).sum(1)
    np.testing.assert_array_equal(
        missing[~state.done], ((accepted == drafted) & (drafted > 0))[~state.done]
    )
    assert np.all(missing >= 0) and np.all(missing[~state.done] <= 1)


def the_model_in_turn(before: State | None, state: State) -> None:
    """What the model has seen is true, whoever drafted; it may lack all that another drafted."""
    del before
    _, model = state.drafter
    holds_true_entries(model.cache, state, model.cache.length)
    assert np.all(model.cache.length < state.length)


def heads_state(state: Any, whole: State) -> None:
    """The feature of the last slot the target has computed; in a one-token text there is none."""
    np.testing.assert_array_equal(state.known, whole.length > 1)
    cache = TARGET.init_cache(len(PROMPTS), whole.tokens.shape[1], jnp.float32)
    _, features, _ = TARGET.apply(TABLE, jnp.asarray(whole.tokens), cache, layers=(-1,))
    last = np.maximum(whole.length - 2, 0)
    want = np.asarray(features)[np.arange(len(last)), last]
    np.testing.assert_array_equal(state.feature[state.known], want[state.known])


def medusa_state(before: State | None, state: State) -> None:
    del before
    heads_state(state.drafter, state)


def medusa_in_turn(before: State | None, state: State) -> None:
    """Whoever drafted."""
    del before
    heads_state(state.drafter[1], state)


def no_state(before: State | None, state: State) -> None:
    del before
    assert not jax.tree.leaves(state.drafter)


class Case(NamedTuple):
    drafter: Drafter
    params: Any
    invariant: Callable[[State | None, State], None]
    counts: set[int]  # accepted counts that must occur


SCRIPT = np.stack(
    [
        np.resize(p + support.plain_greedy(TABLE, p, BUDGET), 128) * (np.arange(128) % (n + 3) != 2)
        for n, p in enumerate(PROMPTS)
    ]
)
HEADS = MedusaConfig(target_width=1, num_heads=K, num_blocks=1, draft_vocab_size=VOCAB)
HEADS_PARAMS = laws.scripted_heads(HEADS, seed=3)
CASES = {
    "Medusa heads": Case(medusa(HEADS), HEADS_PARAMS, medusa_state, {0}),
    "Medusa heads in turn": Case(
        first_of(testing.oracle(K), medusa(HEADS, 2)),
        (jnp.asarray(np.where(np.arange(128) % 7 < 5, SCRIPT, -1), jnp.int32), HEADS_PARAMS),
        medusa_in_turn,
        {0, 1, 2, 3, 4},
    ),
    "draft model": Case(
        draft_model(TARGET, K), corrupted(1, 0.3), draft_model_state, {0, 1, 2, 3, 4}
    ),
    "draft model, k=1": Case(draft_model(TARGET, 1), corrupted(1, 0.3), draft_model_state, {0, 1}),
    "prompt lookup": Case(ngram(K), None, no_state, {0}),
    "suffix decoding": Case(
        suffix(K, growth=None), support.past_of(SCRIPT[:5].tolist(), 400), no_state, {0, 1}
    ),
    "in turn": Case(
        first_of(testing.oracle(3), draft_model(TARGET, K)),
        (jnp.asarray(np.where(np.arange(128) % 7 < 4, SCRIPT, -1), jnp.int32), corrupted(1, 0.3)),
        the_model_in_turn,
        {0, 1, 2, 3, 4},
    ),
    "oracle": Case(
        testing.oracle(K), jnp.asarray(SCRIPT, jnp.int32), lambda *_: None, {0, 1, 2, 3, 4}
    ),
}


def invariants_of_the_target(before: State | None, state: State) -> None:
    np.testing.assert_array_equal(state.cache.length, state.length - 1)
    holds_true_entries(state.cache, state, state.length - 1)
    if before is None:
        return
    assert jax.tree.map(np.shape, before) == jax.tree.map(np.shape, state), "F15: constant shapes"
    grown = state.length - before.length
    assert np.all(grown[before.done] == 0)
    assert np.all((grown[~before.done] >= 1) & (grown[~before.done] <= 1 + K))
    for row in range(len(state.length)):
        np.testing.assert_array_equal(
            state.tokens[row, : before.length[row]], before.tokens[row, : before.length[row]]
        )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_between_rounds(name: str, temperature: float) -> None:
    case, seen = CASES[name], set()
    run = specjax.start(
        TARGET,
        TABLE,
        PROMPTS,
        drafter=case.drafter,
        drafter_params=case.params,
        max_new_tokens=BUDGET,
        sampling=Sampling(temperature=temperature),
        key=jax.random.key(0),
        eos_ids=(7,),
    )
    before = None
    for _, state in support.rounds_of(run):
        invariants_of_the_target(before, state)
        case.invariant(before, state)
        if before is not None:
            accepted = (state.stats.accepted - before.stats.accepted).sum(1)
            seen |= set(accepted[~before.done].tolist())
        before = state
    assert seen >= case.counts, "a count that never occurs is not tested"
    assert before is not None
    assert set(before.reason.tolist()) == {1, 2}, "rows end by EOS and by budget"


@pytest.mark.parametrize("name", CASES)
def test_scratch_is_free(name: str) -> None:
    """Whatever lies past the lengths (F74: poison), the run goes on the same."""
    case = CASES[name]
    start = partial(
        specjax.start,
        TARGET,
        TABLE,
        PROMPTS,
        drafter=case.drafter,
        drafter_params=case.params,
        max_new_tokens=BUDGET,
        sampling=Sampling(temperature=0.5),
        key=jax.random.key(0),
        eos_ids=(7,),
    )
    clean = specjax.decode(start())
    run = specjax.decode(start(), rounds=2)
    slot = jnp.arange(run.state.tokens.shape[1], dtype=jnp.int32)

    def poisoned(buffer: jax.Array, length: jax.Array) -> jax.Array:
        return jnp.where(slot < length[:, None], buffer, 5)

    def poisoned_cache(cache: Any) -> Any:
        if isinstance(cache, tuple) and not isinstance(cache, testing.ScriptedCache):
            parts = [poisoned_cache(part) for part in cache]
            return type(cache)(*parts) if hasattr(cache, "_fields") else tuple(parts)
        if not isinstance(cache, testing.ScriptedCache):
            return cache
        tokens, positions = (poisoned(x, cache.length) for x in cache[:2])
        return cache._replace(tokens=tokens, positions=positions)

    state = run.state._replace(
        tokens=poisoned(run.state.tokens, run.state.length),
        cache=poisoned_cache(run.state.cache),
        drafter=poisoned_cache(run.state.drafter),
    )
    again = specjax.decode(run._replace(state=state))
    for ours, theirs in zip(
        specjax.finish(again, max_new_tokens=BUDGET)[:3],
        specjax.finish(clean, max_new_tokens=BUDGET)[:3],
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
