"""The training objective of Medusa heads against decoding itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.models.transformer import output_rows
from tests.drafters.test_eagle import IDS, MODEL, TARGET, weights
from tests.drafters.test_medusa import CONFIGS, K, heads_of, random
from train import features, medusa
from train.asked import Asked, objective


def slots_of(
    name: str, tokens: np.ndarray, segment: np.ndarray, position: np.ndarray, mask=None
) -> medusa.Slots:
    rows = {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "segment": jnp.asarray(segment, jnp.int32),
        "position": jnp.asarray(position, jnp.int32),
        "mask": jnp.asarray(np.ones(tokens.shape, bool) if mask is None else mask),
    }
    # As from a cache that was made for another head, too.
    streams = features.compute(TARGET, (1, features.FINAL), weights(), rows)
    known = jnp.asarray(np.isin(np.arange(MODEL.vocab_size), IDS))
    return medusa.slots_of(CONFIGS[name], known, rows, streams)


def unroll(name: str, slots: medusa.Slots) -> list[Asked]:
    rows = output_rows(weights(), jnp.asarray(IDS))
    return medusa.unroll(CONFIGS[name], random(name), rows, slots)


@pytest.mark.parametrize("name", CONFIGS)
def test_training_asks_what_decoding_asks(name: str) -> None:
    """The heads' answers at the slot before the pending token are the draft from there.

    The document is a prompt and the draft that the drafter made of it; it stands behind another
    document, which must not show.
    """
    prompt = [3, 8, 2, 17, 4]
    run = specjax.start(
        TARGET, weights(), [prompt], drafter=specjax.drafters.medusa(CONFIGS[name]),
        drafter_params=heads_of(name), max_new_tokens=12, max_length=24,
        sampling=specjax.Sampling(temperature=1.0), key=jax.random.key(0),
    )  # fmt: skip
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    document = np.array(prompt + np.asarray(draft.tokens)[0].tolist())
    other = np.array([9, 1, 20, 6, 7, 12])
    tokens = np.concatenate([other, document])[None]
    segment = np.concatenate([np.full(len(other), 1), np.full(len(document), 2)])[None]
    position = np.concatenate([np.arange(len(other)), np.arange(len(document))])[None]
    asked = unroll(name, slots_of(name, tokens, segment, position))
    at = len(other) + len(prompt) - 2
    for node, one in enumerate(asked):
        law = np.asarray(draft.probs)[0, node, IDS]
        np.testing.assert_allclose(jax.nn.softmax(one.logits[0, at]), law, atol=2e-4)
        assert one.counts[0, at], "and the token asked for is the node's"
    assert len(asked) == K
    assert not unroll(name, slots_of(name, tokens[:, :-1], segment[:, :-1], position[:, :-1]))[
        -1
    ].counts[0, at]


def test_labels_and_mask_shift_together() -> None:
    """Every head is asked for the right token, by the target's own law, where it counts."""
    tokens = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
    segment = np.array([[1, 1, 1, 1, 1, 1, 2, 2, 2, 0]])
    position = np.array([[0, 1, 2, 3, 4, 5, 0, 1, 2, 0]])
    mask = np.array([[0, 0, 0, 1, 1, 1, 0, 0, 1, 0]], bool)
    slots = slots_of("own", tokens, segment, position, mask)
    law = np.asarray(jax.nn.softmax(slots.final @ output_rows(weights(), jnp.asarray(IDS))))
    asked = unroll("own", slots)
    for number, one in enumerate(asked):
        want = np.zeros((1, 10), bool)
        for s in range(10):
            t = s + 2 + number  # the target's own output is s + 1
            inside = t < 10 and segment[0, s] and segment[0, t] == segment[0, s]
            want[0, s] = bool(inside and mask[0, t])
            if want[0, s]:
                np.testing.assert_allclose(one.probs[0, s], law[0, t - 1], atol=1e-6)
        np.testing.assert_array_equal(one.counts, want)
        in_vocab = np.isin(np.roll(tokens, -2 - number), IDS)
        np.testing.assert_array_equal(one.known, want & in_vocab)
    assert int(asked[0].counts.sum()) == 4, "the first supervised token of a document counts too"


def test_heads_weigh_less_the_further_they_look() -> None:
    """decay**i for head i, from 0."""
    tokens = np.arange(1, 9)[None]
    slots = slots_of("shared", tokens, np.ones((1, 8), int), np.arange(8)[None])
    asked = unroll("shared", slots)
    alone = [float(objective([one], loss="ce", decay=0.5)[0]) for one in asked]
    total, sums = objective(asked, loss="ce", decay=0.5)
    assert float(total) == pytest.approx(sum(0.5**i * x for i, x in enumerate(alone)), rel=1e-5)
    assert {"top1_3", "overlap_3", "accept_length", "weight"} <= sums.keys()


def test_a_text_too_short_for_any_head_has_loss_0_and_finite_gradients() -> None:
    slots = slots_of("own", np.array([[1, 2]]), np.ones((1, 2), int), np.arange(2)[None])
    rows = output_rows(weights(), jnp.asarray(IDS))

    def loss(heads):
        asked = medusa.unroll(CONFIGS["own"], heads, rows, slots)
        return objective(asked, loss="kl", decay=0.8)[0]

    value, gradients = jax.value_and_grad(loss)(random("own"))
    assert value == 0 and all(not x.any() for x in gradients.values())
