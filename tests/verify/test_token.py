"""Token verification through the whole compiled loop: the joint law of the tokens it emits.

A first-token marginal is blind to most faults, and a test of one round is blind to noise used
twice, so each test compares the joint of the first k + 3 tokens. tests/planted shows the power of
such tests.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, keys, testing, verify
from specjax.draft import Drafter
from specjax.drafters import draft_model, ngram, suffix
from specjax.round import run_round
from specjax.verify import Verifier, law
from specjax.verify.token import rule
from tests import support

VOCAB, K, ROWS = 4, 3, 20_000
COUNT = K + 3
PROMPT = [1, 0, 1, 0]
TARGET = testing.scripted_target(VOCAB)
# The target never says id 3 (padding is -inf); drafters do.
TABLE = testing.scripted_table(5, VOCAB, scale=0.8).at[:, 3].set(-jnp.inf)
DRAFT_TABLE = testing.scripted_table(6, VOCAB, scale=0.8)
NEVER = 3


def emitted(
    verifier: Verifier,
    drafter: Drafter | None,
    params: Any,
    *,
    eos: int = NEVER,
    table: Any = TABLE,
    prompt: list[int] = PROMPT,
    seed: int = 0,
    **settings: Any,
) -> tuple[np.ndarray, specjax.SampleOutput]:
    """The first k + 3 tokens of many rows of one prompt; an EOS repeats for ever."""
    nodes = drafter.num_nodes if drafter else 0
    out = specjax.sample(
        TARGET,
        table,
        np.tile(prompt, (ROWS, 1)),
        drafter=drafter,
        drafter_params=params,
        verifier=verifier,
        max_new_tokens=COUNT,
        max_length=len(prompt) + COUNT + max(nodes, 1),
        sampling=Sampling(**{"temperature": 1.0, **settings}),
        eos_ids=(eos,),
        pad_id=eos,
        key=jax.random.key(seed),
    )
    return np.asarray(out.tokens), out


def markov_params(seed: int, ends: list[int]) -> support.MarkovParams:
    logits = np.random.default_rng(seed).normal(size=(VOCAB, VOCAB))
    return support.MarkovParams(
        jnp.asarray(logits, jnp.float32), jnp.asarray(np.isin(np.arange(VOCAB), ends))
    )


PAST = support.past_of(np.random.default_rng(2).integers(0, VOCAB - 1, (9, 20)).tolist(), 150)
SCRIPT = jnp.asarray(np.tile([-1, -1, -1, -1, 0, 2, 1, 3, 0, -1, 1, 0, 0], (ROWS, 1)), jnp.int32)
DRAFTERS: dict[str, tuple[Drafter | None, Any]] = {
    "plain": (None, None),
    "draft model": (draft_model(TARGET, K), DRAFT_TABLE),
    "ngram": (ngram(K), None),
    "suffix": (suffix(K, growth=None), PAST),
    "oracle": (testing.oracle(K), SCRIPT),
    "mixed": (support.markov(K, (False, True, False)), markov_params(0, [])),
    "partial": (support.markov(K), markov_params(1, [1])),
}


# Match with the other drafters: test_match.py compares it with plain decoding path by path.
CASES = [("token", name) for name in DRAFTERS] + [("match", "plain"), ("match", "draft model")]


@pytest.mark.parametrize(("rule_name", "name"), CASES)
def test_the_joint_law_is_the_target_s(rule_name: str, name: str, seed: int) -> None:
    drafter, params = DRAFTERS[name]
    verifier = {"token": verify.token, "match": verify.match}[rule_name]
    # No EOS first, then one in the middle of runs; the same compiled program.
    for eos in (NEVER, 2):
        tokens, out = emitted(verifier, drafter, params, eos=eos, seed=seed)
        want = support.joint_law(TABLE, PROMPT, COUNT, eos)
        assert support.p_value(tokens, want, VOCAB) > support.SIGNIFICANCE, eos
        assert not np.any(tokens == 3) or eos == 3
        by_position = specjax.stats.acceptance_by_position(out.stats)
        assert drafter is None or all(0.03 < rate < 0.97 for rate in by_position), by_position


def test_warped_laws_are_kept_too(seed: int) -> None:
    """Temperature, top-k, top-p and min-p, p and q through the same warp (F1: q after it)."""
    settings = dict(temperature=1.4, top_k=3, top_p=0.95, min_p=0.1)
    table = testing.scripted_table(7, VOCAB, scale=1.0)
    tokens, _ = emitted(
        verify.token, *DRAFTERS["draft model"], table=table, eos=0, seed=seed, **settings
    )
    want = support.joint_law(table, PROMPT, COUNT, 0, **settings)
    assert np.mean(want == 0) > 0.3, "the filters must bite"
    assert support.p_value(tokens, want, VOCAB) > support.SIGNIFICANCE


def test_with_several_blocks_of_ids_too(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Both numbers of a draw decide: two blocks of two ids."""
    monkeypatch.setattr(keys, "_BLOCK", 2)
    tokens, _ = emitted(new_token(), *DRAFTERS["draft model"], seed=seed)
    want = support.joint_law(TABLE, PROMPT, COUNT)
    assert support.p_value(tokens, want, VOCAB) > support.SIGNIFICANCE


def test_no_noise_is_used_twice_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """F8, F9: every use in a round has a stream and offset of its own."""
    uses: list[tuple[int, int]] = []
    uniforms = keys.uniforms

    def recorded(noise: keys.Noise, offset: Any, stream: int, count: int) -> jax.Array:
        uses.append((int(offset), stream))
        return uniforms(noise, offset, stream, count)

    monkeypatch.setattr(keys, "uniforms", recorded)
    drafter, params = support.markov(K), markov_params(1, [])
    run = specjax.start(
        TARGET, TABLE, [PROMPT], drafter=drafter, drafter_params=params, max_new_tokens=9,
        sampling=Sampling(temperature=1.0), verifier=new_token(), key=jax.random.key(0),
        widths=(K + 1,),  # of several, a round uses one
    )  # fmt: skip
    jax.eval_shape(partial(run_round, run.engine), run.params, run.request, run.state)
    assert len(uses) == len(set(uses)) == K + 2
    assert {stream for _, stream in uses} == {keys.DRAFT, keys.ACCEPT, keys.RESIDUAL}


def test_a_law_that_depends_on_unjudged_drafts_is_kept(seed: int) -> None:
    drafter, params = support.sticky(K), sticky_params()
    tokens, _ = emitted(verify.token, drafter, params, seed=seed)
    assert (
        support.p_value(tokens, support.joint_law(TABLE, PROMPT, COUNT), VOCAB)
        > support.SIGNIFICANCE
    )


def sticky_params() -> jax.Array:
    """What was drafted for the position before, is likely not to be drafted again."""
    fresh = np.log([[0.3, 0.3, 0.3, 0.1]])
    return jnp.asarray(np.concatenate([-4 * np.eye(VOCAB), fresh]), jnp.float32)


def new_token() -> Verifier:
    """The rule as an object of its own: a new program, traced with what is patched."""
    return Verifier(partial(law.verify, rule), "token", uses_q=True)
