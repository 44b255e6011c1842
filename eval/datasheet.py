"""Devices by their datasheets, and what a pass costs on one at the least: a roofline.

A matrix product takes the longer of reading its operands and doing its arithmetic (Williams et al.
2009, doi:10.1145/1498765.1498785); a pass is the sum over weights, attention and logits. Launches,
activations and whatever does not overlap are left out: it is a floor, and far off where passes are
so short that they wait for launches. There, measure (``specjax.calibrate``).
"""

from __future__ import annotations

import dataclasses
import time

import jax
import jax.numpy as jnp

from specjax import device
from specjax.models import ModelConfig

GB = 1e9


@dataclasses.dataclass(frozen=True)
class Device:
    """What a device can do.

    Attributes:
      name: of the datasheet; "this device" where it was measured.
      bandwidth: of its memory, bytes a second.
      flops: dense matrix products, operations a second, a multiply-add counted as two.
      memory: bytes; None where nobody can say.
      efficiency: share of bandwidth and flops that programs reach.
    """

    name: str
    bandwidth: float
    flops: float
    memory: float | None
    efficiency: float = 1.0

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.name}: {self.bandwidth / GB:.4g} GB/s, {self.flops / 1e12:.3g} TFLOP/s"


# Memory bandwidth GB/s, bfloat16 TFLOP/s without sparsity, memory GB, as their makers publish them.
# Of H100 and A100 it is the SXM module; of the RTX 4090, products that accumulate in float32.
_PUBLISHED = {
    "h100": (3350, 989, 80),
    "h200": (4800, 989, 141),
    "a100": (2039, 312, 80),
    "a100-40gb": (1555, 312, 40),
    "l4": (300, 121, 24),
    "l40s": (864, 362, 48),
    "rtx-4090": (1008, 165, 24),
    "tpu-v5e": (819, 197, 16),
    "tpu-v5p": (2765, 459, 95),
    "tpu-v6e": (1638, 918, 32),
}


def device_of(name: str, efficiency: float = 1.0) -> Device:
    """A device as its datasheet has it.

    Args:
      name: see the error.
      efficiency: see ``Device``.

    Raises:
      ValueError: there is no datasheet of that name; lists them.
    """
    if name not in _PUBLISHED:
        known = ", ".join(_PUBLISHED)
        raise ValueError(f"there is no datasheet of {name!r}; choose from {known}, or '': this one")
    bandwidth, tflops, memory = _PUBLISHED[name]
    return Device(name, bandwidth * GB, tflops * 1e12, memory * GB, efficiency)


def measured(dtype: jnp.dtype, width: int | None = None) -> Device:
    """The device here: its bandwidth and its products as measured, so all of both can be reached.

    Args:
      dtype: of the products.
      width: of the square matrices; by default 2048 on CPU, 8192 on accelerators.
    """
    n = width or (2048 if jax.default_backend() == "cpu" else 8192)
    matrix = jnp.ones([n, n], dtype)
    multiply = jax.jit(jnp.matmul)
    multiply(matrix, matrix).block_until_ready()
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        multiply(matrix, matrix).block_until_ready()
        best = min(best, time.perf_counter() - begun)
    return Device("this device", device.memory_bandwidth(), 2 * n**3 / best, device.memory_bytes())


@dataclasses.dataclass(frozen=True)
class Roofline:
    """A target on a device.

    Attributes:
      device: the device.
      config: the target.
      itemsize: bytes of a weight, and of an entry of the caches.
    """

    device: Device
    config: ModelConfig
    itemsize: int

    def pass_seconds(self, batch: int, context: int, tokens: int) -> float:
        """A target pass.

        Weights are read once, the cache of each row once, and logits (float32) are written and
        read again by whoever verifies.

        Args:
          batch: B rows.
          context: C filled slots a row.
          tokens: T new tokens a row.
        """
        c, rows = self.config, batch * tokens
        # Of an embedding that is not also the head, a pass reads a row.
        weights = c.num_parameters - (0 if c.tied else c.vocab_size * c.width)
        seen = context + tokens
        products = 4 * c.num_layers * c.num_heads * c.head_dim * rows * seen  # q k and p v
        return (
            self._seconds(weights * self.itemsize, 2 * weights * rows)
            + self._seconds(cache_bytes(c, batch, seen, self.itemsize), products)
            + self._seconds(2 * 4 * rows * c.vocab_size, 0)
        )

    def draft_seconds(self, batch: int, context: int, params: float, layers: int) -> float:
        """One step of a drafter; its logits, mostly of a cut vocabulary, are left out.

        Args:
          batch: B rows.
          context: C filled slots a row.
          params: weights that a step reads.
          layers: those with a cache like a layer's of the target.
        """
        cache = cache_bytes(self.config, batch, context, self.itemsize, layers)
        return self._seconds(params * self.itemsize, 2 * params * batch) + self._seconds(cache, 0)

    def _seconds(self, read: float, operations: float) -> float:
        limits = read / self.device.bandwidth, operations / self.device.flops
        return max(limits) / self.device.efficiency


def cache_bytes(
    config: ModelConfig, batch: int, slots: int, itemsize: int, layers: int | None = None
) -> int:
    """Keys and values of ``slots`` a row, in some layers of a model; by default all."""
    layers = config.num_layers if layers is None else layers
    return 2 * layers * config.num_kv_heads * config.head_dim * slots * batch * itemsize
