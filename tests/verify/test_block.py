"""Block verification, enumerated: exact over one round and several, and never below token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.draft import Draft
from specjax.verify.block import rule as block_rule
from specjax.verify.token import rule as token_rule
from tests.enumeration import (
    EXACT,
    KINDS,
    SIZES,
    Instance,
    drafts_of,
    emitted_law,
    iid,
    law_and_followers,
    law_over_rounds,
    make,
    target_law,
)
from tests.verify.test_law import match_law


def match_accepted(case: Instance) -> float:
    """Match accepts i tokens when the draft and the target's own draws agree on them."""
    draft, weight, p = drafts_of(case)
    tokens, length = np.asarray(draft.tokens), np.asarray(draft.length)
    agree = np.take_along_axis(p[:, :-1], tokens[:, :, None], 2)[:, :, 0]
    agree = np.cumprod(np.where(np.arange(case.k) < length[:, None], agree, 0), 1)
    return float(np.sum(weight[:, None] * agree))


@pytest.mark.parametrize("kind", KINDS)
def test_block_keeps_the_joint_law_and_accepts_most(kind: str, seed: int) -> None:
    """V = 3 to 5, k = 1 to 4; drafts that stop by the prefix, or hold given tokens."""
    print("V k  block   token   match")
    with jax.enable_x64(True):
        for (vocab, k), instance in ((size, i) for size in SIZES for i in range(3)):
            case = make(seed + instance, vocab, k, **KINDS[kind])
            joint, block, stop = emitted_law(block_rule, case)
            assert np.max(np.abs(joint - target_law(case))) < EXACT, (vocab, k, instance)
            assert np.max(np.abs(stop.sum(1) - 1)) < EXACT, "stop is a distribution"
            assert np.min(stop) >= 0
            token = emitted_law(token_rule, case)[1]
            match = match_accepted(case)
            print(f"{vocab} {k}  {block:.4f}  {token:.4f}  {match:.4f}")
            assert block >= token - EXACT
            assert token >= match - EXACT
            if k == 1:
                assert abs(block - token) < EXACT, "one token: the two rules are one"


def test_match_accepted_is_what_enumeration_says(seed: int) -> None:
    with jax.enable_x64(True):
        for kind, shares in KINDS.items():
            case = make(seed, 3, 2, **shares)
            assert abs(match_law(case)[1] - match_accepted(case)) < EXACT, kind


def test_expected_accepted_tokens_are_the_sum_of_the_weights(seed: int) -> None:
    """Sun et al.: E[accepted] is the sum of E[w_i], w_i = min(1, w_{i-1} p / q)."""
    with jax.enable_x64(True):
        case = make(seed, 4, 3, zeros=0.2)
        draft, chance, p = drafts_of(case)
        tokens = np.asarray(draft.tokens)[:, :, None]
        p_x, q_x = (
            np.take_along_axis(x[:, :-1], tokens, 2)[:, :, 0] for x in (p, np.asarray(draft.probs))
        )
        weight, expected = np.ones(len(chance)), 0.0
        for n in range(case.k):
            ratio = np.where(q_x[:, n] > 0, p_x[:, n] / np.where(q_x[:, n] > 0, q_x[:, n], 1), 0)
            weight = np.minimum(1, weight * ratio)
            expected += float(np.sum(chance * weight))
        assert abs(emitted_law(block_rule, case)[1] - expected) < EXACT


def test_the_toy_of_the_paper() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), two tokens: 11/9 accepted against token's 10/9."""
    with jax.enable_x64(True):
        case = iid([1 / 3, 2 / 3], [2 / 3, 1 / 3], 2)
        block, token = (emitted_law(rule, case) for rule in (block_rule, token_rule))
        print(f"block {block[1]:.6f} = 11/9, token {token[1]:.6f} = 10/9")
        assert abs(block[1] - 11 / 9) < EXACT
        assert abs(token[1] - 10 / 9) < EXACT
        for joint, _, _ in (block, token):
            assert np.max(np.abs(joint - target_law(case))) < EXACT


def test_the_instance_that_tells_wrong_variants_apart() -> None:
    """The one that tests/planted samples from: both rules are exact on it."""
    with jax.enable_x64(True):
        case = iid([0.31, 0.31, 0.38], [0.02, 0.16, 0.82], 3)
        for rule in (block_rule, token_rule):
            joint, accepted, _ = emitted_law(rule, case)
            print(f"{rule.__module__}: {accepted:.4f} accepted")
            assert np.max(np.abs(joint - target_law(case))) < EXACT


# --- several rounds ---


RULES = {"token": token_rule, "block": block_rule}


@pytest.mark.parametrize(("vocab", "k"), SIZES)
@pytest.mark.parametrize("rule", RULES)
def test_the_next_k_plus_3_tokens_over_several_rounds(
    rule: str, vocab: int, k: int, seed: int
) -> None:
    """V = 3 to 5, k = 1 to 4; drafts are cut near the end, as by a budget."""
    count = k + 3
    with jax.enable_x64(True):
        for kind in ("sampled", "confidence", "mixed"):
            case = make(seed, vocab, count - 1, **KINDS[kind])
            got = law_over_rounds(RULES[rule], case, k, count, budget=True)
            assert np.max(np.abs(got - target_law(case))) < EXACT, kind


@pytest.mark.parametrize(("vocab", "k"), [(3, 1), (3, 2), (4, 2), (3, 3)])
@pytest.mark.parametrize("rule", RULES)
def test_a_last_round_that_overshoots(rule: str, vocab: int, k: int, seed: int) -> None:
    """Every draft as long as it likes; of the last round's tokens some are dropped."""
    count = k + 3
    with jax.enable_x64(True):
        for kind in ("zeros", "mixed"):
            deep = make(seed, vocab, count + k, **KINDS[kind])
            got = law_over_rounds(RULES[rule], deep, k, count, budget=False)
            assert np.max(np.abs(got - target_law(deep, count))) < EXACT, kind


# --- corners ---


def block_of(p: list, q: list | None, tokens: list, length: int) -> np.ndarray:
    probs = None if q is None else jnp.asarray([q], jnp.float32)
    draft = Draft(jnp.asarray([tokens], jnp.int32), jnp.array([length], jnp.int32), probs)
    return np.asarray(law_and_followers(block_rule, draft, jnp.asarray([p], jnp.float32))[0][0])


def test_a_later_token_can_save_an_earlier_one() -> None:
    """Not a left-to-right stop: the full run is kept more often than its first token alone."""
    p, q = [[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]], [[1.0, 0.0], [0.45, 0.55], [0.0, 0.0]]
    # w_1 = 0.5, w_2 = min(1, 0.5 * 0.9 / 0.45) = 1: all is kept, where token keeps half.
    assert block_of(p, q, [0, 0], 2).tolist() == [0, 0, 1]


def test_tokens_past_the_end_do_not_count() -> None:
    p, q = [[0.5, 0.5]] * 3, [[1.0, 0.0], [np.nan, np.nan], [np.nan, np.nan]]
    np.testing.assert_allclose(block_of(p, q, [0, 1], 1), [0.5, 0.5, 0])
    assert block_of(p, None, [0, 1], 0).tolist() == [1, 0, 0]


def test_equal_laws_accept_everything() -> None:
    """0 / 0 in h: p equal to q leaves nothing to draw from, so nothing is refused."""
    law_ = [0.1, 0.2, 0.7]
    stop = block_of([law_] * 3, [law_, law_, [0.0] * 3], [2, 0], 2)
    np.testing.assert_allclose(stop, [0, 0, 1], atol=1e-6)


def test_little_left_to_draw_is_still_a_probability() -> None:
    """p and q apart by a rounding error, weight 1: h = left / left, not left / ((left + 1) - 1)."""
    for left in np.array([3, 5, 7, 11]) * 2.0**-25:  # 1 + left is no float32
        p, q = [[0.5, 0.5]] * 3, [[0.5, 0.5], [0.5, 0.5 - left], [0.0, 0.0]]
        # The second token is one that q alone says, so node 1 is where the run has to end.
        p[1], q[1] = [0.5, 0.5, 0.0], [0.5, 0.5 - left, left]
        laws = [[*row, 0.0][:3] for row in p], [[*row, 0.0][:3] for row in q]
        np.testing.assert_allclose(block_of(*laws, [0, 2], 2), [0, 1, 0], err_msg=str(left))


@pytest.mark.parametrize("bad", [-1, 2, 7])
def test_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    stop = block_of([[0.5, 0.5]] * 2, None, [bad], 1)
    assert stop.tolist() == [1, 0]
