"""Drafters in turn: who speaks in which row, and what comes out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, testing, verify
from specjax.drafters import draft_model, first_of, ngram
from tests import support

VOCAB, BUDGET = 16, 20
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
PROMPTS = [[int(i * 5 + n) % VOCAB for i in range(n)] for n in (1, 2, 5, 9)]
TEXTS = np.stack(
    [np.resize(p + support.plain_greedy(TABLE, p, BUDGET), 64).astype(np.int32) for p in PROMPTS]
)


def scripts(*rows: bool) -> jax.Array:
    """What an oracle drafts: the rows' own texts, or nothing."""
    return jnp.asarray(np.where(np.array(rows)[:, None], TEXTS, -1))


def start(*drafters: Any, params: tuple, **more: Any) -> Any:
    drafting = {"drafter": first_of(*drafters), "drafter_params": params}
    return specjax.start(TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, **drafting, **more)


def test_each_row_takes_the_first_that_speaks() -> None:
    first, second = scripts(True, False, True, False), scripts(True, True, False, False)
    run = start(testing.oracle(2), testing.oracle(3), params=(first, second))
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    assert draft.tokens.shape == (4, 3), "room for the longest"
    assert draft.length.tolist() == [2, 3, 2, 0]
    out = specjax.finish(specjax.decode(run), max_new_tokens=BUDGET)
    for row, prompt in enumerate(PROMPTS):
        assert out.tokens[row].tolist() == support.plain_greedy(TABLE, prompt, BUDGET)
    assert out.stats.rounds.tolist() == [7, 5, 7, 20]


def test_who_follows_is_not_asked_where_a_row_has_its_draft() -> None:
    asked = []

    def propose(params: Any, state: Any, context: Any, limit: jax.Array) -> tuple:
        jax.debug.callback(lambda x: asked.append(np.array(x).tolist()), limit)
        return oracle.propose(params, state, context, limit)

    oracle = testing.oracle(3)
    watched = oracle._replace(propose=propose)
    params = scripts(True, False, True, False), scripts(True, True, True, True)
    run = start(testing.oracle(2), watched, params=params)
    specjax.decode(run, rounds=1).state.length.block_until_ready()
    jax.effects_barrier()
    assert asked == [[0, 3, 0, 3]]


def test_a_model_that_is_not_asked_does_no_work() -> None:
    """Passes of the draft model, counted where they run."""
    passes = []

    def apply(*arguments: Any, **more: Any) -> tuple:
        jax.debug.callback(lambda: passes.append(1))
        return TARGET.apply(*arguments, **more)

    model = TARGET._replace(apply=apply, name="watched")
    first = scripts(True, True, True, True)
    run = start(testing.oracle(3), draft_model(model, 2), params=(first, TABLE))
    jax.effects_barrier()
    passes.clear()
    run = specjax.decode(run, rounds=2)
    run.state.length.block_until_ready()
    jax.effects_barrier()
    assert not passes and int(run.state.stats.accepted.sum()) > 0


def test_given_and_drawn_drafts_stand_in_one_batch() -> None:
    params = (scripts(True, False, True, False), TABLE)
    run = start(
        testing.oracle(3), draft_model(TARGET, 2), params=params,
        sampling=Sampling(temperature=1.0), key=jax.random.key(0),
    )  # fmt: skip
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    assert draft.length.tolist() == [3, 2, 3, 2]
    np.testing.assert_array_equal(draft.given.all(1), [True, False, True, False])
    np.testing.assert_array_equal(draft.given.any(1), [True, False, True, False])
    assert draft.probs.shape == (4, 4, VOCAB)
    np.testing.assert_allclose(draft.probs[1::2, :2].sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("rule", ["match", "coupled"])
def test_sampled_output_is_plain_sampling_s(rule: str) -> None:
    same: dict = dict(
        max_new_tokens=BUDGET, sampling=Sampling(temperature=1.0), key=jax.random.key(1),
        verifier=verify.BY_NAME[rule],
    )  # fmt: skip
    plain = specjax.sample(TARGET, TABLE, PROMPTS, **same)
    nested = first_of(ngram(4, n_min=2), first_of(ngram(2), draft_model(TARGET, 3)))
    drafting = {"drafter": nested, "drafter_params": (None, (None, TABLE))}
    ours = specjax.sample(TARGET, TABLE, PROMPTS, **same, **drafting)
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    assert int(ours.stats.accepted.sum()) > 5


def test_a_model_that_was_not_asked_for_long_catches_up() -> None:
    """The other drafter's whole drafts are accepted; then the model must be right at once."""
    quiet = np.where(np.arange(64) >= len(PROMPTS[3]) + 12, -1, TEXTS)
    run = start(testing.oracle(6), draft_model(TARGET, 3), params=(jnp.asarray(quiet), TABLE))
    out = specjax.finish(specjax.decode(run), max_new_tokens=BUDGET)
    assert specjax.stats.acceptance_rate(out.stats) == 1.0


@pytest.mark.parametrize(
    ("params", "what"),
    [(None, "is no tuple"), ((None,), "holds 1 entries"), (TABLE, "is no tuple")],
)
def test_parameters_must_be_one_for_each(params: Any, what: str) -> None:
    with pytest.raises(ValueError, match=f"drafter_params {what}; give a tuple with one entry"):
        start(ngram(3), draft_model(TARGET, 2), params=params)


def test_a_model_without_parameters_says_so() -> None:
    with pytest.raises(ValueError, match="drafter_params is None; give the model's parameters"):
        start(ngram(3), draft_model(TARGET, 2), params=(None, None))


def test_no_drafters() -> None:
    with pytest.raises(ValueError, match="first_of: no drafters"):
        first_of()


def test_equal_arguments_give_the_same_drafter() -> None:
    assert first_of(ngram(3), ngram(2)) is first_of(ngram(3), ngram(2))
