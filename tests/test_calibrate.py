"""Calibration: what it times is there, and what it decides by is its own."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, calibrate, calibrate_all, clocks, costs, policies, testing
from specjax.adapt import adapt, adaptive_params
from specjax.adaptive import AdaptiveParams, adaptive
from specjax.costs import CostTable
from specjax.draft import Draft, Drafter
from specjax.drafters import draft_model, ngram
from specjax.target import Target
from tests import support
from tests.clock import Clock

VOCAB, K = 7, 4
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(10, VOCAB)
MODEL = draft_model(TARGET, K)
SHORT = dict(contexts=(4, 20))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted target needs no long look."""
    for name, value in (("_SECONDS", 1e-3), ("_REPEATS", 2)):
        monkeypatch.setattr(clocks, name, value)


def costly_target(clock: Clock) -> Target:
    """A token of a pass takes two milliseconds, and a pass four more."""

    def apply(params: Any, tokens: Any, cache: Any, **how: Any) -> Any:
        logits, features, cache = TARGET.apply(params, tokens, cache, **how)
        spent = clock.spend(4 + 2 * tokens.shape[1])
        return logits + spent.astype(logits.dtype), features, cache

    return TARGET._replace(apply=apply)


def costly_drafter(clock: Clock, *, token: int = 1, silent: int = 0, k: int = K) -> Drafter:
    """What a token of a draft takes, and a silent one's state; in milliseconds."""

    def propose(params: Any, state: Any, context: Any, limit: Any) -> Any:
        spent = clock.spend(token * jnp.max(limit))
        tokens = jnp.zeros([limit.shape[0], k], jnp.int32) + spent
        return Draft(tokens, limit), state, context.cache

    def update(params: Any, state: Any, context: Any, record: Any) -> Any:
        return state + clock.spend(silent)

    return Drafter(lambda *_: jnp.zeros([], jnp.int32), propose, update, k)


def test_costs_are_those_of_the_parts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass by its tokens, a draft by its own, apart from each other, in seconds."""
    clock = Clock()
    monkeypatch.setattr(clocks, "time", clock)
    table = calibrate(
        costly_target(clock), TABLE, costly_drafter(clock), contexts=(4, 20), widths=(1, 3, 5),
        folder=tmp_path,
    )  # fmt: skip
    np.testing.assert_allclose(table.target_s[0], [[6e-3, 10e-3, 14e-3]] * 2, rtol=1e-6)
    assert table.drafts == (0, 1, 2, 4)
    np.testing.assert_allclose(table.draft_s[0], [0, 1e-3, 2e-3, 4e-3], rtol=1e-6, atol=1e-12)


def test_several_are_timed_in_one_loop(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one's draft by its own tokens; that both stay silent in 6 ms is shared out."""
    clock = Clock()
    monkeypatch.setattr(clocks, "time", clock)
    both = costly_drafter(clock, silent=4, k=2), costly_drafter(clock, token=3, silent=2)
    target, how = costly_target(clock), dict(contexts=(4, 20), widths=(1, 2, 5), folder=tmp_path)
    tables = calibrate_all(target, TABLE, both, (None, None), **how)
    assert [table.widths for table in tables] == [(1, 2, 3), (1, 2, 5)]
    assert [table.drafts for table in tables] == [(0, 1, 2), (0, 1, 2, 4)]
    # A pass over three tokens is as wide as one over five.
    np.testing.assert_allclose(tables[0].target_s[0], [[6e-3, 8e-3, 14e-3]] * 2, rtol=1e-6)
    np.testing.assert_allclose(tables[1].target_s[0], [[6e-3, 8e-3, 14e-3]] * 2, rtol=1e-6)
    np.testing.assert_allclose(tables[0].draft_s[0], [3e-3, 4e-3, 5e-3], rtol=1e-6)
    np.testing.assert_allclose(tables[1].draft_s[0], [3e-3, 6e-3, 9e-3, 15e-3], rtol=1e-6)
    given = adaptive_params(target, TABLE, both, (None, None), tables, widths=(1, 2, 5)).costs
    want = [[6e-3, 7e-3, 8e-3, np.inf, np.inf], [6e-3, 9e-3, 12e-3, 15e-3, 18e-3]]
    np.testing.assert_allclose(given.draft, want, rtol=1e-6)
    monkeypatch.setattr(clocks.Clocks, "measure", None)  # from disk, or not at all
    again = calibrate_all(target, TABLE, both, (None, None), **how)
    assert [table.draft_s.tolist() for table in again] == [t.draft_s.tolist() for t in tables]


def test_noise_makes_nothing_seem_cheaper_than_it_is() -> None:
    """A short draft that came out dear and a long one that came out cheap meet in the middle."""
    np.testing.assert_allclose(clocks._ascending(np.array([0.0, 1, 3, 2, 4])), [0, 1, 2.5, 2.5, 4])
    np.testing.assert_allclose(clocks._ascending(np.array([0.0, 1, 2, 0])), [0, 1, 1, 1])
    # What silence takes is in every round, whatever a short draft seems to take less.
    np.testing.assert_allclose(
        clocks._drafts(np.array([0.5, 0.1, 0.7, 0.6])), [0.5, 0.5, 0.65, 0.65]
    )
    np.testing.assert_allclose(clocks._drafts(np.array([-0.5, 0.1])), [0, 0.1])
    np.testing.assert_allclose(clocks._drafts(np.array([1e-9])), [0])


def made_table(drafter: Drafter, widths: tuple[int, ...], pace: float, step: float) -> CostTable:
    """A pass over t tokens takes ``10 + t`` at this pace, a draft token ``step``; idle, a tenth."""
    nodes = widths[-1] - 1
    origin = costs.origin_of(
        TARGET, TABLE, drafter, TABLE if drafter is MODEL else None,
        jnp.dtype("float32"), "greedy",
    )  # fmt: skip
    target = pace * (10.0 + np.array(widths))
    draft = pace * step * np.array([0.1, *range(1, nodes + 1)])
    return CostTable(
        origin, (2,), (8, 16), widths, tuple(range(nodes + 1)), np.tile(target, (1, 2, 1)), draft[None]
    )  # fmt: skip


def test_numbers_of_several_tables() -> None:
    """Passes are those of the longest drafts; the other table's machine was half as fast."""
    short, long = ngram(2), MODEL
    tables = [made_table(short, (1, 3), 2.0, 0.5), made_table(long, (1, 2, K + 1), 1.0, 3.0)]
    given = adaptive_params(
        TARGET, TABLE, [short, long], [None, TABLE], tables, batch=2, widths=(1, 2, 3, K + 1)
    ).costs
    # No table of the longest drafts has three tokens: they cost what the next wider pass does.
    wide = 10 + K + 1
    np.testing.assert_allclose(given.target, [[11, 12, wide, wide, wide]] * 2)
    alone = np.array([0.05, 0.5, 1, np.inf, np.inf]), np.array([0.3, 3, 6, 9, 12])
    np.testing.assert_allclose(given.draft, [alone[0] + 0.3, alone[1] + 0.05], rtol=1e-6)
    np.testing.assert_array_equal(given.contexts, [8, 16])
    assert given.batch.rows == 2
    other = dataclasses.replace(tables[0], contexts=(8, 17))
    with pytest.raises(
        ValueError, match=r"of the contexts \[\(8, 17\), \(8, 16\)\]; calibrate all"
    ):
        adaptive_params(TARGET, TABLE, [short, long], [None, TABLE], [other, tables[1]], batch=2)


def test_costs_of_another_batch_are_refused() -> None:
    table = made_table(MODEL, (1, 2, K + 1), 1.0, 0.1)
    given = adaptive_params(TARGET, TABLE, [MODEL], [TABLE], [table], batch=2)
    how = dict(drafter=adaptive(MODEL), drafter_params=given, max_new_tokens=4)
    out = specjax.sample(TARGET, TABLE, [[1], [2]], **how)
    specjax.sample(TARGET, TABLE, [[1], [2]], **how | {"drafter_params": out.drafter_params})
    fixed = how | {"drafter": adaptive(MODEL, policy=policies.fixed(2))}  # reads no costs
    specjax.sample(TARGET, TABLE, [[1], [2], [3]], **fixed)
    with pytest.raises(ValueError, match="the costs of batch 2, and this run has 3 rows; give ada"):
        specjax.sample(TARGET, TABLE, [[1], [2], [3]], **how)


def test_a_table_is_kept_and_found_again(tmp_path: pathlib.Path, quick: None) -> None:
    table = calibrate(TARGET, TABLE, MODEL, TABLE, **SHORT, folder=tmp_path, batches=(1, 2))
    assert table.batches == (1, 2) and table.widths[-1] == K + 1 and table.drafts == (0, 1, 2, K)
    (file,) = tmp_path.iterdir()
    again = calibrate(TARGET, TABLE, MODEL, TABLE, **SHORT, folder=tmp_path, batches=(1, 2))
    np.testing.assert_array_equal(again.target_s, table.target_s)
    written = file.stat().st_mtime_ns
    calibrate(TARGET, TABLE, MODEL, TABLE, **SHORT, folder=tmp_path, batches=(1, 2), fresh=True)
    assert file.stat().st_mtime_ns > written and len(list(tmp_path.iterdir())) == 1
    calibrate(TARGET, TABLE, ngram(K), **SHORT, folder=tmp_path)
    calibrate(TARGET, TABLE, ngram(K, n_max=5), **SHORT, folder=tmp_path)  # another's work
    calibrate(TARGET, TABLE, **SHORT, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
    file.write_text(
        file.read_text().replace('"batches": [\n  1,\n  2\n ]', '"batches": [\n  1,\n  3\n ]')
    )
    assert costs.load(file).batches == (1, 3)  # a table, but not the one that was asked for
    again = calibrate(TARGET, TABLE, MODEL, TABLE, **SHORT, folder=tmp_path, batches=(1, 2))
    assert again.batches == (1, 2)


@pytest.mark.parametrize(
    "how",
    [
        dict(),
        dict(sampling=Sampling(1.0)),
        dict(sampling=Sampling(1.0), verifier=specjax.verify.coupled),
    ],
)
def test_every_rule_can_be_timed(how: Any, tmp_path: pathlib.Path, quick: None) -> None:
    table = calibrate(TARGET, TABLE, MODEL, TABLE, **SHORT, folder=tmp_path, **how)
    assert np.all(table.target_s > 0) and table.origin.verifier in ("greedy", "block", "coupled")


def test_from_costs_to_answers(tmp_path: pathlib.Path, quick: None) -> None:
    prompts = [[1, 2], [3]]
    drafter, given = adapt(
        TARGET, TABLE, [MODEL, ngram(2)], [TABLE, None], batch=2, folder=tmp_path, **SHORT
    )
    out = specjax.sample(
        TARGET, TABLE, prompts, max_new_tokens=12, drafter=drafter, drafter_params=given
    )
    assert out.tokens.tolist() == [support.plain_greedy(TABLE, p, 12) for p in prompts]
    one, params = adapt(TARGET, TABLE, MODEL, TABLE, folder=tmp_path, **SHORT)
    assert one.num_nodes == K and isinstance(params, AdaptiveParams)


def test_what_to_expect_comes_from_an_earlier_run(tmp_path: pathlib.Path, quick: None) -> None:
    """Right and drafted given that all before were right, counted by hand."""
    table = calibrate(TARGET, TABLE, MODEL, TABLE, **SHORT, folder=tmp_path)
    close = TABLE + testing.scripted_table(11, VOCAB, scale=0.5)
    out = specjax.sample(
        TARGET, TABLE, [[1], [2]], max_new_tokens=60, drafter=MODEL, drafter_params=close
    )
    given = adaptive_params(TARGET, TABLE, [MODEL], [TABLE], [table], acceptance=[out.stats])
    right, judged = (np.asarray(x).sum(0) for x in (out.stats.accepted, out.stats.judged))
    before = np.array([int(out.stats.rounds.sum()), *right[:-1]])
    np.testing.assert_allclose(given.costs.accepted[0], right / before, rtol=1e-6)
    np.testing.assert_allclose(given.costs.drafted[0], judged / before, rtol=1e-6)


def test_a_drafter_that_would_stop_is_timed_whole(tmp_path: pathlib.Path, quick: None) -> None:
    timed = []

    def whole_propose(*arguments: Any) -> Any:
        timed.append("whole")
        return MODEL.propose(*arguments)

    unsure = MODEL._replace(whole=MODEL._replace(propose=whole_propose))
    calibrate(TARGET, TABLE, unsure, TABLE, **SHORT, folder=tmp_path)
    assert timed


def bad_cache_target() -> Target:
    def init_cache(*arguments: Any) -> Any:
        return dict(TARGET.init_cache(*arguments)._asdict())

    return TARGET._replace(init_cache=init_cache)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (dict(batches=()), r"batches=\(\); they must ascend from at least 1"),
        (dict(batches=(2, 1)), r"batches=\(2, 1\)"),
        (dict(batches=1), "batches=1; it must be a sequence of ints"),
        (dict(batches=(1.5,)), r"batches=\(1.5,\); it must be a sequence of ints"),
        (dict(contexts=(1,)), r"contexts=\(1,\); they must ascend from at least 2"),
        (dict(widths=(1, 2)), "widths"),
        (dict(widths=5), "widths=5; it must be a sequence of ints"),
        (dict(dtype="nope"), "dtype='nope'; it must be of floating point"),
    ],
)
def test_bad_input_is_named(how: Any, words: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=words):
        calibrate(TARGET, TABLE, MODEL, TABLE, folder=tmp_path, **{**SHORT, **how})
    assert not list(tmp_path.iterdir())


def test_drafters_and_their_parameters_come_in_lists(tmp_path: pathlib.Path) -> None:
    for drafters, given, words in (
        ([MODEL, MODEL], [TABLE], "a list with the drafter_params of each"),
        (MODEL, [TABLE], "give a list of drafters"),
        ([MODEL], TABLE, "give a list of drafters"),
        ([None], [None], "None is no drafter"),
    ):
        with pytest.raises(ValueError, match=words):
            calibrate_all(TARGET, TABLE, drafters, given, **SHORT, folder=tmp_path)


def test_a_folder_that_is_none_is_refused_before_anything_is_timed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    never = TARGET._replace(apply=None)
    with pytest.raises(ValueError, match=r"folder='.*file' can't be made .*; name another"):
        calibrate(never, TABLE, MODEL, TABLE, **SHORT, folder=tmp_path / "file")


def test_tables_of_something_else(tmp_path: pathlib.Path, quick: None) -> None:
    table = calibrate(TARGET, TABLE, MODEL, TABLE, **SHORT, folder=tmp_path)
    good = dict(
        target=TARGET, params=TABLE, drafters=[MODEL], drafter_params=[TABLE], tables=[table]
    )
    for wrong, words in (
        (dict(drafters=[ngram(K)]), "of another drafter"),
        (dict(params=TABLE[:-1]), "of another model"),
        (dict(dtype=jnp.bfloat16), "of another dtype"),
        (dict(batch=2), "batch=2"),
        (dict(batch=1.5), "batch=1.5; it must be an int"),
        (dict(tables=[]), "1 drafters, 1 drafter_params and 0 tables"),
        (dict(acceptance=1.5), "acceptance=1.5; it must be 0 to 1"),
        (dict(acceptance=True), "acceptance is neither a number from 0 to 1 nor"),
        (dict(acceptance=[]), "acceptance holds 0 stats for 1 drafters"),
    ):
        with pytest.raises(ValueError, match=words):
            adaptive_params(**{**good, **wrong})
