"""Drafts that end where they are no longer probable: lengths, and the law."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, testing, verify
from specjax.drafters import draft_model, eagle, medusa
from specjax.drafters.chain import Guess, draw_chain
from specjax.heads import EagleConfig, MedusaConfig
from tests import support

VOCAB, BUDGET = 8, 16
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
CLOSE = TABLE + testing.scripted_table(1, VOCAB, scale=0.6)
PROMPTS = [[int(i * 3 + n) % VOCAB for i in range(n)] for n in (1, 2, 5, 9)] * 4


def start(min_prob: float, **more: Any) -> Any:
    drafter = draft_model(TARGET, 4, min_prob=min_prob)
    drafting = dict(drafter=drafter, drafter_params=CLOSE, max_new_tokens=BUDGET)
    return specjax.start(TARGET, TABLE, PROMPTS, **drafting | more)


@pytest.mark.parametrize("min_prob", [0.2, 0.5])
def test_a_greedy_draft_ends_where_it_is_improbable(min_prob: float) -> None:
    """By the product of the model's own largest probabilities, in numpy."""
    run, sizes = start(min_prob), set()
    while not np.all(run.state.done):
        draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
        for row in np.flatnonzero(~np.asarray(run.state.done)):
            text = run.state.tokens[row, : run.state.length[row]].tolist()
            limit = min(4, int(run.request.end[row] - run.state.length[row]) - 1)
            want, prob = [], 1.0
            while len(want) < limit:
                logits = support.logits_after(CLOSE, text + want)
                prob *= float(jax.nn.softmax(logits).max())
                if prob < min_prob:
                    break
                want.append(int(logits.argmax()))
            assert draft.tokens[row, : draft.length[row]].tolist() == want
            sizes.add(len(want))
        run = specjax.decode(run, rounds=1)
    assert {0, 1} <= sizes, "every draft was as long as it may be: nothing was tested"
    out = specjax.finish(run, max_new_tokens=BUDGET)
    for row, prompt in enumerate(PROMPTS):
        assert out.tokens[row].tolist() == support.plain_greedy(TABLE, prompt, BUDGET)


def test_a_draft_ends_where_the_guess_is_too_uncertain() -> None:
    """By the entropy of the next token's probabilities alone, in numpy."""
    most = 1.5
    run = start(0.0, drafter=draft_model(TARGET, 4, max_entropy=most))
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    lengths = []
    for prompt in PROMPTS:
        want: list[int] = []
        while len(want) < 4:
            logits = np.float64(support.logits_after(CLOSE, prompt + want))
            probs = np.exp(logits) / np.exp(logits).sum()
            if -(probs * np.log(probs)).sum() > most:
                break
            want.append(int(logits.argmax()))
        lengths.append(len(want))
    assert draft.length.tolist() == lengths and len(set(lengths)) > 2


def test_a_threshold_of_nothing_changes_nothing() -> None:
    sampled = dict(sampling=Sampling(temperature=1.0), key=jax.random.key(0))
    drafts = [
        specjax.round.propose(run.engine, run.params, run.request, run.state)[0]
        for run in (start(0.0, **sampled), start(1e-30, **sampled))
    ]
    jax.tree.map(np.testing.assert_array_equal, *drafts)
    assert drafts[0].length.tolist() == [4] * len(PROMPTS)


@pytest.mark.parametrize(
    ("rule", "how"),
    [("token", {"min_prob": 0.3}), ("block", {"min_prob": 0.3}), ("block", {"max_entropy": 0.85})],
)
def test_the_joint_law_of_several_rounds_is_the_target_s(rule: str, how: dict) -> None:
    """Five tokens of three; drafts of every length up to four."""
    target, table = testing.scripted_target(3), testing.scripted_table(0, 3, scale=1.0)
    close = table + testing.scripted_table(1, 3, scale=0.6)
    out = specjax.sample(
        target, table, np.tile([2, 1], (15_000, 1)), max_new_tokens=5,
        drafter=draft_model(target, 4, **how), drafter_params=close,
        sampling=Sampling(temperature=0.9), verifier=verify.BY_NAME[rule], key=jax.random.key(5),
    )  # fmt: skip
    law = support.joint_law(table, (2, 1), 5, temperature=0.9)
    assert support.p_value(np.asarray(out.tokens), law, 3) > support.SIGNIFICANCE
    drafted = np.asarray(out.stats.drafted) / np.asarray(out.stats.rounds)
    assert 0.2 < drafted.mean() < 3, "drafts did not end early: nothing was tested"


def test_rows_end_on_their_own() -> None:
    """Each by its own guesses; who has ended draws no more, whoever goes on."""
    probs = np.array([[0.9, 0.9, 0.9], [0.9, 0.4, 0.9], [0.2, 0.9, 0.9], [0.9, 0.9, 0.2]])

    def guess(node: jax.Array) -> Guess:
        prob = jnp.asarray(probs, jnp.float32)[:, jnp.minimum(node, 2)]
        return Guess(jnp.zeros([4, 5]), None, prob)

    def step(node: jax.Array, last: jax.Array) -> tuple[Guess, jax.Array]:
        return guess(node + 1), node + 1

    def draw(logits: jax.Array, node: Any, ids: Any) -> tuple[jax.Array, None]:
        return jnp.full([4], node, jnp.int32), None

    limit, zero = jnp.array([3, 3, 3, 2], jnp.int32), jnp.zeros([], jnp.int32)
    for least, lengths in ((0.5, [3, 1, 0, 2]), (0.95, [0, 0, 0, 0]), (0.0, [3, 3, 3, 2])):
        draft, _ = draw_chain(draw, limit, 3, guess(zero), zero, step, min_prob=least)
        assert draft.length.tolist() == lengths
    assert draft.tokens[:, 0].tolist() == [1] * 4


def test_no_such_probability() -> None:
    head = EagleConfig(3, 8, (1,), 4, 8, 1, 1, 8, 8)
    for make, name in (
        (lambda: draft_model(TARGET, 2, min_prob=-0.5), "draft_model: min_prob=-0.5"),
        (lambda: medusa(MedusaConfig(4, 2, 1, 4), min_prob=1.5), "medusa: min_prob=1.5"),
        (lambda: eagle(head, 2, min_prob=2.0), "eagle: min_prob=2.0"),
    ):
        with pytest.raises(ValueError, match=f"{name}; it must be 0"):
            make()
    with pytest.raises(ValueError, match=r"eagle: max_entropy=-1\.0; it must be 0 nats"):
        eagle(head, 2, max_entropy=-1.0)
