"""Rotary position embedding in the half-split layout of Hugging Face checkpoints."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.models.config import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Angle per position of each rotated pair, float32 ``[D/2]``.

    ``llama3`` stretches long wavelengths by ``factor``, keeps short ones, and blends in between
    (Llama 3.1, https://arxiv.org/abs/2407.21783; the formula is the one of its release code).
    """
    # float32 throughout, like the reference: at position 8192 a last-bit difference shows.
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    freq = np.float32(1) / np.float32(rope.base) ** exponent
    if rope.scaling == "default":
        return freq
    if rope.scaling == "linear":
        return freq / np.float32(rope.factor)
    wavelength = np.float32(2 * math.pi) / freq
    low = rope.original_positions / rope.low_freq_factor
    high = rope.original_positions / rope.high_freq_factor
    blend = (rope.original_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * freq / rope.factor + blend * freq
    scaled = np.where(
        wavelength > low, freq / rope.factor, np.where(wavelength < high, freq, blended)
    )
    return scaled.astype(np.float32)


def cos_sin(positions: Array, freq: np.ndarray) -> tuple[Array, Array]:
    """Cosines and sines, computed from the positions themselves: there is no table to run past.

    Args:
      positions: int32 ``[B, T]``.
      freq: float32 ``[D/2]``.

    Returns:
      Two float32 arrays ``[B, T, D/2]``.
    """
    angles = positions.astype(jnp.float32)[..., None] * freq
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotates the pairs ``(x[i], x[i + D/2])``.

    Args:
      x: float32 ``[B, T, N, D]`` (N heads).
      cos: float32 ``[B, T, D/2]``.
      sin: float32 ``[B, T, D/2]``.

    Returns:
      float32 ``[B, T, N, D]``.
    """
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
