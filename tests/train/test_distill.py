"""The training objective of draft models against decoding itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.models.transformer import output_rows
from tests.drafters.test_draft_vocabulary import STUDENT, K, params_of
from tests.drafters.test_eagle import IDS, MODEL, TARGET, weights
from train import distill, features, losses
from train.asked import Asked

ROWS = np.isin(np.arange(MODEL.vocab_size), IDS)


def ask(tokens: Any, segment: Any, position: Any, mask: Any = None) -> Asked:
    batch = {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "segment": jnp.asarray(segment, jnp.int32),
        "position": jnp.asarray(position, jnp.int32),
        "mask": jnp.asarray(np.ones(np.shape(tokens), bool) if mask is None else mask),
    }
    final = features.compute(TARGET, (features.FINAL,), weights(), batch)
    rows = output_rows(weights(), jnp.asarray(IDS))
    return distill.ask(STUDENT, params_of().model, rows, jnp.asarray(ROWS), batch, final)


@pytest.mark.parametrize("packed", [False, True])
def test_training_asks_what_decoding_asks(packed: bool) -> None:
    """The model at the pending token's slot says the draft's first token, and so on.

    The document is a prompt and the draft that the drafter made of it, so both see the same tokens;
    packed, it stands behind another document, which must not show.
    """
    prompt = [3, 8, 2, 17, 4]
    run = specjax.start(
        TARGET, weights(), [prompt], drafter=specjax.drafters.draft_model(STUDENT, K),
        drafter_params=params_of(), max_new_tokens=12, max_length=24,
    )  # fmt: skip
    draft, _ = specjax.round.propose(run.engine, run.params, run.request, run.state)
    document = prompt + np.asarray(draft.tokens)[0].tolist()
    other = [9, 1, 20, 6, 7, 12] if packed else []
    tokens = np.array([other + document])
    segment = np.array([[1] * len(other) + [2] * len(document)])
    position = np.array([[*range(len(other)), *range(len(document))]])
    said = ask(tokens, segment, position)
    at = len(other) + len(prompt) - 1
    drafted = IDS[np.argmax(said.logits[0, at : at + K], -1)]
    assert drafted.tolist() == document[len(prompt) :]
    # And not by luck: the logits are those of the prompt alone.
    cache = STUDENT.init_cache(1, 16, jnp.float32)
    logits, _, _ = STUDENT.apply(params_of().model, jnp.array([prompt], jnp.int32), cache)
    np.testing.assert_allclose(said.logits[0, at], logits[0, -1], atol=2e-4)


def test_labels_and_mask_shift_together() -> None:
    """Every slot is asked for the token after it, by the target's own law, where it counts."""
    tokens = np.array([[1, 2, 3, 4, 5, 7, 6, 8, 9, 10]])
    segment = np.array([[1, 1, 1, 1, 1, 1, 2, 2, 2, 0]])
    position = np.array([[0, 1, 2, 3, 4, 5, 0, 1, 2, 0]])
    mask = np.array([[0, 0, 0, 1, 1, 1, 0, 0, 1, 0]], bool)
    said = ask(tokens, segment, position, mask)
    np.testing.assert_array_equal(np.flatnonzero(said.counts[0]), [2, 3, 4, 7])
    inside = [s for s in (2, 3, 4, 7) if tokens[0, s + 1] in IDS]
    np.testing.assert_array_equal(np.flatnonzero(said.known[0]), inside)
    assert len(inside) < 4, "no token outside the draft vocabulary was tested"
    for begin, end in ((0, 6), (6, 9)):
        cache = TARGET.init_cache(1, 8, jnp.float32)
        document = jnp.asarray(tokens[:, begin:end], jnp.int32)
        logits = TARGET.apply(weights(), document, cache)[0][..., IDS]
        np.testing.assert_allclose(said.probs[0, begin:end], jax.nn.softmax(logits)[0], atol=1e-5)


@pytest.mark.parametrize("loss", losses.BY_NAME)
def test_the_loss_is_a_mean_over_supervised_tokens(loss: str) -> None:
    """Padding and other documents change nothing; two copies of a document change no mean."""
    text, means = [*range(1, 7)], []
    one = [text], [[1] * 6], [range(6)]
    two = (
        [[*text, *text, 9, 9, 9]],
        [[1] * 6 + [2] * 6 + [0] * 3],
        [[*range(6), *range(6), 0, 0, 0]],
    )
    for rows in (one, two):
        total, sums = distill.objective(ask(*rows), jnp.asarray(rows[1]), loss=loss, positions=3)
        means.append([total / sums["weight"], *(sums[n] / sums["weight"] for n in sorted(sums))])
    np.testing.assert_allclose(*means, rtol=1e-4)


def test_the_accept_length_is_the_mean_run_of_hits(seed: int) -> None:
    """Runs begin at every slot that counts, and end at a miss, at the mask and at the document."""
    rng = np.random.default_rng(seed)
    shape = 2, 60
    segment = np.sort(rng.integers(0, 4, shape), 1)[:, ::-1]  # padding last
    counts = (rng.random(shape) < 0.9) & (segment > 0)
    counts[:, :-1] &= segment[:, 1:] == segment[:, :-1]
    counts[:, -1] = False
    known = counts & (rng.random(shape) < 0.9)
    truth = rng.integers(0, 5, shape)
    said = np.where(rng.random(shape) < 0.7, truth, rng.integers(0, 5, shape))
    truth_, said_ = (jnp.asarray(np.eye(5, dtype=np.float32)[x]) for x in (truth, said))
    where, same = (jnp.asarray(counts), jnp.asarray(known)), jnp.eye(5)
    given = Asked(*where, said_, same, truth_, same, ahead=0)
    _, sums = distill.objective(given, jnp.asarray(segment.copy()), loss="ce", positions=3)
    hit = known & (truth == said)
    lengths = []
    for row, begin in np.argwhere(counts):
        run = 0
        while run < 3 and begin + run < 60 and hit[row, begin + run]:
            if segment[row, begin + run] != segment[row, begin]:
                break
            run += 1
        lengths.append(run)
    assert float(sums["weight"]) == len(lengths) and float(sums["accept_length"]) == sum(lengths)
    assert float(sums["top1_1"]) == hit.sum() and 0 < np.mean(lengths) < 3


def test_only_slots_that_count_have_a_gradient() -> None:
    """The padding and a document without supervision leave no trace."""
    tokens = np.array([[1, 2, 4, 5, 6, 8, 9, 0]])
    segment, mask = np.array([[1, 1, 1, 1, 2, 2, 2, 0]]), np.array([[0, 0, 1, 1, 0, 0, 0, 1]], bool)
    position = np.array([[0, 1, 2, 3, 0, 1, 2, 0]])
    batch = {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "segment": jnp.asarray(segment, jnp.int32),
        "position": jnp.asarray(position, jnp.int32),
        "mask": jnp.asarray(mask),
    }
    final = features.compute(TARGET, (features.FINAL,), weights(), batch)
    rows = output_rows(weights(), jnp.asarray(IDS))

    def loss(params: Any, batch: Any) -> jax.Array:
        said = distill.ask(STUDENT, params, rows, jnp.asarray(ROWS), batch, final)
        return distill.objective(said, batch["segment"], loss="kl", positions=1)[0]

    gradients = []
    for changed in (8, 12):
        batch["tokens"] = batch["tokens"].at[0, 5:].set(changed)
        gradients.append(jax.grad(loss)(params_of().model, batch)["block_0"])
    jax.tree.map(np.testing.assert_array_equal, *gradients)
    assert all(np.any(np.asarray(x) != 0) for x in jax.tree.leaves(gradients[0]))
