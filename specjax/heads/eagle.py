"""EAGLE heads: one decoder block that continues the target's own features.

The head stands at slot s when it has read the target's features there (f_s, which saw tokens up to
s) and the embedding of the token that follows (x_{s+1}); it then predicts x_{s+2}. Where features
are not known yet, its own last output takes their place.

* EAGLE-1 (Li et al. 2024, arXiv:2401.15077): f is the residual stream after the final norm, and the
  head predicts the next f, which goes through the target's own output matrix.
* EAGLE-3 (Li et al. 2025, arXiv:2503.01840): f is three residual streams fused by a matrix; the
  output is free (no regression), the vocabulary is cut to the most frequent tokens.
* EAGLE-3.1 (arXiv:2605.09992): a norm for each of the three streams, and a normed output fed back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.models import rope
from specjax.models.config import RopeConfig
from specjax.models.linear import linear
from specjax.models.transformer import rms_norm

Attend = Callable[[Array, Array, Array], Array]
Matrix = tuple[Array, Array | None]  # [in, out], and the same as panels (see models.linear)

_matrix = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class EagleConfig:
    """What a head is made of.

    Attributes:
      version: 1 or 3.
      target_width: Wt, size of the target's residual stream (and of its embedding).
      layers: streams the head reads, by the numbers of ``Target.layers``.
      draft_vocab_size: Vd, tokens the head can draft.
      width: W; in version 1 that of the target.
      num_heads: H query heads.
      num_kv_heads: K.
      head_dim: D.
      ffn_width: hidden size of the feed-forward block.
      norm_eps: epsilon of the norms.
      rope: rotary embedding.
      own_head: the output matrix is a parameter of the head; else it is rows of the target's.
      norm_features: 3.1, a norm for each stream before they are fused.
      norm_output: 3.1, what is fed back is normed.
      norm_before_residual: the residual stream starts from the normed features.
    """

    version: int
    target_width: int
    layers: tuple[int, ...]
    draft_vocab_size: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_width: int
    norm_eps: float = 1e-5
    rope: RopeConfig = dataclasses.field(default_factory=RopeConfig)
    own_head: bool = True
    norm_features: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False

    def __post_init__(self) -> None:
        if self.version not in (1, 3):
            raise ValueError(f"version={self.version!r}; an EAGLE head is of version 1 or 3")
        if not self.layers or 0 in self.layers:
            raise ValueError(
                f"layers={self.layers}; name the target's streams that the head reads: i enters "
                "block i (from 1: the embedding is read anyway), -1 is past the last norm"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must be a multiple of num_kv_heads={self.num_kv_heads}"
            )
        if self.version == 1:
            self._check_first()

    def _check_first(self) -> None:
        if self.width != self.target_width or self.own_head or len(self.layers) != 1:
            raise ValueError(
                "version 1 predicts the target's features for the target's own output matrix: it "
                f"needs width=target_width={self.target_width}, own_head=False and one layer; got "
                f"width={self.width}, own_head={self.own_head}, layers={self.layers}"
            )
        if self.norm_features or self.norm_output or self.norm_before_residual:
            raise ValueError("norm_features, norm_output and norm_before_residual are version 3's")

    @property
    def feature_width(self) -> int:
        """F, size of the features the head reads."""
        return len(self.layers) * self.target_width


class EagleHead(nn.Module):
    """The block. ``fuse`` makes the first hidden state of features, ``step`` the next of the last.

    Attention is the caller's: a cache in decoding, a masked matrix in training.
    """

    config: EagleConfig

    def setup(self) -> None:
        """Makes the parameters."""
        c = self.config
        inner = c.width
        ones = nn.initializers.ones

        def weight(name: str, *shape: int) -> Array:
            return self.param(name, _matrix if len(shape) > 1 else ones, shape, jnp.float32)

        def matrix(name: str, *shape: int) -> Matrix:
            return weight(name, *shape), self.get_variable("params", f"{name}_panels")

        if c.version == 3:
            self.fuse_matrix = matrix("fuse", c.feature_width, c.width)
            self.embed_norm = weight("embed_norm", c.target_width)
            self.hidden_norm = weight("hidden_norm", c.width)
            self.output_norm = weight("output_norm", c.width)
            inner = c.target_width + c.width
            if c.norm_features:
                self.feature_norm = weight("feature_norm", c.feature_width)
        else:
            self.fuse_matrix = matrix("fuse", 2 * c.width, c.width)
        heads = c.num_heads + 2 * c.num_kv_heads
        self.qkv = matrix("qkv", inner, heads * c.head_dim)
        self.out = matrix("out", c.num_heads * c.head_dim, c.width)
        self.mlp_norm = weight("mlp_norm", c.width)
        self.gate_up = matrix("gate_up", c.width, 2 * c.ffn_width)
        self.down = matrix("down", c.ffn_width, c.width)
        if c.own_head:
            self.head = matrix("head", c.width, c.draft_vocab_size)

    def fuse(self, features: Array) -> Array:
        """The hidden state that stands for the target's features.

        Args:
          features: ``[B, T, F]``.

        Returns:
          ``[B, T, W]``.
        """
        c = self.config
        features = features.astype(self.fuse_matrix[0].dtype)
        if c.version == 1:
            return features
        if c.norm_features:
            parts = features.reshape(*features.shape[:-1], len(c.layers), c.target_width)
            scale = self.feature_norm.reshape(len(c.layers), c.target_width)
            features = rms_norm(parts, scale, c.norm_eps).reshape(features.shape)
            features = features.astype(self.fuse_matrix[0].dtype)
        return linear(features, *self.fuse_matrix)

    def step(
        self, embedded: Array, hidden: Array, cos: Array, sin: Array, attend: Attend
    ) -> tuple[Array, Array]:
        """One pass of the block.

        Args:
          embedded: ``[B, T, Wt]``, the target's embedding of the tokens that follow.
          hidden: ``[B, T, W]``, from ``fuse`` or fed back from this.
          cos: float32 ``[B, T, D/2]`` of the slots' positions.
          sin: the same.
          attend: ``(q [B, T, H, D], k [B, T, K, D], v [B, T, K, D]) -> [B, T, H, D]``; q is scaled,
            q and k are rotated.

        Returns:
          The output ``[B, T, W]`` for ``logits``, and what is fed back as the next ``hidden``.
        """
        c = self.config
        dtype = self.qkv[0].dtype
        embedded, hidden = embedded.astype(dtype), hidden.astype(dtype)
        if c.version == 1:
            residual = linear(jnp.concatenate([embedded, hidden], -1), *self.fuse_matrix)
            inner = residual
        else:
            embedded = rms_norm(embedded, self.embed_norm, c.norm_eps).astype(dtype)
            normed = rms_norm(hidden, self.hidden_norm, c.norm_eps).astype(dtype)
            residual = normed if c.norm_before_residual else hidden
            inner = jnp.concatenate([embedded, normed], -1)

        batch, length, _ = inner.shape
        heads = c.num_heads, c.num_heads + c.num_kv_heads
        h = linear(inner, *self.qkv)
        h = h.reshape(batch, length, -1, c.head_dim).astype(jnp.float32)
        q, k, v = jnp.split(h, heads, axis=2)
        q, k = rope.rotate(q, cos, sin), rope.rotate(k, cos, sin)
        h = attend(q * c.head_dim**-0.5, k, v)
        x = residual + linear(h.reshape(batch, length, -1).astype(dtype), *self.out)

        h = rms_norm(x, self.mlp_norm, c.norm_eps).astype(dtype)
        gate, up = jnp.split(linear(h, *self.gate_up), 2, axis=-1)
        x = x + linear(nn.silu(gate) * up, *self.down)
        if c.version == 1:
            return x, x
        normed = rms_norm(x, self.output_norm, c.norm_eps).astype(dtype)
        return normed, normed if c.norm_output else x

    def logits(self, output: Array, rows: Matrix | None = None) -> Array:
        """Logits over the draft vocabulary.

        Args:
          output: ``[B, T, W]``, from ``step``.
          rows: ``[W, Vd]``, the target's output matrix at the draft vocabulary, and the same as
            panels or None; for a head that has no matrix of its own.

        Returns:
          float32 ``[B, T, Vd]``.
        """
        matrix = self.head if self.config.own_head else rows
        if matrix is None:
            raise ValueError("a head without an output matrix of its own needs the target's rows")
        return linear(output.astype(matrix[0].dtype), *matrix, out_dtype=jnp.float32)

    def __call__(
        self, features: Array, embedded: Array, cos: Array, sin: Array, attend: Attend
    ) -> Array:
        """Everything once: what ``init`` traces."""
        output, _ = self.step(embedded, self.fuse(features), cos, sin, attend)
        return output if not self.config.own_head else self.logits(output)
