"""The controller in the loop: outputs don't care, and what it learned goes on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, generate, policies, testing, verify
from specjax.adaptive import AdaptiveParams, adaptive
from specjax.by_cost import by_cost
from specjax.drafters import draft_model, first_of, ngram
from specjax.loop import decode_state
from specjax.prospects import Costs
from tests import support
from tests.support import FLAT, STEEP, costs_of

VOCAB, K, BUDGET = 7, 4, 24


TARGET = testing.scripted_target(VOCAB)


TABLE = testing.scripted_table(10, VOCAB)


CLOSE = TABLE + testing.scripted_table(11, VOCAB, scale=0.5)


PROMPTS = [[1, 2, 1, 2, 1], [3], [5, 0, 4, 5, 0], [2, 2], [4, 1, 0]]


MODEL = draft_model(TARGET, K)


@pytest.mark.parametrize("costs", [FLAT, STEEP, costs_of((1, 1.1, 1.2, 1.9, 2), 0.05)])
@pytest.mark.parametrize("drafter", [MODEL, ngram(K)], ids=["draft model", "prompt lookup"])
def test_greedy_output_is_plain_decoding_s(drafter: Any, costs: Costs) -> None:
    params = CLOSE if drafter is MODEL else None
    policy = by_cost(memory=4, probe_every=2)
    out = specjax.sample(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, drafter=adaptive(drafter, policy=policy),
        drafter_params=AdaptiveParams((params,), costs),
    )  # fmt: skip
    want = [support.plain_greedy(TABLE, prompt, BUDGET) for prompt in PROMPTS]
    assert out.tokens.tolist() == want
    assert (int(out.stats.drafted.sum()) > 0) == (costs is not STEEP)


@pytest.mark.parametrize("policy", [by_cost(probe_every=3), policies.heuristic(2)])
@pytest.mark.parametrize("rule", [verify.match, verify.coupled])
def test_sampled_output_is_plain_decoding_s(rule: Any, policy: Any) -> None:
    same = dict(max_new_tokens=BUDGET, sampling=Sampling(1.0), key=jax.random.key(3), verifier=rule)
    plain = specjax.sample(TARGET, TABLE, PROMPTS, **same)
    out = specjax.sample(
        TARGET, TABLE, PROMPTS, **same, drafter=adaptive(MODEL, policy=policy),
        drafter_params=AdaptiveParams((CLOSE,), costs_of((1, 1.1, 1.3, 1.6, 2))),
    )  # fmt: skip
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    assert int(out.stats.accepted.sum()) > 0


TRYING = by_cost(probe_every=2, probe_share=1.0)


def test_several_drafters_take_turns_and_keep_their_places() -> None:
    """Two that are always right, of two and of four tokens: every draft is accepted."""
    both = adaptive(draft_model(TARGET, 2), MODEL, policy=TRYING)
    costs = costs_of((1, 1.1, 1.2, 3, 3), drafters=2)
    costs = costs._replace(draft=costs.draft.at[0, 3:].set(jnp.inf))
    run = specjax.start(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, drafter=both,
        drafter_params=AdaptiveParams((TABLE, TABLE), costs),
    )  # fmt: skip
    asked = set()
    for _, state in support.rounds_of(run):
        asked |= set(np.nonzero(state.drafter.asked[~state.done])[1].tolist())
        last = state
    assert asked == {0, 1}
    assert specjax.stats.acceptance_rate(last.stats) == 1


def test_each_row_counts_for_the_drafter_that_spoke_in_it() -> None:
    """Two oracles, of which the first knows the even rows alone; both are right."""
    truth = [p + support.plain_greedy(TABLE, p, BUDGET) for p in PROMPTS]
    script = np.full((len(PROMPTS), 64), -1, np.int32)
    for row, tokens in enumerate(truth):
        script[row, : len(tokens)] = tokens
    even = np.where(np.arange(len(PROMPTS))[:, None] % 2 == 0, script, -1)
    counting = by_cost(memory=10**6)._replace(
        choose=lambda costs, state, context: jnp.full([context.length.shape[0], 2], K, jnp.int32)
    )
    both = adaptive(testing.oracle(2), testing.oracle(K), policy=counting)
    costs = costs_of(drafters=2)
    run = specjax.start(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, drafter=both,
        drafter_params=AdaptiveParams((jnp.asarray(even), jnp.asarray(script)), costs),
    )  # fmt: skip
    for _, state in support.rounds_of(run):
        drafted = np.asarray(state.drafter.drafted)
        assert not np.any(drafted[1::2, 0]) and np.all(np.count_nonzero(drafted, 1) <= 1)
        behind = np.asarray(state.drafter.asked[:, 1]) * drafted[:, 0]
        assert not np.any(behind), "who comes after one that spoke was asked"
    right = np.asarray(state.drafter.policy.right[:, 0, :, 0])
    assert np.all(right[::2, 0] > 0) and not np.any(right[1::2, 0]) and np.all(right[1::2, 1] > 0)


def test_a_controller_that_asks_nobody_is_seen_to_be_silent() -> None:
    """By the controller around it, which so comes to ask the next."""
    inner = adaptive(MODEL, policy=policies.fixed(0))
    out = specjax.sample(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, drafter=adaptive(inner, MODEL),
        drafter_params=AdaptiveParams((AdaptiveParams((TABLE,)), TABLE), costs_of((1, 1.1, 1.2, 1.3, 1.4), 0.01, drafters=2)),
    )  # fmt: skip
    assert int(out.stats.drafted_by[:, 1].sum()) > 0 and not np.any(out.stats.drafted_by[:, 0])


def test_a_finished_answer_gives_its_row_to_the_next_prompt() -> None:
    drafting = dict(drafter=adaptive(MODEL), drafter_params=AdaptiveParams((CLOSE,), FLAT))
    found = specjax.generate_many(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, max_length=64, batch=2, **drafting
    )
    for one in found:
        assert one.tokens == support.plain_greedy(TABLE, PROMPTS[one.number], BUDGET)


def test_new_costs_don_t_compile_anew() -> None:
    sizes = []
    for costs in (FLAT, STEEP):
        specjax.sample(
            TARGET, TABLE, PROMPTS, max_new_tokens=9, drafter=adaptive(MODEL),
            drafter_params=AdaptiveParams((CLOSE,), costs),
        )  # fmt: skip
        sizes.append(decode_state._cache_size())
    assert sizes[0] == sizes[1]


def test_a_run_hands_on_what_it_learned() -> None:
    """Drafts never pay here, which the first run finds out and the second knows."""
    costs = costs_of((1, 1, 1.6, 2.2, 2.8), 0.35)
    wrong = jnp.roll(TABLE, 1, -1)  # a draft model that is never right
    given, drafted = AdaptiveParams((wrong,), costs), []
    for _ in range(2):
        out = specjax.sample(
            TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, drafter_params=given,
            drafter=adaptive(MODEL, policy=by_cost(probe_share=0.001)),
        )  # fmt: skip
        given = out.drafter_params
        assert given.drafters[0] is wrong, "a copy"
        drafted.append(int(out.stats.drafted.sum()))
    assert drafted[0] > 0 and drafted[1] == 0
    assert float(given.costs.accepted[0, 0]) < 0.3
    plain = specjax.sample(TARGET, TABLE, PROMPTS, max_new_tokens=4)
    assert plain.drafter_params is None


def test_drafters_in_turn_hand_on_what_one_of_them_learned() -> None:
    both, given = first_of(ngram(K), adaptive(MODEL)), (None, AdaptiveParams((TABLE,), FLAT))
    out = specjax.sample(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, drafter=both, drafter_params=given
    )
    assert out.drafter_params[0] is None
    assert float(out.drafter_params[1].costs.accepted[0, 0]) > 0.6
    fixed = specjax.sample(TARGET, TABLE, PROMPTS, max_new_tokens=4, drafter=ngram(K))
    assert fixed.drafter_params is None


def test_a_refilled_row_knows_what_was_learned_in_it() -> None:
    """One row, so that no neighbour remembers; see ``test_a_run_hands_on_what_it_learned``."""
    costs = costs_of((1, 1, 1.6, 2.2, 2.8), 0.35)
    found = specjax.generate_many(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, max_length=64, batch=1,
        drafter=adaptive(MODEL, policy=by_cost(probe_share=0.001)),
        drafter_params=AdaptiveParams((jnp.roll(TABLE, 1, -1),), costs),
    )  # fmt: skip
    drafted = [one.drafted for one in found]
    # Over prompts rounds go on being counted: in the third 60 have passed, and it is tried again.
    assert drafted[0] > 1 and drafted[1:] == [0, 1, 0, 0]


def test_rows_are_learned_from_when_they_end_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows, answers of different lengths: each answer's rounds are counted once."""
    seen, real = [], generate.learned_params

    def spy(engine: Any, params: Any, state: Any, rows: Any) -> Any:
        after = real(engine, params, state, rows)
        seen.append(float(after.costs.seen[0, 0, 0]))
        return after

    monkeypatch.setattr(generate, "learned_params", spy)
    policy = by_cost(memory=10**6)
    found = list(
        specjax.generate_many(
            TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, max_length=64, batch=2, rounds=3,
            eos_ids=[3], drafter=adaptive(MODEL, policy=policy),
            drafter_params=AdaptiveParams((CLOSE,), FLAT),
        )
    )  # fmt: skip
    rounds = [one.rounds for one in found]
    assert len(set(rounds)) > 1 and len(seen) > 2
    # The last token of a budget needs no draft, so the last round of an answer may ask for none.
    asked = sum(rounds)
    assert asked - len(found) <= seen[-1] <= asked + 0.1


def test_another_run_keeps_the_law_if_it_has_another_key(seed: int) -> None:
    """A target of two fair tokens, and a drafter that nearly always drafts the first."""
    target, drafter = testing.scripted_target(2), draft_model(testing.scripted_target(2), 1)
    fair, sure = jnp.zeros([4, 2]), jnp.zeros([4, 2]).at[:, 0].set(np.log(9.0))
    given = AdaptiveParams((sure,), costs_of((1, 1), 0.55))
    samples, firsts = 250, np.zeros(3)

    def run(know: AdaptiveParams, key: jax.Array) -> tuple[int, AdaptiveParams]:
        out = specjax.sample(
            target, fair, [[0]], drafter=adaptive(drafter), drafter_params=know, key=key,
            max_new_tokens=2, max_length=16, sampling=Sampling(1.0), verifier=verify.token,
        )  # fmt: skip
        return int(out.tokens[0, 0]) == 0, out.drafter_params

    for number in range(samples):
        ours, others = (jax.random.fold_in(jax.random.key(seed), 2 * number + i) for i in range(2))
        first, know = run(given, ours)
        firsts += first, run(know, others)[0], run(know, ours)[0]
    error = 5 * 0.5 / np.sqrt(samples)
    assert np.all(np.abs(firsts[:2] / samples - 0.5) < error), firsts
    assert firsts[2] / samples > 0.5 + 0.3 * error, "the same key would be harmless, after all"


def test_parts_of_parts_are_counted_in_their_places() -> None:
    """A look-up, then a model by a heuristic, then a look-up; and all that behind a controller."""
    lookups = ngram(K, n_max=3, n_min=3), ngram(K, n_max=1)
    inner = adaptive(MODEL, policy=policies.heuristic(2))
    turns = first_of(lookups[0], inner, lookups[1])
    given = (None, AdaptiveParams((CLOSE,)), None)
    outer = adaptive(ngram(2, n_max=2), turns, policy=TRYING)
    assert outer.parts == (ngram(2, n_max=2), lookups[0], MODEL, lookups[1])
    costs = costs_of((1, 1.1, 1.2, 1.3, 1.4), drafters=2)
    costs = costs._replace(draft=costs.draft.at[0, 3:].set(jnp.inf))
    for drafter, params, parts in (
        (turns, given, [True, True, False]),  # the model always has a draft
        (outer, AdaptiveParams((None, given), costs), [True, True, True, False]),
    ):
        out = specjax.sample(
            TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, drafter=drafter, drafter_params=params
        )
        asked, drafted = np.asarray(out.stats.asked), np.asarray(out.stats.drafted_by)
        assert (asked.sum(0) > 0).tolist() == parts
        np.testing.assert_array_equal(drafted.sum(1), out.stats.drafted)
        assert np.all(asked.sum(1) <= np.asarray(out.stats.rounds))


def test_nobody_is_given_credit_for_another_s_drafts() -> None:
    """An oracle that never speaks, by costs; behind it a model that is always right."""
    quiet = jnp.full((len(PROMPTS), 64), -1, jnp.int32)
    both = first_of(adaptive(testing.oracle(K), policy=by_cost()), MODEL)
    out = specjax.sample(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, drafter=both,
        drafter_params=(AdaptiveParams((quiet,), FLAT), TABLE),
    )  # fmt: skip
    assert int(out.stats.accepted.sum()) > 0 and not np.any(out.stats.drafted_by[:, 0])
    learned = out.drafter_params[0].costs
    assert float(learned.accepted[0, 0]) < 0.3 and float(learned.drafted[0, 0]) < 0.5


def test_a_list_of_parameters_stays_a_list() -> None:
    out = specjax.sample(
        TARGET, TABLE, PROMPTS, max_new_tokens=4, drafter=adaptive(MODEL),
        drafter_params=AdaptiveParams([CLOSE], FLAT),
    )  # fmt: skip
    assert isinstance(out.drafter_params.drafters, list)


def test_a_look_up_that_was_asked_last_had_the_round() -> None:
    """Behind it a controller that never asks."""
    both = first_of(ngram(K, n_max=3, n_min=3), adaptive(MODEL, policy=policies.fixed(0)))
    out = specjax.sample(
        TARGET, TABLE, PROMPTS, max_new_tokens=BUDGET, drafter=both,
        drafter_params=(None, AdaptiveParams((CLOSE,))),
    )  # fmt: skip
    limited = np.asarray(out.stats.rounds) - np.asarray(out.stats.asked[:, 0])
    assert np.all((limited >= 0) & (limited <= 1)), "but for a last round without room"
    assert not np.any(out.stats.asked[:, 1])


BAD = {
    "no drafters": (lambda: adaptive(), "no drafters"),
    "no drafter": (lambda: adaptive(None), "None is no drafter; give drafters one by one"),
    "no policy": (lambda: adaptive(MODEL, policy=policies.heuristic), "must be a Policy, such as"),
    "no number": (lambda: by_cost(memory=float("nan")), "memory=nan; it must be an int"),
    "half a round": (lambda: by_cost(probe_every=2.5), "probe_every=2.5; it must be an int"),
    "half a token": (lambda: policies.fixed(2.5), "k=2.5; it must be an int"),
    "half a step": (lambda: policies.heuristic(2, up=1.5), "up=1.5"),
    "memory": (lambda: by_cost(memory=1), "memory=1; it must be at least 2"),
    "weight": (lambda: by_cost(weight=0.0), "weight=0.0; it must be above 0"),
    "weight, infinite": (lambda: by_cost(weight=float("inf")), "weight=inf"),
    "a probe rate": (lambda: by_cost(probe_every=0), "probe_every=0; it must be at least 1 round"),
    "a share": (lambda: by_cost(probe_share=0.0), "probe_share=0.0; it must be above 0"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(what: str) -> None:
    make, words = BAD[what]
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (CLOSE, "give what adaptive_params makes"),
        (AdaptiveParams((CLOSE,)), "decides by costs, and drafter_params has none"),
        (AdaptiveParams((CLOSE, CLOSE), FLAT), "adaptive: drafter_params holds 2 entries"),
    ],
)
def test_bad_parameters_are_named(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        specjax.sample(
            TARGET, TABLE, PROMPTS, max_new_tokens=4, drafter=adaptive(MODEL), drafter_params=given
        )
