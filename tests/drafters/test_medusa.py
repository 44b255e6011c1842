"""The Medusa drafter: what it keeps between rounds, what it drafts, what comes out."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, verify
from specjax.drafters import first_of, medusa, medusa_params, ngram
from specjax.drafters.medusa import MedusaParams
from specjax.heads import MedusaConfig, MedusaHeads
from specjax.heads.medusa import projection_names
from specjax.models.transformer import output_rows
from specjax.prefill import prefill
from tests import support
from tests.drafters.test_eagle import IDS, PROMPTS, TARGET, weights

K = 3
SIZES = dict(target_width=16, num_heads=K, draft_vocab_size=len(IDS))
CONFIGS = {
    "own": MedusaConfig(**SIZES, num_blocks=2, projection="own"),
    "shared": MedusaConfig(**SIZES, num_blocks=1, projection="shared"),
    "target": MedusaConfig(**SIZES, num_blocks=1, projection="target", tree=((0,), (1,), (0, 2))),
}


@cache
def random(name: str) -> dict[str, jax.Array]:
    """Blocks far from zero; output matrices near the target's rows."""
    config, rows = CONFIGS[name], output_rows(weights(), jnp.asarray(IDS))
    heads = dict(MedusaHeads(config).init(jax.random.key(0), rows[:, 0], (rows, None))["params"])
    rng = np.random.default_rng(1)
    for key, value in heads.items():
        start = rows if key in projection_names(config) else 0
        heads[key] = start + jnp.asarray(rng.normal(0, 0.3, value.shape), jnp.float32)
    return heads


@cache
def heads_of(name: str) -> MedusaParams:
    return medusa_params(CONFIGS[name], random(name), IDS, weights())


def drafting(name: str) -> dict[str, Any]:
    if name == "in turn":
        lookup = ngram(5, n_min=1)
        drafter = first_of(lookup, medusa(CONFIGS["shared"], K))
        return {"drafter": drafter, "drafter_params": (None, heads_of("shared"))}
    return {"drafter": medusa(CONFIGS[name], K), "drafter_params": heads_of(name)}


def start(name: str, prompts: Any = PROMPTS, **arguments: Any) -> Any:
    values = dict(max_new_tokens=12, max_length=32, key=jax.random.key(2), eos_ids=(5,))
    return specjax.start(TARGET, weights(), prompts, **{**drafting(name), **values, **arguments})


@pytest.mark.parametrize("name", ["target", "in turn"])
def test_between_rounds_the_state_is_the_feature_of_the_last_slot(name: str) -> None:
    """Whatever was accepted and whoever drafted it."""
    seen, before = set(), None
    read = jax.jit(
        lambda tokens, length: prefill(
            TARGET, weights(), tokens, length, TARGET.init_cache(6, 32, jnp.float32), chunk=8,
            layers=(-1,),
        )[1]
    )  # fmt: skip
    for _, state in support.rounds_of(start(name, sampling=Sampling(temperature=0.7))):
        mine = state.drafter[1] if name == "in turn" else state.drafter
        np.testing.assert_array_equal(mine.known, state.length > 1)
        features = np.asarray(read(state.tokens, state.length))
        for row in np.flatnonzero(mine.known):
            want = features[row, state.length[row] - 2]
            np.testing.assert_allclose(mine.feature[row], want, atol=2e-4)
        if before is not None:
            seen |= set((state.stats.accepted - before.stats.accepted).sum(1)[before.reason == 0])
        before = state
    assert 0 in seen and len(seen) > 1, "counts that never occur are not tested"


@pytest.mark.parametrize("name", [*CONFIGS, "in turn"])
def test_greedy_output_is_plain_decoding_s(name: str) -> None:
    prompts = [[(a + b * 5) % 24 for b in range(1 + a % 4)] for a in range(48)]
    same = dict(max_new_tokens=12, eos_ids=(5,))
    plain = specjax.sample(TARGET, weights(), prompts, **same)
    ours = specjax.sample(TARGET, weights(), prompts, **same, **drafting(name))
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    assert int(ours.stats.accepted.sum()) > 0, "nothing was accepted: nothing was tested"


@pytest.mark.parametrize("name", ["own", "in turn"])
def test_coupled_output_is_plain_decoding_s(name: str) -> None:
    same = dict(
        max_new_tokens=12, sampling=Sampling(temperature=1.0), verifier=verify.coupled,
        key=jax.random.key(3),
    )  # fmt: skip
    prompts = PROMPTS * 3
    plain = specjax.sample(TARGET, weights(), prompts, **same)
    ours = specjax.sample(TARGET, weights(), prompts, **same, **drafting(name))
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    assert int(ours.stats.accepted.sum()) > 0


@pytest.mark.parametrize(
    ("rule", "prompt"), [pytest.param("token", [3, 8, 2], marks=pytest.mark.long), ("block", [3])]
)
def test_the_law_of_two_tokens_is_the_target_s(rule: str, prompt: list[int]) -> None:
    """Chi-square on pairs through the loop; drafts from 18 of 24 tokens."""
    out = specjax.sample(
        TARGET, weights(), np.tile(prompt, (8192, 1)), **drafting("own"), max_new_tokens=2,
        sampling=Sampling(temperature=0.8), verifier=verify.BY_NAME[rule], key=jax.random.key(11),
    )  # fmt: skip
    first = _law([prompt])
    second = _law([[*prompt, token] for token in range(24)])
    counts = np.bincount(np.asarray(out.tokens) @ [24, 1], minlength=24 * 24)
    law = (first[0][:, None] * second).ravel()
    assert support.p_value_of_counts(counts, law) > support.SIGNIFICANCE


def _law(prompts: list[list[int]]) -> np.ndarray:
    tokens = jnp.array(prompts, jnp.int32)
    cache = TARGET.init_cache(len(prompts), 8, jnp.float32)
    logits = TARGET.apply(weights(), tokens, cache)[0][:, -1]
    return np.asarray(jax.nn.softmax(logits.astype(jnp.float32) / 0.8), np.float64)


def test_each_head_draws_from_its_own_law() -> None:
    """The q of node n is the softmax of head n, whatever the heads before it drew."""
    run = start("own", sampling=Sampling(temperature=1.0))
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    assert draft.length.tolist() == [0] + [K] * 5, "a one-token prompt has no feature yet"
    given = run.state.drafter.feature, None
    logits = MedusaHeads(CONFIGS["own"]).apply(
        {"params": random("own")}, *given, method=MedusaHeads.logits
    )
    probs = np.asarray(draft.probs)[1:, :K]
    np.testing.assert_allclose(probs[..., IDS], jax.nn.softmax(logits)[1:], atol=1e-5)
    np.testing.assert_allclose(probs[..., IDS].sum(-1), 1, atol=1e-5)
    tokens = np.asarray(draft.tokens)[1:]
    assert (np.take_along_axis(probs, tokens[..., None], -1) > 0).all()


def test_a_draft_ends_where_the_heads_are_unsure() -> None:
    sampled = dict(sampling=Sampling(temperature=1.0))
    support.ends_by_probability(
        lambda min_prob: start(
            "own", **sampled, drafter=medusa(CONFIGS["own"], K, min_prob=min_prob)
        )
    )


def test_every_block_of_every_head_has_its_own_parameters() -> None:
    """Each of them moves the logits of its head, and of no other."""
    config = MedusaConfig(16, 3, 2, 24, "shared")
    model = MedusaHeads(config)
    x = jax.random.normal(jax.random.key(0), (16,))
    zero = model.init(jax.random.key(1), x)["params"]
    whole = model.apply({"params": zero}, x)
    for head in range(3):
        np.testing.assert_allclose(whole[head], x @ zero["projection"], atol=1e-6)
        for block in range(2):
            for kind, shape in (("", (16, 16)), ("_bias", (16,))):
                name = f"block_{head}_{block}{kind}"
                assert zero[name].shape == shape and not zero[name].any()
                moved = model.apply({"params": zero | {name: jnp.ones(shape)}}, x)
                np.testing.assert_array_equal((moved != whole).any(-1), np.arange(3) == head)
    assert len(zero) == 3 * 2 * 2 + 1


def test_a_chain_shorter_than_the_heads() -> None:
    """Two of three heads draft what they draft in the whole chain."""
    short = medusa(CONFIGS["target"], 2)
    drafts = []
    for drafter in (short, medusa(CONFIGS["target"])):
        run = specjax.start(
            TARGET, weights(), PROMPTS[1:], drafter=drafter, drafter_params=heads_of("target"),
            max_new_tokens=12, max_length=32,
        )  # fmt: skip
        drafts.append(specjax.round.propose(run.engine, run.params, run.request, run.state)[0])
    np.testing.assert_array_equal(drafts[0].tokens, drafts[1].tokens[:, :2])


@pytest.mark.parametrize("k", [0, -1, 4])
def test_no_such_draft(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k}; it must be 1 to 3, the number of heads"):
        medusa(CONFIGS["own"], k)


def test_parameters_of_another_kind() -> None:
    with pytest.raises(ValueError, match="drafter_params is a dict; give what medusa_params"):
        specjax.start(
            TARGET, weights(), [[1, 2]], drafter=medusa(CONFIGS["own"]),
            drafter_params=random("own"), max_new_tokens=2,
        )  # fmt: skip


def test_equal_arguments_give_the_same_drafter() -> None:
    assert medusa(MedusaConfig(**SIZES, num_blocks=1), 3) is medusa(
        MedusaConfig(**SIZES, num_blocks=1)
    )


BAD = {
    "no heads": (dict(num_heads=0), "num_heads=0; it must be at least 1"),
    "projection": (dict(projection="none"), "projection='none'; it must be one of own, shared"),
    "too deep": (dict(tree=((0,), (0, 0), (0, 0, 0), (0,) * 4)), "4 deep; there are 3 heads"),
    "orphan": (dict(tree=((0,), (1, 0))), r"holds \(1, 0\) without its parent \(1,\)"),
    "rank": (dict(tree=((18,),)), r"holds \(18,\); ranks are 0 to 17"),
    "twice": (dict(tree=((1,), (1,))), r"holds \(1,\) twice"),
    "form": (dict(tree=(1,)), "holds 1; a path is a tuple of ranks"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_configs(name: str) -> None:
    changes, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        MedusaConfig(**{**SIZES, "num_blocks": 1, **changes})
