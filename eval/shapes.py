"""Shapes of published models, by name: what a plan or a timing needs without a download."""

from __future__ import annotations

from specjax.models import ModelConfig
from specjax.models.config import RopeConfig


def _smollm2(
    width: int, layers: int, heads: int, kv_heads: int, ffn: int, base: float
) -> ModelConfig:
    return ModelConfig(
        49152, width, layers, heads, kv_heads, 64, ffn,
        norm_eps=1e-5, rope=RopeConfig(base), tied=True, max_positions=8192,
    )  # fmt: skip


def _llama3(
    width: int, layers: int, heads: int, dim: int, ffn: int, stretch: float, tied: bool
) -> ModelConfig:
    rope = RopeConfig(500_000.0, "llama3", stretch)
    return ModelConfig(
        128256, width, layers, heads, 8, dim, ffn,
        norm_eps=1e-5, rope=rope, tied=tied, max_positions=131072,
    )  # fmt: skip


def _qwen3(width: int, layers: int, heads: int, ffn: int, tied: bool) -> ModelConfig:
    return ModelConfig(
        151936, width, layers, heads, 8, 128, ffn,
        rope=RopeConfig(1e6), qk_norm=True, tied=tied, max_positions=40960, family="qwen3",
    )  # fmt: skip


# Llama is 3.1 of 8B and 70B, and 3.2 of 1B and 3B.
SHAPES = {
    "smollm2-135m": _smollm2(576, 30, 9, 3, 1536, 1e5),
    "smollm2-360m": _smollm2(960, 32, 15, 5, 2560, 1e5),
    "smollm2-1.7b": _smollm2(2048, 24, 32, 32, 8192, 1.3e5),
    "llama3-1b": _llama3(2048, 16, 32, 64, 8192, 32, tied=True),
    "llama3-3b": _llama3(3072, 28, 24, 128, 8192, 32, tied=True),
    "llama3-8b": _llama3(4096, 32, 32, 128, 14336, 8, tied=False),
    "llama3-70b": _llama3(8192, 80, 64, 128, 28672, 8, tied=False),
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12288, tied=False),
    "qwen3-32b": _qwen3(5120, 64, 64, 25600, tied=False),
}


def config_of(name: str) -> ModelConfig:
    """The shape of a published model.

    Args:
      name: a key of ``SHAPES``.

    Raises:
      ValueError: there is none of that name; lists them.
    """
    if name not in SHAPES:
        raise ValueError(f"there is no shape {name!r}; choose from {', '.join(SHAPES)}")
    return SHAPES[name]
