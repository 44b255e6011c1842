"""Medusa heads: small networks beside the target's output matrix, each for a token further on.

Cai et al. 2024, "Medusa" (arXiv:2401.10774), section 3.1. All heads read the same feature, the
target's stream after the final norm at slot s. The target's own output there is the token at slot
s + 1; head i, from 1, guesses the one at slot s + 1 + i without knowing those between.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.models.linear import linear

Matrix = tuple[Array, Array | None]  # [in, out], and the same as panels (see models.linear)
Path = tuple[int, ...]

PROJECTIONS = ("own", "shared", "target")

_zeros = nn.initializers.zeros
_matrix = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
    """What the heads are made of.

    Attributes:
      target_width: W, size of the target's residual stream.
      num_heads: H; head i guesses the i-th token of a draft.
      num_blocks: residual blocks of a head, each with parameters of its own.
      draft_vocab_size: Vd, tokens the heads can draft.
      projection: whose output matrix turns a head's stream into logits: "own", one for each head;
        "shared", one for all of them; "target", the target's rows, which aren't the heads' to keep.
      tree: the nodes of a token tree as rank paths: (0, 2) is the third best of head 2 after the
        best of head 1. Empty for a chain. Kept with the heads; the drafter draws chains.
    """

    target_width: int
    num_heads: int
    num_blocks: int
    draft_vocab_size: int
    projection: str = "own"
    tree: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for name in ("target_width", "num_heads", "num_blocks", "draft_vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least 1")
        if self.projection not in PROJECTIONS:
            known = ", ".join(PROJECTIONS)
            raise ValueError(f"projection={self.projection!r}; it must be one of {known}")
        check_tree(self.tree, self.num_heads, self.draft_vocab_size)

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's streams the heads read: the one after the final norm."""
        return (-1,)


def check_tree(tree: tuple[Path, ...], depth: int, ranks: int) -> None:
    """Checks rank paths.

    Args:
      tree: the paths.
      depth: heads there are.
      ranks: tokens a head can choose from.

    Raises:
      ValueError: a path that is no tuple of ranks, is too deep, stands twice or lacks its parent.
    """
    for path in tree:
        if not (isinstance(path, tuple) and path and all(type(rank) is int for rank in path)):
            raise ValueError(f"tree holds {path!r}; a path is a tuple of ranks, such as (0, 2)")
        if not 0 <= min(path) <= max(path) < ranks:
            raise ValueError(f"tree holds {path}; ranks are 0 to {ranks - 1}")
        if len(path) > depth:
            raise ValueError(f"tree holds {path}, {len(path)} deep; there are {depth} heads")
        if len(path) > 1 and path[:-1] not in tree:
            raise ValueError(f"tree holds {path} without its parent {path[:-1]}")
        if tree.count(path) > 1:
            raise ValueError(f"tree holds {path} twice")


def block_name(head: int, block: int) -> str:
    """The parameter of a block's matrix ``[W, W]``; its bias ends in ``_bias``. Both from 0."""
    return f"block_{head}_{block}"


def projection_names(config: MedusaConfig) -> list[str]:
    """The parameters of the output matrices ``[W, Vd]``: one a head, one, or none."""
    if config.projection == "own":
        return [f"projection_{head}" for head in range(config.num_heads)]
    return ["projection"] if config.projection == "shared" else []


class MedusaHeads(nn.Module):
    """The heads. A block is ``x + SiLU(x W + b)`` and starts at W = b = 0: as the target's stream.

    The published implementation repeats one block object, so that all blocks of a head share their
    weights; here each has its own.
    """

    config: MedusaConfig

    def setup(self) -> None:
        """Makes the parameters."""
        c = self.config

        def matrix(name: str, init: nn.initializers.Initializer, *shape: int) -> Matrix:
            weight = self.param(name, init, shape, jnp.float32)
            return weight, self.get_variable("params", f"{name}_panels")

        width = c.target_width
        self.blocks = [
            [
                (
                    matrix(block_name(i, j), _zeros, width, width),
                    self.param(f"{block_name(i, j)}_bias", _zeros, (width,), jnp.float32),
                )
                for j in range(c.num_blocks)
            ]
            for i in range(c.num_heads)
        ]
        self.projections = [
            matrix(name, _matrix, width, c.draft_vocab_size) for name in projection_names(c)
        ]

    def logits(
        self, features: Array, rows: Matrix | None = None, num_heads: int | None = None
    ) -> Array:
        """Logits of the first heads, all at once: one product where they share a matrix.

        Args:
          features: ``[..., W]``, the target's stream after the final norm.
          rows: ``[W, Vd]``, the target's output matrix at the draft vocabulary, and the same as
            panels or None; for heads that have no matrix.
          num_heads: n, the heads to compute; by default all.

        Returns:
          float32 ``[..., n, Vd]``.
        """
        streams = self.streams(features, num_heads)
        if self.config.projection == "own":
            pairs = zip(streams, self.projections, strict=False)
            return jnp.stack([linear(x, *own, out_dtype=jnp.float32) for x, own in pairs], -2)
        matrix = self.projections[0] if self.projections else rows
        if matrix is None:
            raise ValueError("heads without an output matrix of their own need the target's rows")
        x = jnp.stack(streams, -2).astype(matrix[0].dtype)
        return linear(x, *matrix, out_dtype=jnp.float32)

    def streams(self, features: Array, num_heads: int | None = None) -> list[Array]:
        """What the first heads' blocks make of the features: ``[..., W]`` each, before a matrix."""
        return [self._stream(blocks, features) for blocks in self.blocks[:num_heads]]

    def _stream(self, blocks: list[tuple[Matrix, Array]], x: Array) -> Array:
        for matrix, bias in blocks:
            x = x.astype(bias.dtype)
            x = x + nn.silu(linear(x, *matrix) + bias)
        return x

    def __call__(self, features: Array, rows: Matrix | None = None) -> Array:
        """Everything once: what ``init`` traces."""
        return self.logits(features, rows)
