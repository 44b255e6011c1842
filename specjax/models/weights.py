"""Which tensors of a checkpoint make up each parameter, and how one is put together."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from specjax.models.config import ModelConfig
from specjax.models.linear import EMBED, HEAD, PANEL, Path, is_upright, panels_for, panels_shape

STORED, IN_OUT, PANELS = "stored", "in_out", "panels"

_HUGE_PAGE = 2 * 2**20


class Part(NamedTuple):
    """A tensor of the file and its shape there (``[out, in]`` for a matrix)."""

    name: str
    shape: tuple[int, ...]


class Entry(NamedTuple):
    """A parameter: where it goes, and the parts joined along their first (output) axis.

    Attributes:
      path: keys into the nested parameters.
      parts: the tensors.
      layout: STORED as in the file, IN_OUT transposed, or PANELS (see ``linear.to_panels``).
    """

    path: Path
    parts: tuple[Part, ...]
    layout: str


def plan(c: ModelConfig) -> list[Entry]:
    """Every parameter of a configuration and the tensors it is made of."""
    width, q, kv = c.width, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    table = Part("model.embed_tokens.weight", (c.vocab_size, width))
    entries = [
        Entry(EMBED, (table,), STORED),
        Entry(("norm",), (Part("model.norm.weight", (width,)),), STORED),
    ]
    if not c.tied:
        entries.append(Entry(HEAD, (Part("lm_head.weight", (c.num_logits, width)),), IN_OUT))
    for layer in range(c.num_layers):
        prefix, block = f"model.layers.{layer}.", f"block_{layer}"

        def vector(
            name: str, source: str, size: int, prefix: str = prefix, block: str = block
        ) -> None:
            entries.append(Entry((block, name), (Part(prefix + source, (size,)),), STORED))

        def linear(
            name: str,
            sources: dict[str, int],
            inputs: int,
            bias: bool,
            prefix: str = prefix,
            block: str = block,
        ) -> None:
            weights = tuple(Part(f"{prefix}{s}.weight", (n, inputs)) for s, n in sources.items())
            entries.append(Entry((block, name), weights, IN_OUT))
            if bias:
                biases = tuple(Part(f"{prefix}{s}.bias", (n,)) for s, n in sources.items())
                entries.append(Entry((block, f"{name}_bias"), biases, STORED))

        vector("attention_norm", "input_layernorm.weight", width)
        vector("mlp_norm", "post_attention_layernorm.weight", width)
        if c.qk_norm:
            vector("q_norm", "self_attn.q_norm.weight", c.head_dim)
            vector("k_norm", "self_attn.k_norm.weight", c.head_dim)
        qkv = {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
        linear("qkv", qkv, width, c.qkv_bias)
        linear("out", {"self_attn.o_proj": width}, q, c.out_bias)
        linear(
            "gate_up", {"mlp.gate_proj": c.ffn_width, "mlp.up_proj": c.ffn_width}, width, c.mlp_bias
        )
        linear("down", {"mlp.down_proj": width}, c.ffn_width, c.mlp_bias)
    return entries


def columns(entries: Sequence[Entry]) -> dict[Path, tuple[int, ...]]:
    """Of the matrices, and of the table, the output columns of each part: for ``panels_for``."""
    return {
        entry.path: tuple(part.shape[0] for part in entry.parts)
        for entry in entries
        if entry.layout == IN_OUT or entry.path == EMBED
    }


def panels_of(entries: Sequence[Entry]) -> list[Entry]:
    """Second copies of the matrices as panels, where panels fit; a tied table is a head as well."""
    parts = {entry.path: entry.parts for entry in entries}
    places = panels_for(columns(entries))
    return [Entry(place, parts[path], PANELS) for path, place in places.items()]


def shape_of(entry: Entry, upright: bool | None = None) -> tuple[int, ...]:
    """Of the parameter, as it is laid out.

    Args:
      entry: the parameter.
      upright: whether panels are; by default as on this machine.
    """
    size = sum(part.shape[0] for part in entry.parts)
    rest = entry.parts[0].shape[1:]
    if entry.layout == PANELS:
        return panels_shape(rest[0], size, upright)
    return (size, *rest) if entry.layout == STORED else (*rest, size)


def assemble(entry: Entry, read: Callable[[str], np.ndarray], dtype: np.dtype) -> np.ndarray:
    """One parameter, cast, laid out and joined in a single pass over each part.

    Args:
      entry: the parameter.
      read: gives a tensor of the file by name.
      dtype: of the result.
    """
    whole = _memory(shape_of(entry), dtype)
    at = 0
    for part in entry.parts:
        tensor, end = read(part.name), at + part.shape[0]
        if entry.layout == STORED:
            whole[at:end] = tensor
        elif entry.layout == IN_OUT:
            whole[:, at:end] = tensor.T
        elif is_upright():
            whole.reshape(-1, tensor.shape[1])[at:end] = tensor
        else:
            panels = tensor.reshape(-1, PANEL, tensor.shape[1]).swapaxes(1, 2)
            whole[at // PANEL : end // PANEL] = panels
        at = end
    return whole


def split(entry: Entry, value: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of the file that a parameter was joined from: ``assemble`` undone.

    Args:
      entry: the parameter; not in panels.
      value: it.
    """
    whole = value.T if entry.layout == IN_OUT else value
    ends = np.cumsum([part.shape[0] for part in entry.parts])[:-1]
    return dict(zip((part.name for part in entry.parts), np.split(whole, ends), strict=True))


def _memory(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array, aligned so that jax can use it as it is, in huge pages if large.

    Decoding is bound by reading weights, and the table of 4 KiB pages of a model doesn't fit the
    processor: with 2 MiB pages it reads them at 33 instead of 30 GB/s (2 cores, EPYC), at times 35
    instead of 26. Linux gives them to those who ask.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        buffer = np.empty(size + 64, np.uint8)
        skip = -buffer.ctypes.data % 64
    else:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory gets no huge pages
        memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=private)
        memory.madvise(mmap.MADV_HUGEPAGE)
        buffer = np.frombuffer(memory, np.uint8)
        skip = -buffer.ctypes.data % _HUGE_PAGE
    return buffer[skip : skip + size].view(dtype).reshape(shape)
