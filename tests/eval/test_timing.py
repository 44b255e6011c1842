"""The clocks, on a scripted target."""

import jax
import pytest

from eval import timing
from eval.modes import Mode
from specjax import testing, verify
from specjax.drafters import draft_model, ngram

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
    times = [clock() for _ in range(9)]
    assert all(0 <= time.first <= time.whole for time in times)
    if drafting is MODEL:  # a look-up takes less than clocks can tell
        assert max(time.first for time in times) > 0
    before = jax.device_get(clock._run.state)
    clock()
    after = jax.device_get(clock._run.state)
    assert after.length == before.length == 5
    if drafting is MODEL:  # as after so many rounds of one token; the first one forgets them again
        assert after.drafter.cache.length == before.drafter.cache.length
        assert 5 < after.drafter.cache.length <= 5 + timing.draft_slots(mode.k)


def test_passes_are_timed_at_each_width():
    clock = timing.PassClock(TARGET, TABLE, (4, 1, 4), 64)
    assert list(clock(10)) == [1, 4]
    times = [clock(1000) for _ in range(9)]  # past the end: at it
    assert all(max(one[width] for one in times) > 0 for width in (1, 4))  # a toy's are noisy
