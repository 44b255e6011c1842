"""The training objective of EAGLE heads against decoding itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.heads.eagle import EagleHead
from specjax.models.transformer import embed_tokens, output_rows
from tests.drafters.test_eagle import CONFIGS, IDS, MODEL, TARGET, K, head_of, weights
from train import eagle, features, losses
from train.asked import Asked, objective


def slots_of(name: str, tokens: np.ndarray, segment: np.ndarray, position: np.ndarray, mask=None):
    config = CONFIGS[name]
    rows = {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "segment": jnp.asarray(segment, jnp.int32),
        "position": jnp.asarray(position, jnp.int32),
    }
    streams = features.compute(TARGET, (*config.layers, -1), weights(), rows)
    read, final = jnp.split(streams, [config.feature_width], -1)
    known = np.isin(np.arange(MODEL.vocab_size), IDS)
    return eagle.Slots(
        tokens=rows["tokens"],
        mask=jnp.asarray(np.ones(tokens.shape, bool) if mask is None else mask),
        segment=rows["segment"],
        position=rows["position"],
        known=jnp.asarray(known)[rows["tokens"]],
        features=read,
        embedded=embed_tokens(weights(), rows["tokens"]),
        final=final,
    )


def unroll(name: str, slots: eagle.Slots, steps: int) -> list[Asked]:
    head = {n: x for n, x in head_of(name).head.items() if not n.endswith("_panels")}
    rows = output_rows(weights(), jnp.asarray(IDS))
    return eagle.unroll(CONFIGS[name], head, rows, slots, steps)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("packed", [False, True])
def test_training_asks_what_decoding_asks(name: str, packed: bool) -> None:
    """Step j at the slot before the pending token is the head's step j of a draft from there.

    The document is a prompt and the draft that the drafter made of it, so both see the same tokens;
    packed, it stands behind another document, which must not show.
    """
    prompt = [3, 8, 2, 17, 4]
    run = specjax.start(
        TARGET, weights(), [prompt], drafter=specjax.drafters.eagle(CONFIGS[name], K),
        drafter_params=head_of(name), max_new_tokens=12, max_length=24,
    )  # fmt: skip
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    document = np.array(prompt + np.asarray(draft.tokens)[0].tolist())
    other = np.array([9, 1, 20, 6, 7, 12]) if packed else np.zeros(0, int)
    tokens = np.concatenate([other, document])[None]
    segment = np.concatenate([np.full(len(other), 1), np.full(len(document), 2)])[None]
    position = np.concatenate([np.arange(len(other)), np.arange(len(document))])[None]
    asked = unroll(name, slots_of(name, tokens, segment, position), K)
    at = len(other) + len(prompt) - 2
    drafted = [int(IDS[np.argmax(one.logits[0, at])]) for one in asked]
    assert drafted == np.asarray(draft.tokens)[0].tolist()
    # And not by luck: the logits themselves, of the first step, are the drafter's.
    model = EagleHead(CONFIGS[name])
    params = head_of(name)
    logits = model.apply(
        {"params": params.head}, run.state.drafter.output[:, None], params.rows,
        method=EagleHead.logits,
    )  # fmt: skip
    np.testing.assert_allclose(asked[0].logits[0, at], logits[0, 0], atol=2e-4)


def test_labels_and_mask_shift_together() -> None:
    """Every step is asked for the right token, by the target's own law, where it counts."""
    tokens = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
    segment = np.array([[1, 1, 1, 1, 1, 1, 2, 2, 2, 0]])
    position = np.array([[0, 1, 2, 3, 4, 5, 0, 1, 2, 0]])
    mask = np.array([[0, 0, 0, 1, 1, 1, 0, 0, 1, 0]], bool)
    slots = slots_of("3", tokens, segment, position, mask)
    asked = unroll("3", slots, 3)
    rows = output_rows(weights(), jnp.asarray(IDS))
    law = np.asarray(jax.nn.softmax(slots.final @ rows))
    for step, one in enumerate(asked):
        want = np.zeros((1, 10), bool)
        for s in range(10):
            t = s + 2 + step
            inside = t < 10 and segment[0, s] and segment[0, t] == segment[0, s]
            want[0, s] = bool(inside and mask[0, t])
            if want[0, s]:
                np.testing.assert_allclose(one.probs[0, s], law[0, t - 1], atol=1e-6)
        np.testing.assert_array_equal(one.counts, want)
        in_vocab = np.isin(np.roll(tokens, -2 - step), IDS)
        np.testing.assert_array_equal(one.known, want & in_vocab)
    assert int(asked[0].counts.sum()) == 4, "the first supervised token of a document counts too"


@pytest.mark.parametrize("loss", losses.BY_NAME)
def test_the_loss_is_a_mean_over_supervised_tokens(loss: str) -> None:
    """Padding and other documents change nothing; two copies of a document change no mean."""
    tokens = np.array([[1, 2, 3, 4, 5, 6]])
    one = np.ones((1, 6), int), np.arange(6)[None]
    two = np.array([[1] * 6 + [2] * 6 + [0] * 3]), np.array([[*range(6), *range(6), 0, 0, 0]])
    twice = np.array([[*range(1, 7), *range(1, 7), 9, 9, 9]])
    means = []
    for text, (segment, position) in ((tokens, one), (twice, two)):
        asked = unroll("3", slots_of("3", text, segment, position), 2)
        total, sums = objective(asked, loss=loss, decay=0.8)
        means.append([total / sums["weight"], *(sums[n] / sums["weight"] for n in sorted(sums))])
    np.testing.assert_allclose(*means, rtol=1e-4)


def test_divergences() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), 3).astype(np.float32)
    logits = rng.standard_normal((3, 5)).astype(np.float32)
    q = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    both = np.minimum(p, q).sum(-1)
    kl = (p * np.log(p / q)).sum(-1)
    want = {
        "ce": -(p * np.log(q)).sum(-1),
        "kl": kl,
        "reverse_kl": (q * np.log(q / p)).sum(-1),
        "tv": 0.5 * np.abs(p - q).sum(-1),
        "lk": -np.log(both),
        "lk_hybrid": both * (1 - both) + (1 - both) * kl,
    }
    for name, loss in losses.BY_NAME.items():
        np.testing.assert_allclose(loss(jnp.array(p), jnp.array(logits)), want[name], rtol=2e-4)
        own = np.log(p)
        least = {"ce": -(p * own).sum(-1)}.get(name, np.zeros(3))
        np.testing.assert_allclose(loss(jnp.array(p), jnp.array(own)), least, atol=1e-5)
