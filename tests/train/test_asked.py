"""What answers are worth, some slots at a time: the same as all at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import asked, losses
from train.asked import Asked, Judged, Whole


def positions(rng: np.random.Generator, length: int, share: float) -> list[Asked]:
    """Three positions of drafts over two rows, of which a share of the slots counts."""
    shape, vocab, width = (2, length), 11, 6

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    final, rows = normal(*shape, width), normal(width, vocab)
    segment = jnp.asarray(np.sort(rng.integers(1, 4, shape), 1))
    mask, known = (jnp.asarray(rng.random(shape) < x) for x in (share, 0.8))
    return [
        Asked(
            *asked.supervised(mask, segment, known, 2 + j), normal(*shape, width),
            normal(width, vocab), final, rows, ahead=1 + j,
        )
        for j in range(3)
    ]  # fmt: skip


def whole_of(rng: np.random.Generator, some: list[Asked], vocab: int = 17) -> Whole:
    """A larger vocabulary of which the draft vocabulary of ``positions`` is a part."""
    rows = some[0].rows
    ids = np.sort(rng.permutation(vocab)[: rows.shape[1]])
    matrix = np.array(rng.normal(size=(rows.shape[0], vocab)), np.float32)
    matrix[:, ids] = rows
    return Whole(jnp.asarray(matrix), jnp.asarray(ids, jnp.int32))


def at_once(one: Asked, loss: str) -> Judged:
    each, both = losses.BY_NAME[loss](one.probs, one.logits), losses.overlap(one.probs, one.logits)
    hit = jnp.argmax(one.logits, -1) == jnp.argmax(one.probs, -1)
    return Judged(jnp.where(one.known, each, 0), one.known & hit, jnp.where(one.known, both, 0))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("length", [5, 128, 300])
def test_some_slots_at_a_time(length: int, share: float, seed: int) -> None:
    some = positions(np.random.default_rng([seed, length]), length, share)
    for one, got in zip(some, asked.judge(some, "kl"), strict=True):
        want = at_once(one, "kl")
        np.testing.assert_array_equal(got.hit, want.hit)
        np.testing.assert_allclose(got.loss, want.loss, atol=1e-5)
        np.testing.assert_allclose(got.overlap, want.overlap, atol=1e-5)


def test_rates_by_the_whole_law(seed: int) -> None:
    """They are those of decoding: what the target puts outside the draft vocabulary is lost."""
    rng = np.random.default_rng(seed)
    some = positions(rng, 300, 0.6)
    whole = whole_of(rng, some)
    inside = np.zeros(whole.matrix.shape[1], bool)
    inside[whole.ids] = True
    plain = asked.judge(some, "kl")
    for one, got, without in zip(some, asked.judge(some, "kl", whole), plain, strict=True):
        p = asked.shift(jax.nn.softmax(one.final @ whole.matrix), one.ahead)
        q = jnp.zeros_like(p).at[..., whole.ids].set(jax.nn.softmax(one.logits))
        counts = np.asarray(one.counts)
        hit = counts & np.asarray(jnp.argmax(p, -1) == jnp.argmax(q, -1))
        np.testing.assert_array_equal(got.hit, hit)
        both = jnp.where(one.counts, jnp.sum(jnp.minimum(p, q), -1), 0)
        np.testing.assert_allclose(got.overlap, both, atol=1e-5)
        np.testing.assert_array_equal(got.loss, without.loss)  # of the draft vocabulary, as taught
        # What the law over the draft vocabulary alone makes of it is another thing, both ways.
        outside = counts & ~inside[np.asarray(jnp.argmax(p, -1))]
        assert (np.asarray(without.hit) & outside).any() and not (got.hit & outside).any()
        assert (np.asarray(got.hit) & ~np.asarray(one.known)).any()


def test_the_loss_of_each_position(seed: int) -> None:
    some = positions(np.random.default_rng(seed), 128, 0.6)
    judged = asked.judge(some, "kl")
    total, sums = asked.summed(some, judged, decay=0.5)
    for number, (one, worth) in enumerate(zip(some, judged, strict=True)):
        np.testing.assert_allclose(sums[f"loss_{number + 1}"], np.sum(worth.loss), rtol=1e-5)
        assert float(sums[f"loss_{number + 1}_weight"]) == int(np.asarray(one.known).sum())
    weighted = sum(0.5**number * float(sums[f"loss_{number + 1}"]) for number in range(3))
    np.testing.assert_allclose(total, weighted, rtol=1e-5)


@pytest.mark.parametrize("loss", losses.BY_NAME)
def test_the_gradient_too(loss: str, seed: int) -> None:
    some = positions(np.random.default_rng(seed), 300, 0.3)

    def total(outputs: list, judge: object) -> jax.Array:
        asked_ = [one._replace(output=x) for one, x in zip(some, outputs, strict=True)]
        return sum(jnp.sum(x.loss) for x in judge(asked_))  # type: ignore[operator]

    outputs = [one.output for one in some]
    got = jax.grad(total)(outputs, lambda x: asked.judge(x, loss))
    want = jax.grad(total)(outputs, lambda x: [at_once(one, loss) for one in x])
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_shifts_undo_each_other() -> None:
    x = jnp.arange(12).reshape(2, 6)
    np.testing.assert_array_equal(asked.back(x, 2), [[0, 0, 0, 1, 2, 3], [0, 0, 6, 7, 8, 9]])
    np.testing.assert_array_equal(asked.shift(asked.back(x, 2), 2)[:, :4], x[:, :4])
