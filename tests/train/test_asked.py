"""What answers are worth, some slots at a time: the same as all at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import asked, losses
from train.asked import Asked, Judged


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
