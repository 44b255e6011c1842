"""The arithmetic of the results, with made-up timings."""

import dataclasses

import numpy as np
import pytest

from eval import rows
from eval.measure import Cell, Trial
from eval.modes import Drafting, Mode
from eval.prompts import Prompt
from eval.timing import Decoding, DraftTime
from specjax import adaptive, testing, theory, verify
from specjax.drafters import draft_model, first_of, ngram
from specjax.stats import Stats

VOCAB = 11
TARGET = testing.scripted_target(VOCAB)
PLAIN = Mode("plain", 0.0, verify.greedy)
LOOKUP = Mode("prompt_lookup", 0.0, verify.greedy, ngram(k=2))
DRAFT = Mode("draft_model", 0.0, verify.greedy, draft_model(TARGET, 2), always_k=True)
PASSES = {1: 0.010, 2: 0.012, 3: 0.015}
MODEL_S, LOOKUP_S = DraftTime(0.004, 0.005), DraftTime(0.001, 0.001)  # one token, two
DRAFTS = {PLAIN: (), LOOKUP: (LOOKUP_S,), DRAFT: (MODEL_S,)}


def trial(mode, tokens, seconds, *, rounds, widths, judged=(0, 0), accepted=(0, 0), repeat=0):
    nodes = mode.k
    counts = Stats(
        rounds=np.array([rounds]),
        emitted=np.array([len(tokens)]),
        drafted=np.array([sum(judged) + 1]),
        judged=np.array([judged[:nodes]], int).reshape(1, nodes),
        accepted=np.array([accepted[:nodes]], int).reshape(1, nodes),
        asked=np.array([[rounds]]),
        drafted_by=np.array([[sum(judged) + 1]]),
        judged_by=np.array([[sum(judged)]]),
        accepted_by=np.array([[sum(accepted)]]),
        widths=np.array(list(widths.values())),
    )
    decoding = Decoding(list(tokens), seconds, 0.05, counts, tuple(widths))
    return Trial(repeat, decoding, PASSES, DRAFTS[mode])


def cell(mode, trials, name="p", category="c", bursts=None):
    return Cell(Prompt(name, category, ("?",)), [1, 2], mode, trials, bursts)


def test_first_difference():
    assert rows.first_difference([1, 2, 3], [1, 2, 3]) is None
    assert rows.first_difference([1, 5, 3], [1, 2, 3]) == 1
    assert rows.first_difference([1, 2], [1, 2, 3]) == 2
    assert rows.first_difference([1, 2, 3], [1, 2]) == 2
    assert rows.first_difference([], []) is None


def test_costs_and_predictions():
    lookup = trial(
        LOOKUP,
        range(10),
        0.100,
        rounds=6,
        widths={1: 2, 2: 0, 3: 4},
        judged=(4, 2),
        accepted=(3, 1),
    )
    passes = (2 * 0.010 + 4 * 0.015) / 6
    assert rows.pass_seconds(lookup) == pytest.approx(passes)
    assert rows.engine_overhead(LOOKUP, lookup) == pytest.approx(1 - (passes + 0.001) / (0.100 / 6))
    assert rows.draft_cost(LOOKUP, lookup) == pytest.approx(0.001 / 2 / 0.010)
    # alpha = 4/6 of 6 judged in 6 rounds: 1 + 4/6 tokens a round.
    expected = (1 + 4 / 6) * 0.010 / (passes + 0.001)
    assert rows.predicted_speedup(LOOKUP, lookup) == pytest.approx(expected)

    draft = trial(DRAFT, range(8), 0.090, rounds=4, widths={3: 4}, judged=(4, 3), accepted=(3, 2))
    cost = 0.005 / 2 / 0.010
    assert rows.draft_cost(DRAFT, draft) == pytest.approx(cost)
    expected = theory.speedup(5 / 7, 2, cost, lambda width: PASSES[width] / PASSES[1])
    assert rows.predicted_speedup(DRAFT, draft) == pytest.approx(expected)
    assert rows.engine_overhead(DRAFT, draft) == pytest.approx(1 - 0.020 / 0.0225)

    # Drafts that end early, 3 tokens in 4 rounds: 1.75 guesses a round of the 2 that were timed.
    unsure = dataclasses.replace(
        DRAFT, always_k=False, drafter=draft_model(TARGET, 2, min_prob=0.5)
    )
    early = trial(
        DRAFT, range(6), 0.08, rounds=4, widths={1: 1, 2: 3}, judged=(2, 0), accepted=(2, 0)
    )
    assert rows.draft_seconds(unsure, early) == pytest.approx(0.004 + 0.75 * 0.001)

    # In turn: six rounds of the look-up's, two of the model's with 3 tokens, two of nobody's.
    model = Drafting(unsure.drafter), Drafting(DRAFT.drafter)
    seen = early.decoding.stats._replace(
        rounds=np.array([10]), asked=np.array([[6, 2]]), drafted_by=np.array([[6, 3]])
    )
    for part, model_s in zip(model, (0.005, 0.0045), strict=True):  # 2 guesses, 1.5
        turns = first_of(LOOKUP.drafter, part.drafter)
        both = dataclasses.replace(
            LOOKUP, drafter=adaptive(turns), parts=(Drafting(LOOKUP.drafter), part)
        )
        decoding = early.decoding._replace(stats=seen)
        spoken = early._replace(decoding=decoding, drafts=(LOOKUP_S, MODEL_S))
        want = (6 * 0.001 + 2 * model_s) / 10
        assert rows.draft_seconds(both, spoken) == pytest.approx(want)
        assert rows.draft_cost(both, spoken) is None

    plain = trial(PLAIN, range(8), 0.088, rounds=8, widths={1: 8})
    assert rows.predicted_speedup(PLAIN, plain) is None
    assert rows.draft_cost(PLAIN, plain) is None


def test_speedups_pair_repeats_and_prompts_count_once():
    def plain(seconds, **more):
        return trial(PLAIN, range(8), seconds, rounds=8, widths={1: 8}, **more)

    def lookup(seconds, **more):
        return trial(LOOKUP, range(8), seconds, rounds=8, widths={1: 8}, **more)

    cells = [
        # A noisy second repeat, slow in both modes: the ratio stays.
        cell(PLAIN, [plain(0.08), plain(0.8, repeat=1), plain(0.08, repeat=2)], "a"),
        cell(LOOKUP, [lookup(0.04), lookup(0.4, repeat=1), lookup(0.04, repeat=2)], "a"),
        cell(PLAIN, [plain(0.08)], "b"),
        cell(LOOKUP, [lookup(0.02)], "b"),
    ]
    built = rows.build(cells, {PLAIN: 1.0, LOOKUP: 2.0}, 100.0, seed=0)
    find = {(r["mode"], r["category"], r["prompt"]): r for r in built}
    assert find["prompt_lookup", "c", "a"]["speedup"] == pytest.approx(2)
    assert find["prompt_lookup", "c", "b"]["speedup"] == pytest.approx(4)
    whole = find["prompt_lookup", rows.ALL, rows.ALL]
    assert whole["speedup"] == pytest.approx(3)  # not 2: "a" has three repeats, and one vote
    assert (whole["speedup_low"], whole["speedup_high"]) == (2, 4)
    assert find["prompt_lookup", "c", "a"]["speedup_low"] is None  # one prompt: no interval
    assert find["plain", rows.ALL, rows.ALL]["speedup"] == 1
    assert whole["compile_s"] == 2.0 and whole["prompts"] == 2 and whole["repeats"] == 3


def test_counts_positions_pauses_and_differences():
    cells = [
        cell(PLAIN, [trial(PLAIN, [1, 2, 3, 4], 0.04, rounds=4, widths={1: 4})]),
        cell(
            LOOKUP,
            [
                trial(
                    LOOKUP, [1, 2, 9, 4], 0.03, rounds=2, widths={1: 0, 2: 0, 3: 2},
                    judged=(2, 1), accepted=(1, 1),
                )
            ],
            bursts=([3, 1], [0.015]),
        ),
    ]  # fmt: skip
    row = rows.build(cells, {PLAIN: 0.0, LOOKUP: 0.0}, 1.0, seed=0)[1]
    assert row["first_difference"] == 2
    assert (row["rounds"], row["new_tokens"], row["judged"], row["accepted"]) == (2, 4, 3, 2)
    assert row["tokens_per_pass"] == 2 and row["acceptance_rate"] == pytest.approx(2 / 3, abs=1e-4)
    assert (row["acceptance_rate_1"], row["acceptance_rate_2"]) == (0.5, 1.0)
    assert row["itl_p50_ms"] == row["itl_p95_ms"] == pytest.approx(15)
    assert row["ttft_ms"] == pytest.approx(50)
