"""Typical and relaxed acceptance: what their thresholds say, and that they are lossy and say so."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from eval import distance, toy
from specjax import Sampling, keys, verify, warp
from specjax.draft import Draft
from specjax.verify import Verifier, lossy
from tests import support
from tests.drafters import test_medusa
from tests.drafters.test_eagle import TARGET, weights


def accepted(
    rule: Verifier, probs: Sequence, tokens: Sequence, length: Sequence[int] | None = None
) -> list[int]:
    """Accepted counts of drafts ``tokens [B, N]`` under laws ``probs [N+1, V]``."""
    batch = len(tokens)
    length = [len(row) for row in tokens] if length is None else length
    with np.errstate(divide="ignore"):
        logits = np.broadcast_to(np.log(np.asarray(probs, np.float32)), (batch, *np.shape(probs)))
    draft = Draft(jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32))
    noise = keys.Noise(jax.random.split(jax.random.key(0), batch), jnp.ones([batch], jnp.int32))
    verdict = jax.jit(rule.verify)(
        draft, jnp.asarray(logits), warp.Sampling(jnp.ones([batch])), noise
    )
    assert verdict.accepted.dtype == verdict.token.dtype == verdict.path.dtype == jnp.int32
    return verdict.accepted.tolist()


SURE = [0.90, 0.06, 0.03, 0.01]  # entropy 0.39: the threshold is epsilon, 0.09
UNSURE = [0.28, 0.27, 0.25, 0.20]  # entropy 1.38


def test_typical_asks_epsilon_of_a_sure_target() -> None:
    every = [[0], [1], [2], [3]]
    assert accepted(verify.typical(), [SURE] * 2, every) == [1, 0, 0, 0]
    assert accepted(verify.typical(epsilon=0.05), [SURE] * 2, every) == [1, 1, 0, 0]


def test_typical_asks_less_of_an_unsure_target() -> None:
    """delta exp(-H) = 0.3 exp(-1.38) = 0.075, below epsilon."""
    entropy = -np.sum(np.array(UNSURE) * np.log(UNSURE))
    every = [[0], [1], [2], [3]]
    assert accepted(verify.typical(), [UNSURE] * 2, every) == [1, 1, 1, 1]
    for id_ in range(4):
        at = UNSURE[id_] * np.exp(entropy)  # the delta that puts the threshold on this id
        for delta, kept in ((at * 0.999, 1), (at * 1.001, 0)):
            rule = verify.typical(epsilon=1.0, delta=float(delta))
            assert accepted(rule, [UNSURE] * 2, [[id_]]) == [kept]


def test_typical_is_strict() -> None:
    """p > epsilon, as Medusa has it: a token exactly on the threshold goes."""
    assert accepted(verify.typical(epsilon=0.5, delta=1e3), [[0.5, 0.5]] * 2, [[0]]) == [0]


def test_relaxed_wants_a_top_rank_within_the_margin() -> None:
    probs = [[0.50, 0.30, 0.15, 0.05]] * 2
    every = [[0], [1], [2], [3]]
    assert accepted(verify.relaxed(top_n=1, margin=1.0), probs, every) == [1, 0, 0, 0]
    assert accepted(verify.relaxed(top_n=3, margin=1.0), probs, every) == [1, 1, 1, 0]
    assert accepted(verify.relaxed(top_n=4, margin=0.25), probs, every) == [1, 1, 0, 0]
    assert accepted(verify.relaxed(top_n=4, margin=0.0), probs, every) == [1, 0, 0, 0]


def test_relaxed_never_keeps_what_the_target_never_says() -> None:
    probs = [[1.0, 0.0, 0.0]] * 2
    assert accepted(verify.relaxed(top_n=3, margin=1.0), probs, [[0], [1], [2]]) == [1, 0, 0]


@pytest.mark.parametrize("rule", [verify.typical(), verify.relaxed()], ids=["typical", "relaxed"])
def test_the_run_ends_at_the_first_refusal_and_at_the_draft_s_end(rule: Verifier) -> None:
    probs = [[0.7, 0.3 - 1e-3, 1e-3]] * 4
    drafts = [[0, 0, 0], [2, 0, 0], [0, 2, 0], [0, 0, 0], [9, 0, 0], [-1, 0, 0]]
    assert accepted(rule, probs, drafts, [3, 3, 3, 1, 3, 3]) == [3, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("rule", [verify.typical(), verify.relaxed()], ids=["typical", "relaxed"])
def test_the_distance_is_there_and_they_say_so(rule: Verifier) -> None:
    """The joint of four tokens of the toy language: far from the target's."""
    assert not rule.lossless
    out = specjax.sample(
        toy.bigram(),
        toy.log_table(toy.tables().target),
        np.full((20_000, 1), toy.START),
        max_new_tokens=toy.LENGTH,
        sampling=Sampling(temperature=1.0),
        verifier=rule,
        key=jax.random.key(0),
        **toy.arguments(3),
    )
    law = toy.joint(toy.tables().target)
    counts = np.bincount(toy.outcomes(out.tokens), minlength=len(law))
    apart = distance.total_variation(counts, law)
    print(f"{rule.name}: total variation {apart:.3f}")
    assert apart > 0.15
    assert support.p_value_of_counts(counts, law) < support.SIGNIFICANCE


def kept_by(rule: Verifier) -> tuple[np.ndarray, np.ndarray]:
    """Of each token that Medusa heads drafted and the rule kept: p(x), and typical's threshold."""
    prompts = [[a, b] for a in range(24) for b in range(0, 24, 5)]
    begun = test_medusa.start(
        "own", prompts, max_new_tokens=16, sampling=Sampling(temperature=1.0), verifier=rule,
        eos_ids=(),
    )  # fmt: skip
    kept, before = [], None
    for _, state in support.rounds_of(begun):
        count = 0 if before is None else (state.stats.accepted - before.stats.accepted).sum(1)
        start = state.length if before is None else before.length
        end = np.minimum(start + count, state.length)  # the budget cuts
        slots = np.arange(state.tokens.shape[1])
        kept.append((slots >= start[:, None]) & (slots < end[:, None]))
        before = state
    cache = TARGET.init_cache(*state.tokens.shape, jnp.float32)
    logits, _, _ = jax.jit(TARGET.apply)(weights(), jnp.asarray(state.tokens), cache)
    p = np.asarray(jax.nn.softmax(logits.astype(jnp.float32)), np.float64)[:, :-1]
    entropy = -np.sum(p * np.log(np.maximum(p, 1e-30)), -1)
    mine = np.take_along_axis(p, np.asarray(state.tokens)[:, 1:, None], -1)[..., 0]
    where = np.any(kept, 0)[:, 1:]
    return mine[where], np.minimum(0.09, 0.3 * np.exp(-entropy))[where]


def test_medusa_heads_decode_with_typical_acceptance() -> None:
    """By its name. What it keeps is above its threshold; what a lossless rule keeps is not."""
    p, threshold = kept_by(verify.BY_NAME["typical"])
    assert len(p) > 100 and np.all(p > threshold * (1 - 1e-3))
    p, threshold = kept_by(verify.BY_NAME["token"])
    assert np.any(p < threshold * 0.9)


@pytest.mark.parametrize("rule", [verify.typical(), verify.relaxed()], ids=["typical", "relaxed"])
def test_who_chooses_a_lossy_rule_is_told(rule: Verifier) -> None:
    said = lossy.warning(rule)
    assert said is not None and "\n" not in said
    assert said.startswith(f"warning: {rule.name} is lossy: ")
    for words in ("does not follow the target's distribution", "A/B against plain", "block or tok"):
        assert words in said


def test_of_the_names_of_the_command_line_one_alone_is_lossy() -> None:
    assert [name for name, one in verify.BY_NAME.items() if lossy.warning(one)] == ["typical"]
    assert verify.BY_NAME["typical"] is verify.typical()


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (verify.typical, {"epsilon": 0.0}),
        (verify.typical, {"epsilon": 1.5}),
        (verify.typical, {"delta": 0.0}),
        (verify.relaxed, {"top_n": 0}),
        (verify.relaxed, {"margin": -0.1}),
        (verify.relaxed, {"margin": 1.1}),
    ],
)
def test_values_out_of_range_are_errors(make: object, arguments: dict) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name}={arguments[name]}"):
        make(**arguments)  # type: ignore[operator]


def test_equal_arguments_give_the_same_rule() -> None:
    assert verify.typical(0.1, 0.2) is verify.typical(0.1, 0.2)
    assert verify.relaxed() is verify.relaxed()
