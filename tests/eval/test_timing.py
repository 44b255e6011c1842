"""The clocks, on a scripted target: from which state, and by a clock that stands still what."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from eval import timing
from eval.modes import Mode
from specjax import testing, verify
from specjax.draft import Draft, Drafter
from specjax.drafters import draft_model, ngram
from specjax.target import Target
from tests.clock import Clock

VOCAB = 9
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
MODEL, LOOKUP = (draft_model(TARGET, 3), TABLE), (ngram(4), None)


@pytest.mark.parametrize("drafting", [MODEL, LOOKUP], ids=["model", "lookup"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_is_timed_from_the_same_state_again_and_again(drafting, temperature):
    rule = verify.block if temperature else verify.greedy
    mode = Mode("drafting", temperature, rule, *drafting)
    clock = timing.DraftClock(
        TARGET, TABLE, mode, [1, 2, 3, 4, 5], max_new_tokens=timing.draft_slots(mode.k)
    )
    clock()
    before = jax.device_get(clock._run.state)
    clock()
    after = jax.device_get(clock._run.state)
    assert after.length == before.length == 5
    if drafting is MODEL:  # as after so many rounds of one token; the first one forgets them again
        assert after.drafter.cache.length == before.drafter.cache.length
        assert 5 < after.drafter.cache.length <= 5 + timing.draft_slots(mode.k)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def costly_drafter(clock: Clock, k: int) -> Drafter:
    """A draft takes four milliseconds and two more a token, and an update one."""

    def propose(params: Any, state: Any, context: Any, limit: Any) -> Any:
        spent = clock.spend(4 + 2 * jnp.max(limit))
        tokens = jnp.zeros([limit.shape[0], k], jnp.int32) + spent
        return Draft(tokens, limit), state, context.cache

    def update(params: Any, state: Any, context: Any, record: Any) -> Any:
        return state + clock.spend(1)

    return Drafter(lambda *_: jnp.zeros([], jnp.int32), propose, update, k)


@pytest.mark.parametrize(("k", "whole"), [(3, 11e-3), (1, 7e-3)])
def test_a_drafters_time_is_its_own(
    monkeypatch: pytest.MonkeyPatch, standing: Clock, k: int, whole: float
) -> None:
    """Propose and update, of one token and of k: without the target, and without the reading."""
    read, reads = timing._read, timing._reads.__wrapped__

    def costly_read(other: Any, number: Any) -> Any:
        return read(other, number) + standing.spend(50).astype(other.dtype)

    monkeypatch.setattr(timing, "_read", costly_read)
    monkeypatch.setattr(timing, "_reads", jax.jit(lambda *arguments: reads(*arguments)))
    mode = Mode("drafting", 0.0, verify.greedy, costly_drafter(standing, k))
    slots = timing.draft_slots(k)
    clock = timing.DraftClock(costly_target(standing), TABLE, mode, [1, 2], max_new_tokens=slots)
    for _ in range(3):
        assert clock() == pytest.approx((7e-3, whole), rel=1e-9)


def costly_target(clock: Clock) -> Target:
    """A pass takes four milliseconds and two more a token; more where it begins past slot 30."""

    def apply(params: Any, tokens: Any, cache: Any, **how: Any) -> Any:
        far = jnp.where(cache.length[0] > 30, 10, 0)
        logits, features, cache = TARGET.apply(params, tokens, cache, **how)
        spent = clock.spend(4 + 2 * tokens.shape[1] + far)
        return logits + spent.astype(logits.dtype), features, cache

    return TARGET._replace(apply=apply)


def test_passes_are_timed_at_each_width(standing: Clock) -> None:
    clock = timing.PassClock(costly_target(standing), TABLE, (4, 1, 4), 64)
    assert list(clock(10)) == [1, 4]
    for _ in range(3):
        assert clock(10) == pytest.approx({1: 6e-3, 4: 12e-3}, rel=1e-9)
        assert clock(1000) == pytest.approx({1: 16e-3, 4: 22e-3}, rel=1e-9)  # at the end


def test_an_interrupted_call_makes_no_pass_free(
    monkeypatch: pytest.MonkeyPatch, standing: Clock
) -> None:
    """The machine does something else during an empty call, or during all of them."""
    clock = timing.PassClock(costly_target(standing), TABLE, (1,), 64)
    passes, empty = timing._passes, []

    def interrupted(*arguments: Any) -> Any:
        if arguments[-1] == 0:
            empty.append(1)
            standing.now += pauses.get(len(empty), pauses.get(0, 0.0))
        return passes(*arguments)

    monkeypatch.setattr(timing, "_passes", interrupted)
    pauses = {1: 9.0}
    assert clock(10) == pytest.approx({1: 6e-3}, rel=1e-9)
    pauses = {0: 9.0}
    assert 0 < clock(10)[1] < 1e-6
