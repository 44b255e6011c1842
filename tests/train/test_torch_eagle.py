"""The objective and its gradient against the same in plain PyTorch."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.transformer import output_rows
from tests.drafters.test_eagle import CONFIGS, IDS, weights
from tests.train.test_eagle import slots_of
from train import asked, eagle, eagle_init

torch = pytest.importorskip("torch")
from tests.train import torch_eagle  # noqa: E402


def test_value_and_gradient_equal_pytorch() -> None:
    config = dataclasses.replace(CONFIGS["3"], own_head=False)
    rng = np.random.default_rng(0)
    head = eagle_init.random(config, jax.random.key(0))
    head = {name: x * 8 if x.ndim > 1 else x for name, x in head.items()}
    segment = np.tile([[1] * 7 + [2] * 9, [1] * 12 + [0] * 4], (8, 1))
    position = np.tile([[*range(7), *range(9)], [*range(12), *[0] * 4]], (8, 1))
    tokens, mask = rng.integers(24, size=(16, 16)), rng.random((16, 16)) < 0.7
    slots = slots_of("3", tokens, segment, position, mask)
    rows = output_rows(weights(), jnp.asarray(IDS))

    def ours(head):
        said = eagle.unroll(config, head, rows, slots, 3)
        return asked.objective(said, loss="ce", decay=torch_eagle.DECAY)

    (value, sums), gradient = jax.value_and_grad(ours, has_aux=True)(head)
    model = torch_eagle.Head(config)
    model.load(head)
    loss, report = torch_eagle.objective(
        model, torch.tensor(np.asarray(rows)), torch_eagle.tensors(slots), 3
    )
    loss.backward()
    for step in range(3):
        hits, both = (x.item() for x in report[2 * step : 2 * step + 2])
        assert float(sums[f"top1_{step + 1}"]) == hits > 0
        np.testing.assert_allclose(float(sums[f"overlap_{step + 1}"]), both, rtol=1e-4)
    np.testing.assert_allclose(float(value), loss.item(), rtol=1e-5)
    for name, grad in gradient.items():
        theirs = getattr(model, name).weight.grad.numpy().T
        np.testing.assert_allclose(grad, theirs, atol=2e-4 * float(np.abs(theirs).max()) + 1e-6)
