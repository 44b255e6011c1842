"""The EAGLE drafter: what it keeps between rounds, what it drafts, what comes out."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, testing, verify
from specjax.drafters import eagle, eagle_params, first_of
from specjax.drafters.eagle import WAITING
from specjax.heads import EagleConfig
from specjax.models import ModelConfig, init_params, transformer_target
from specjax.prefill import prefill
from specjax.state import RUNNING
from tests import support
from train import eagle_init

MODEL = ModelConfig(
    vocab_size=24, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, ffn_width=24
)
TARGET = transformer_target(MODEL)
K = 3
IDS = np.array([i for i in range(24) if i % 4 != 3], np.int32)  # 18 of the 24 tokens
PROMPTS = [[int(i * 7 + n) % 24 for i in range(n)] for n in range(1, 7)]  # 1 to 6 tokens


def config_of(version: int, **changes: Any) -> EagleConfig:
    layers, own = ((-1,), False) if version == 1 else ((1, 2, -1), True)
    values = dict(
        version=version, target_width=16, layers=layers, draft_vocab_size=len(IDS), width=16,
        num_heads=4, num_kv_heads=2, head_dim=4, ffn_width=24, own_head=own,
    )  # fmt: skip
    return EagleConfig(**{**values, **changes})


CONFIGS = {
    "1": config_of(1),
    "3": config_of(3),
    "3.1": config_of(3, norm_features=True, norm_output=True),
    "3, the target's rows": config_of(3, own_head=False, norm_before_residual=True),
}


@cache
def weights() -> Any:
    params = init_params(MODEL, jax.random.key(0))
    return jax.tree.map(lambda x: x * 6 if x.ndim > 1 else x, params)  # far from uniform


@cache
def head_of(name: str) -> Any:
    head = eagle_init.random(CONFIGS[name], jax.random.key(1))
    head = jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, head)
    return eagle_params(CONFIGS[name], head, IDS, weights())


def start(name: str, prompts: Any = PROMPTS, **arguments: Any) -> specjax.sample:
    values = dict(
        drafter=eagle(CONFIGS[name], K), drafter_params=head_of(name), max_new_tokens=12,
        max_length=24, key=jax.random.key(2), eos_ids=(5,),
    )  # fmt: skip
    return specjax.start(TARGET, weights(), prompts, **{**values, **arguments})


@pytest.mark.parametrize(
    "name",
    [n if n == "3.1" else pytest.param(n, marks=pytest.mark.long) for n in CONFIGS],
)
def test_between_rounds_the_state_is_made_of_true_features(name: str) -> None:
    """Whatever was accepted, the head stands where a fresh one stands that read the text so far."""
    seen, rounds = set(), 0
    before = None
    for _, state in support.rounds_of(start(name, sampling=Sampling(temperature=0.7))):
        stands_on_true_features(name, state, state.drafter)
        if before is not None:
            seen |= set((state.stats.accepted - before.stats.accepted).sum(1)[before.reason == 0])
        before, rounds = state, rounds + 1
    assert rounds > 3 and 0 in seen and len(seen) > 2, "counts that never occur are not tested"


def stands_on_true_features(name: str, state: Any, head: Any) -> None:
    """The cache is a fresh head's that read the text so far, and what it lacks waits."""
    features = features_of(name, state)
    given = specjax.draft.Prefill(
        state.tokens, head.cache.length + 1, features, state.tokens.shape[1], 8, jnp.float32, K
    )
    fresh = eagle(CONFIGS[name], K).init(specjax.draft.Params(weights(), head_of(name)), given)
    for row in np.flatnonzero((state.reason == RUNNING) & (head.skipped == 0)):
        for ours, theirs in ((head.output, fresh.output), (head.hidden, fresh.hidden)):
            np.testing.assert_allclose(ours[row], theirs[row], atol=2e-4)
        for pair in zip(head.cache, fresh.cache, strict=True):
            if isinstance(pair[0], tuple):
                ours, theirs = (x[0][row, :, : int(head.cache.length[row])] for x in pair)
                np.testing.assert_allclose(ours, theirs, atol=2e-4)
    for row in np.flatnonzero(state.reason == RUNNING):
        first, known = int((head.cache.length + head.skipped)[row]), int(state.length[row]) - 1
        assert first <= known
        waiting = head.waiting[row, np.arange(first, known) % head.waiting.shape[1]]
        np.testing.assert_allclose(waiting, features[row, first:known], atol=2e-4)


def features_of(name: str, state: Any) -> Any:
    batch, capacity = state.tokens.shape
    empty = TARGET.init_cache(batch, capacity, jnp.float32)
    layers = CONFIGS[name].layers
    return prefill(
        TARGET, weights(), state.tokens, state.length, empty, chunk=8, layers=layers
    )[1]  # fmt: skip


@pytest.mark.parametrize("silence", [4, 40])
def test_a_silent_head_catches_up(silence: int) -> None:
    """Another drafter speaks first, for longer than the head's features can wait, or less."""
    prompts, budget = PROMPTS[1:4], silence + 12
    plain = specjax.sample(TARGET, weights(), prompts, max_new_tokens=budget)
    script = np.full((3, 128), -1, np.int32)
    for row, prompt in enumerate(prompts):
        script[row, len(prompt) : len(prompt) + silence] = plain.tokens[row, :silence]
    arguments = dict(
        drafter=first_of(testing.oracle(2), eagle(CONFIGS["3"], K)), max_length=128,
        drafter_params=(jnp.asarray(script), head_of("3")), max_new_tokens=budget, eos_ids=(),
    )  # fmt: skip
    waited, run = set(), start("3", prompts, **arguments)
    for _, state in support.rounds_of(run):
        head = state.drafter[1]
        stands_on_true_features("3", state, head)
        waiting = state.length - 1 - head.cache.length - head.skipped
        waited.add(int(np.max(waiting)))
        last = state
    assert max(waited) == (WAITING if silence > WAITING else 5), waited
    assert bool(np.any(last.drafter[1].skipped > 0)) == (silence > WAITING)
    assert np.all(last.drafter[1].cache.length > [2, 3, 4]), "it was asked again"
    new = np.asarray(last.tokens)[0, len(prompts[0]) : len(prompts[0]) + budget]
    np.testing.assert_array_equal(new, plain.tokens[0])


def test_after_long_silence_it_stands_where_one_stands_that_read_the_rest() -> None:
    """Its cache goes on with the last slots, as if those between had never been."""
    prompt, silence = PROMPTS[4], 40
    plain = specjax.sample(TARGET, weights(), [prompt], max_new_tokens=64)
    script = np.full((1, 128), -1, np.int32)
    script[0, len(prompt) : len(prompt) + silence] = plain.tokens[0, :silence]
    run = start(
        "3", [prompt], drafter=first_of(testing.oracle(2), eagle(CONFIGS["3"], K)),
        max_length=128, drafter_params=(jnp.asarray(script), head_of("3")), max_new_tokens=64,
        eos_ids=(),
    )  # fmt: skip
    for _, state in support.rounds_of(run):
        head = state.drafter[1]
        if int(head.cache.length[0]) > len(prompt):
            break
    held, skipped = int(head.cache.length[0]), int(head.skipped[0])
    assert skipped > 0
    kept = [*range(len(prompt) - 1), *range(len(prompt) - 1 + skipped, held + skipped)]
    assert len(kept) == held
    features, tokens = features_of("3", state)[:, kept], state.tokens[:, np.array(kept) + 1]
    # A fresh head pairs slot s with token s + 1, so the tokens move by one.
    tokens = jnp.pad(tokens, ((0, 0), (1, 128 - held - 1)))
    features = jnp.pad(features, ((0, 0), (0, 128 - held), (0, 0)))
    given = specjax.draft.Prefill(tokens, jnp.array([held + 1]), features, 128, 8, jnp.float32, K)
    params = specjax.draft.Params(weights(), head_of("3"))
    fresh = eagle(CONFIGS["3"], K).init(params, given)
    np.testing.assert_allclose(head.output, fresh.output, atol=2e-4)


def test_a_row_s_head_does_not_depend_on_who_else_is_asked() -> None:
    """One row is silent for long; the other is asked all the time, or as silent."""
    prompt, silence = PROMPTS[4], 30
    plain = specjax.sample(TARGET, weights(), [prompt], max_new_tokens=60)
    script = np.full((1, 128), -1, np.int32)
    script[0, len(prompt) : len(prompt) + silence] = plain.tokens[0, :silence]
    stood: list[list[Any]] = []
    for other in (script, np.full((1, 128), -1, np.int32)):
        run = start(
            "3", [prompt] * 2, drafter=first_of(testing.oracle(2), eagle(CONFIGS["3"], K)),
            max_length=128, max_new_tokens=60, eos_ids=(),
            drafter_params=(jnp.asarray(np.concatenate([script, other])), head_of("3")),
        )  # fmt: skip
        stood.append([])
        for _, state in support.rounds_of(run):
            head = state.drafter[1]
            stands_on_true_features("3", state, head)
            if not state.done[0]:
                places = (x[0] for x in (state.length, head.cache.length, head.skipped))
                stood[-1].append([*map(int, places)])
    assert stood[0] == stood[1] and any(skipped for _, _, skipped in stood[0])


def test_a_draft_ends_where_the_head_is_unsure() -> None:
    sampled = dict(sampling=Sampling(temperature=1.0))
    support.ends_by_probability(
        lambda min_prob: start("3", **sampled, drafter=eagle(CONFIGS["3"], K, min_prob=min_prob))
    )


def test_greedy_output_is_plain_decoding_s_where_drafts_end_early() -> None:
    """The head's state must be right behind drafts of any length."""
    prompts = [[(a + b * 5) % 24 for b in range(1 + a % 4)] for a in range(48)]
    same = dict(max_new_tokens=12, eos_ids=(5,))
    plain = specjax.sample(TARGET, weights(), prompts, **same)
    drafter = eagle(CONFIGS["3"], K, min_prob=0.05)
    ours = specjax.sample(
        TARGET, weights(), prompts, **same, drafter=drafter, drafter_params=head_of("3")
    )
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    assert int(ours.stats.accepted.sum()) > 0


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_output_is_plain_decoding_s(name: str) -> None:
    prompts = [[(a + b * 5) % 24 for b in range(1 + a % 4)] for a in range(48)]
    same = dict(max_new_tokens=12, eos_ids=(5,))
    plain = specjax.sample(TARGET, weights(), prompts, **same)
    arguments = dict(drafter=eagle(CONFIGS[name], K), drafter_params=head_of(name))
    ours = specjax.sample(TARGET, weights(), prompts, **same, **arguments)
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    assert int(ours.stats.accepted.sum()) > 0, "nothing was accepted: nothing was tested"


def test_coupled_output_is_plain_decoding_s() -> None:
    """The draft vocabulary takes the target's noise by the target's ids."""
    same = dict(
        max_new_tokens=12, sampling=Sampling(temperature=1.0), verifier=verify.coupled,
        key=jax.random.key(3),
    )  # fmt: skip
    plain = specjax.sample(TARGET, weights(), PROMPTS, **same)
    ours = specjax.sample(
        TARGET, weights(), PROMPTS, drafter=eagle(CONFIGS["3"], K), drafter_params=head_of("3"),
        **same,
    )  # fmt: skip
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    assert int(ours.stats.accepted.sum()) > 0


def test_a_one_token_prompt_drafts_nothing_first() -> None:
    """There are no features yet; from the second round on there are."""
    run = specjax.decode(start("3", [[1], [1, 2]]), rounds=1)
    assert run.state.stats.drafted.tolist() == [0, K]
    run = specjax.decode(run, rounds=1)
    assert run.state.stats.drafted.tolist()[0] == K or bool(run.state.done[0])


def test_drafts_are_of_the_draft_vocabulary() -> None:
    run = start("3", sampling=Sampling(temperature=1.0))
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    assert set(np.unique(draft.tokens)) <= set(IDS.tolist()) | {0}
    drafted = np.asarray(draft.probs)[np.asarray(draft.length) > 0, :K]
    np.testing.assert_allclose(drafted.sum(-1), 1, atol=1e-5)
    assert not drafted[..., np.setdiff1d(np.arange(24), IDS)].any()
    rows, tokens = np.flatnonzero(draft.length), np.asarray(draft.tokens)
    for number, row in enumerate(rows):
        assert (drafted[number, np.arange(K), tokens[row]] > 0).all()


@pytest.mark.parametrize(
    ("short", "rule"),
    [
        (True, "block"),
        pytest.param(False, "token", marks=pytest.mark.long),
        pytest.param(True, "token", marks=pytest.mark.long),
        pytest.param(False, "block", marks=pytest.mark.long),
    ],
)
def test_the_law_of_two_tokens_is_the_target_s(rule: str, short: bool) -> None:
    """Chi-square on pairs through the loop; drafts from 18 of 24 tokens."""
    rows, prompt = 8192, [3, 8, 2] if not short else [3]
    out = specjax.sample(
        TARGET, weights(), np.tile(prompt, (rows, 1)), drafter=eagle(CONFIGS["3"], K),
        drafter_params=head_of("3"), max_new_tokens=2, sampling=Sampling(temperature=0.8),
        verifier=verify.BY_NAME[rule], key=jax.random.key(11),
    )  # fmt: skip
    first = _law([prompt])
    second = _law([[*prompt, token] for token in range(24)])
    law = (first[0][:, None] * second).ravel()
    pairs = np.asarray(out.tokens) @ [24, 1]
    counts = np.bincount(pairs, minlength=24 * 24)
    assert support.p_value_of_counts(counts, law) > support.SIGNIFICANCE


def _law(prompts: list[list[int]]) -> np.ndarray:
    tokens = jnp.array(prompts, jnp.int32)
    cache = TARGET.init_cache(len(prompts), 8, jnp.float32)
    logits = TARGET.apply(weights(), tokens, cache)[0][:, -1]
    return np.asarray(jax.nn.softmax(logits.astype(jnp.float32) / 0.8), np.float64)


@pytest.mark.parametrize("k", [0, -1])
def test_no_draft_tokens(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k}; it must be at least 1"):
        eagle(CONFIGS["3"], k)


def test_equal_arguments_give_the_same_drafter() -> None:
    assert eagle(config_of(3), 2) is eagle(config_of(3), 2)
