"""Calibration: what it times is there, and what it decides by is its own."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, calibrate, costs, testing
from specjax.adapt import adapt, adaptive_params
from specjax.adaptive import AdaptiveParams
from specjax.draft import Draft, Drafter
from specjax.drafters import draft_model, ngram
from specjax.target import Target
from tests import support

VOCAB, K = 7, 4
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(10, VOCAB)
MODEL = draft_model(TARGET, K)
SHORT = dict(contexts=(4, 20))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted target needs no long look."""
    module = calibrate.__globals__
    for name, value in (("_SECONDS", 1e-3), ("_REPEATS", 2)):
        monkeypatch.setitem(module, name, value)


def slow(work: int) -> Any:
    """Takes its time on the device: a product of matrices again and again."""
    ones = jnp.ones([128, 128]) / 128

    def spent(x: jax.Array) -> jax.Array:
        out = jax.lax.fori_loop(0, work, lambda _, y: y @ ones, ones + 0 * jnp.sum(x))
        return (jnp.sum(out) * 0).astype(x.dtype)

    return spent


def costly_target(work: int) -> Target:
    """Each token of a pass costs the same work."""

    def apply(params: Any, tokens: Any, cache: Any, **how: Any) -> Any:
        logits, features, cache = TARGET.apply(params, tokens, cache, **how)
        return logits + slow(work * tokens.shape[1])(logits), features, cache

    return TARGET._replace(apply=apply)


def costly_drafter(work: int) -> Drafter:
    """Each token of a draft costs the same work, and a silent one none."""

    def propose(params: Any, state: Any, context: Any, limit: Any) -> Any:
        draft = Draft(jnp.zeros([limit.shape[0], K], jnp.int32), limit)
        spent = jax.lax.fori_loop(
            0, jnp.max(limit), lambda _, x: x + slow(work)(x), jnp.zeros([], jnp.float32)
        )
        return draft._replace(tokens=draft.tokens + spent.astype(jnp.int32)), state, context.cache

    return Drafter(lambda *_: (), propose, lambda params, state, *_: state, K)


def test_costs_are_in_proportion_to_the_work(tmp_path: pathlib.Path) -> None:
    """A pass of four tokens takes what four passes of one take, and so do drafts."""
    table = calibrate(
        costly_target(40), TABLE, costly_drafter(40), contexts=(4,), widths=(1, 3, 5),
        folder=tmp_path,
    )  # fmt: skip
    one, three, five = table.target_s[0, 0]
    assert 2 < three / one < 4 and 3.3 < five / one < 6.5
    none, first, _, last = table.draft_s[0]
    assert none < 0.4 * first and 2.5 < last / first < 6
    assert 0.5 < first / one < 1.6


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
        (dict(batches=()), r"batches=\[\]; they must ascend from at least 1"),
        (dict(batches=(2, 1)), r"batches=\[2, 1\]"),
        (dict(contexts=(1,)), r"contexts=\[1\]; they must ascend from at least 2"),
        (dict(widths=(1, 2)), "widths"),
    ],
)
def test_bad_input_is_named(how: Any, words: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=words):
        calibrate(TARGET, TABLE, MODEL, TABLE, folder=tmp_path, **{**SHORT, **how})
    assert not list(tmp_path.iterdir())


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
        (dict(tables=[]), "1 drafters, 1 drafter_params and 0 tables"),
        (dict(acceptance=1.5), "acceptance=1.5; it must be 0 to 1"),
        (dict(acceptance=[]), "acceptance holds 0 stats for 1 drafters"),
    ):
        with pytest.raises(ValueError, match=words):
            adaptive_params(**{**good, **wrong})
