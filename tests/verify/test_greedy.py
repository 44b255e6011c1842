"""Greedy verification: plain argmax decoding, for any draft."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax import keys, warp
from specjax.draft import Draft
from specjax.verify import greedy, match, token

verify = jax.jit(greedy.verify)


def verdict_of(tokens: list, length: list, truth: list) -> tuple[list, list]:
    """``truth[b][n]`` is the argmax at node n."""
    logits = jax.nn.one_hot(jnp.array(truth), 10)
    draft = Draft(jnp.array(tokens, jnp.int32), jnp.array(length, jnp.int32))
    noise = keys.Noise(jax.random.split(jax.random.key(0), len(length)), jnp.array(length))
    verdict = verify(draft, logits, warp.Sampling(), noise)
    assert verdict.accepted.dtype == verdict.token.dtype == verdict.path.dtype == jnp.int32
    assert verdict.path.tolist() == [list(range(len(truth[0])))] * len(truth)
    return verdict.accepted.tolist(), verdict.token.tolist()


def test_the_run_ends_at_the_first_difference() -> None:
    truth = [[1, 2, 3, 4]] * 5
    tokens = [[1, 2, 3], [1, 2, 0], [1, 0, 3], [0, 2, 3], [0, 0, 0]]
    assert verdict_of(tokens, [3] * 5, truth) == ([3, 2, 1, 0, 0], [4, 3, 2, 1, 1])


def test_tokens_past_a_row_s_own_length_do_not_count() -> None:
    """Each row's own length, not k: the token after the last real one is the bonus."""
    truth = [[1, 2, 3, 4]] * 4
    assert verdict_of([[1, 2, 3]] * 4, [0, 1, 2, 3], truth) == ([0, 1, 2, 3], [1, 2, 3, 4])


def test_no_draft_at_all() -> None:
    """N = 0 is plain decoding."""
    assert verdict_of([[], []], [0, 0], [[3], [7]]) == ([0, 0], [3, 7])


def test_ties_go_to_the_first_id() -> None:
    logits = jnp.array([[[0.0, 2.0, 2.0, -jnp.inf]] * 2])
    noise = keys.Noise(jax.random.split(jax.random.key(0), 1), jnp.array([1]))
    for drafted, accepted in ((1, 1), (2, 0)):
        draft = Draft(jnp.array([[drafted]], jnp.int32), jnp.array([1], jnp.int32))
        verdict = verify(draft, logits, warp.Sampling(), noise)
        assert (int(verdict.accepted[0]), int(verdict.token[0])) == (accepted, 1)


def test_huge_and_infinite_logits_need_no_softmax() -> None:
    logits = jnp.array([[[3e38, -jnp.inf, 2.9e38]] * 2])
    draft = Draft(jnp.array([[0]], jnp.int32), jnp.array([1], jnp.int32))
    noise = keys.Noise(jax.random.split(jax.random.key(0), 1), jnp.array([1]))
    verdict = verify(draft, logits, warp.Sampling(), noise)
    assert (int(verdict.accepted[0]), int(verdict.token[0])) == (1, 0)


def test_random_drafts_against_python(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, tokens = rng.integers(0, 2, (200, 5)), rng.integers(0, 2, (200, 4))
    length = rng.integers(0, 5, 200)
    accepted, following = verdict_of(tokens.tolist(), length.tolist(), truth.tolist())
    for row in range(200):
        n = 0
        while n < length[row] and tokens[row, n] == truth[row, n]:
            n += 1
        assert (accepted[row], following[row]) == (n, truth[row, n])


def test_what_verifiers_say_of_themselves() -> None:
    verifiers = {"greedy": greedy, "match": match, "token": token}
    assert [verifier.name for verifier in verifiers.values()] == list(verifiers)
    assert [name for name, verifier in verifiers.items() if verifier.greedy] == ["greedy"]
    assert [name for name, verifier in verifiers.items() if verifier.uses_q] == ["token"]
    assert all(verifier.lossless for verifier in verifiers.values())
