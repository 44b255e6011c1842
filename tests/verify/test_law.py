"""Token and block verification, enumerated over one round; corners of laws and residuals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import warp
from specjax.draft import Draft
from specjax.keys import Noise
from specjax.verify import token
from specjax.verify.base import walk
from specjax.verify.block import rule as block_rule
from specjax.verify.token import rule as token_rule
from tests import support
from tests.enumeration import (
    EXACT,
    KINDS,
    SIZES,
    Instance,
    drafts_of,
    emitted_law,
    law_and_followers,
    make,
    rest_law,
    target_law,
)

RULES = {"token": token_rule, "block": block_rule}


@pytest.mark.parametrize(("vocab", "k"), SIZES)
@pytest.mark.parametrize("rule", RULES)
def test_the_joint_law_of_the_next_tokens_is_the_target_s(
    rule: str, vocab: int, k: int, seed: int
) -> None:
    with jax.enable_x64(True):
        for kind, shares in KINDS.items():
            for instance in range(3):
                case = make(seed + instance, vocab, k, **shares)
                got, accepted, stop = emitted_law(RULES[rule], case)
                assert np.max(np.abs(got - target_law(case))) < EXACT, (kind, instance)
                assert np.max(np.abs(stop.sum(1) - 1)) < EXACT, "stop is a distribution"
                assert np.min(stop) >= -EXACT
                assert 0 <= accepted <= k


def test_token_of_given_drafts_needs_no_q(seed: int) -> None:
    """All nodes given, said either by ``probs=None`` or by ``given``: one law."""
    with jax.enable_x64(True):
        case = make(seed, 4, 3, zeros=0.2, cut=0.2, given=1.0)
        draft, _, p = drafts_of(case)
        marked = law_and_followers(token_rule, draft, jnp.asarray(p))
        bare = law_and_followers(token_rule, draft._replace(probs=None, given=None), jnp.asarray(p))
        for ours, theirs in zip(marked, bare, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=EXACT)


def match_law(case: Instance) -> tuple[np.ndarray, float]:
    """Match, by enumerating the target's own draws at every node of every draft."""
    draft, weight, p = drafts_of(case)
    drawn = support.sequences(case.vocab, case.k + 1)
    joint, accepted = np.zeros(case.vocab ** (case.k + 1)), 0.0
    for row in range(len(weight)):
        if weight[row] == 0:
            continue
        chance = np.prod(p[row][np.arange(case.k + 1), drawn], 1)
        here = slice(row, row + 1)
        one = jax.tree.map(lambda x, at=here: jnp.repeat(x[at], len(drawn), 0), draft)
        verdict = jax.tree.map(np.asarray, jitted_walk(one, jnp.asarray(drawn)))
        tokens = np.repeat(np.asarray(draft.tokens[row : row + 1]), len(drawn), 0)
        at = np.eye(case.k + 1)[verdict.accepted] * (weight[row] * chance)[:, None]
        follow = np.repeat(np.eye(case.vocab)[verdict.token][:, None], case.k + 1, 1)
        joint += rest_law(case, tokens, at, follow)
        accepted += float(np.sum(at.sum(0) * np.arange(case.k + 1)))
    return joint, accepted


jitted_walk = jax.jit(walk)


@pytest.mark.parametrize("kind", KINDS)
def test_match_keeps_the_joint_law_and_accepts_the_fewest(kind: str, seed: int) -> None:
    with jax.enable_x64(True):
        case = make(seed, 3, 2, **KINDS[kind])
        joint, accepted = match_law(case)
        assert np.max(np.abs(joint - target_law(case))) < EXACT
        by_token, by_block = (emitted_law(rule, case)[1] for rule in RULES.values())
        assert by_token >= accepted - EXACT
        assert by_block >= by_token - EXACT
        if kind == "given":
            assert abs(by_token - accepted) < EXACT, "token accepts a given token with p(x) too"


@pytest.mark.parametrize(("vocab", "k"), [(3, 3), (5, 2)])
def test_expected_accepted_tokens(vocab: int, k: int, seed: int) -> None:
    """The chance to accept i tokens is the sum of prod min(p, q) over all sequences of i."""
    with jax.enable_x64(True):
        case = make(seed, vocab, k, zeros=0.2)
        expected, reached = 0.0, np.ones(1)
        for n in range(k):
            reached = (reached[:, None] * np.minimum(case.p[n], case.q[n])).reshape(-1)
            expected += reached.sum()
        assert abs(emitted_law(token_rule, case)[1] - expected) < EXACT


def one_row(p: list, q: list | None, tokens: list, given: bool = False) -> tuple:
    """Law and residuals of one row in float32, as decoding computes them."""
    probs = None if q is None else jnp.asarray([q], jnp.float32)
    flags = jnp.full((1, len(tokens)), given)
    draft = Draft(
        jnp.asarray([tokens], jnp.int32), jnp.array([len(tokens)], jnp.int32), probs, flags
    )
    stop, follow = law_and_followers(token_rule, draft, jnp.asarray([p], jnp.float32))
    return np.asarray(stop[0]), np.asarray(follow[0])


def test_a_token_the_target_never_says_is_never_accepted() -> None:
    stop, follow = one_row([[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 0.0]], [0])
    assert stop.tolist() == [1, 0]
    assert follow[0].tolist() == [0, 1]


def test_residual_is_normalised_not_softmaxed() -> None:
    """F5: after a rejection id 1 has probability 1 and id 2 exactly 0."""
    stop, follow = one_row([[0.5, 0.5, 0.0]] * 2, [[1.0, 0.0, 0.0]] * 2, [0])
    np.testing.assert_allclose(stop, [0.5, 0.5])
    assert follow[0].tolist() == [0, 1, 0]


def test_an_always_wrong_draft_of_one_token_is_checked() -> None:
    """F11: the first draft token is judged like any other."""
    stop, _ = one_row([[0.0, 1.0]] * 2, None, [0], given=True)
    assert stop.tolist() == [1, 0]


def test_a_refused_given_token_is_not_drawn_again() -> None:
    """F10: the recovery law is p without the draft's token."""
    stop, follow = one_row([[0.2, 0.3, 0.5]] * 2, None, [2], given=True)
    np.testing.assert_allclose(stop, [0.5, 0.5])
    np.testing.assert_allclose(follow[0], [0.4, 0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(follow[1], [0.2, 0.3, 0.5], rtol=1e-6)


def test_zero_residual_falls_back_to_p() -> None:
    """F6: p equal to q, exactly or but for rounding: no NaN, a token of p."""
    p = np.array([[0.1, 0.2, 0.7]] * 2, np.float32)
    near = np.asarray(jnp.asarray(p).astype(jnp.bfloat16).astype(jnp.float32))
    for q in (p, near / near.sum(1, keepdims=True)):
        _, follow = one_row(p.tolist(), q.tolist(), [2])
        assert np.all(np.isfinite(follow))
        assert np.all(follow >= 0)
        np.testing.assert_allclose(follow.sum(1), 1, rtol=1e-6)
    _, follow = one_row(p.tolist(), p.tolist(), [2])
    np.testing.assert_allclose(follow[0], p[0], rtol=1e-6)


def test_a_drafter_whose_probabilities_are_nan_costs_acceptance_not_exactness() -> None:
    stop, follow = one_row([[0.2, 0.8]] * 2, [[np.nan, np.nan]] * 2, [0])
    assert stop.tolist() == [1, 0]
    np.testing.assert_allclose(follow[0], [0.2, 0.8], rtol=1e-6)


@pytest.mark.parametrize("bad", [7, -1, 2])
def test_given_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    """F44: a clamped or wrapped index would accept the id with another id's probability."""
    stop, follow = one_row([[0.5, 0.5]] * 2, None, [bad], given=True)
    assert stop.tolist() == [1, 0]
    np.testing.assert_allclose(follow[0], [0.5, 0.5])


def test_verify_changes_none_of_its_inputs() -> None:
    """F10: numpy inputs hold what they held."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 5)).astype(np.float32)
    probs = np.asarray(warp.apply(warp.Sampling(jnp.ones(2)), jnp.asarray(logits)))
    draft = Draft(np.array([[1, 2], [3, 4]], np.int32), np.array([2, 1], np.int32), probs.copy())
    before = logits.copy(), support.copied(draft)
    noise = Noise(jax.random.split(jax.random.key(0), 2), jnp.array([4, 5], jnp.int32))
    jax.jit(token.verify)(draft, logits, warp.Sampling(jnp.ones(2)), noise)
    np.testing.assert_array_equal(logits, before[0])
    for ours, theirs in zip(draft[:3], before[1][:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
