"""The EAGLE-3 objective in plain PyTorch: a second opinion on its value, and a clock to beat.

python -m tests.train.torch_eagle     # both on this machine, at the sizes of the default model

Written the way published trainers are: modules, a mask of the whole square, the steps of
training-time test one after another, autograd. It takes turns with this library's step on the same
numbers: the same head, batch, steps and AdamW.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from specjax.heads.eagle import EagleConfig
from train import asked, eagle, eagle_init, optim, step
from train.settings import LoopSettings

DECAY = 0.8


class Head(nn.Module):
    """The block, with a matrix a name; ``load`` takes this library's parameters."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        c = self.config = config
        heads = c.num_heads + 2 * c.num_kv_heads

        def linear(inner: int, outer: int) -> nn.Linear:
            return nn.Linear(inner, outer, bias=False)

        self.fuse = linear(c.feature_width, c.width)
        self.embed_norm = nn.RMSNorm(c.target_width, eps=c.norm_eps)
        self.hidden_norm = nn.RMSNorm(c.width, eps=c.norm_eps)
        self.qkv = linear(c.target_width + c.width, heads * c.head_dim)
        self.out = linear(c.num_heads * c.head_dim, c.width)
        self.mlp_norm = nn.RMSNorm(c.width, eps=c.norm_eps)
        self.gate_up = linear(c.width, 2 * c.ffn_width)
        self.down = linear(c.ffn_width, c.width)
        self.output_norm = nn.RMSNorm(c.width, eps=c.norm_eps)

    def load(self, head: Any) -> None:
        """Copies ``{name: [in, out] or [W]}``."""
        with torch.no_grad():
            for name, value in head.items():
                getattr(self, name).weight.copy_(torch.tensor(np.asarray(value).T.copy()))

    def forward(
        self, embedded: Tensor, hidden: Tensor, angles: Tensor, past: list, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step: the output for the logits, and what is fed back; ``past`` grows by its own."""
        c = self.config
        both = torch.cat([self.embed_norm(embedded), self.hidden_norm(hidden)], -1)
        q, k, v = self._qkv(both, angles)
        past.append((k, v))
        scores = (q @ past[0][0].mT) * c.head_dim**-0.5 + mask
        own = [(q * k).sum(-1, keepdim=True) * c.head_dim**-0.5 for k, _ in past[1:]]
        weights = torch.cat([scores, *own], -1).softmax(-1)
        length = q.shape[2]
        mixed = weights[..., :length] @ past[0][1]
        for number, (_, v) in enumerate(past[1:]):
            mixed = mixed + weights[..., length + number, None] * v
        x = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        x = x + self.down(functional.silu(gate) * up)
        return self.output_norm(x), x

    def _qkv(self, x: Tensor, angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, -1, c.head_dim).transpose(1, 2)
        sizes = [c.num_heads, c.num_kv_heads, c.num_kv_heads]
        q, k, v = heads.split(sizes, 1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        q, k = (_rotated(y, cos, sin) for y in (q, k))
        group = c.num_heads // c.num_kv_heads
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def objective(
    head: Head, rows: Tensor, slots: dict[str, Tensor], steps: int
) -> tuple[Tensor, list[Tensor]]:
    """``train.asked.objective`` with cross entropy: the sum, and hits and sum min(p, q) by step."""
    c = head.config
    segment, length = slots["segment"], slots["segment"].shape[1]
    seen = (segment[:, :, None] == segment[:, None, :]) & torch.ones(length, length).tril().bool()
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
    inverse = c.rope.base ** -(torch.arange(0, c.head_dim, 2) / c.head_dim)
    with torch.no_grad():
        wanted = (slots["final"] @ rows).softmax(-1)
    hidden, past, total = head.fuse(slots["features"]), [], torch.zeros([])
    report = []
    for number in range(steps):
        angles = (slots["position"] + number)[..., None] * inverse
        embedded = _shifted(slots["embedded"], 1 + number)
        output, hidden = head(embedded, hidden, angles, past, mask)
        ahead = 2 + number
        counts = _shifted(slots["mask"], ahead) & _shifted(slots["known"], ahead)
        counts = counts & (_shifted(segment, ahead) == segment) & (segment > 0)
        p, log_q = _shifted(wanted, 1 + number), (output @ rows).log_softmax(-1)
        total = total + DECAY**number * (-(p * log_q).sum(-1) * counts).sum()
        with torch.no_grad():
            report.append((counts & (log_q.argmax(-1) == p.argmax(-1))).sum())
            report.append((torch.minimum(p, log_q.exp()).sum(-1) * counts).sum())
    return total, report


def _shifted(x: Tensor, by: int) -> Tensor:
    return torch.cat([x[:, by:], torch.zeros_like(x[:, :by])], 1)


def tensors(slots: eagle.Slots) -> dict[str, Tensor]:
    """This library's slots as tensors."""
    return {name: torch.tensor(np.asarray(value)) for name, value in slots._asdict().items()}


def main(steps: int = 3, rounds: int = 6) -> None:
    """Times both in turn; prints tokens per second and the median of the paired ratios."""
    config = EagleConfig(
        version=3, target_width=576, layers=(10, 20, 29), draft_vocab_size=8192, width=576,
        num_heads=9, num_kv_heads=3, head_dim=64, ffn_width=1536, own_head=False,
    )  # fmt: skip
    batch, length, rng = 4, 768, np.random.default_rng(0)
    head = eagle_init.random(config, jax.random.key(0))
    rows = rng.normal(size=(576, 8192)).astype(np.float32) * 0.04
    shape = batch, length
    # Three documents a row, two fifths of each a prompt: as in the data of the shipped head.
    place = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
    slots = eagle.Slots(
        tokens=np.zeros(shape, np.int32),
        mask=place % 256 >= 102,
        segment=1 + place // 256,
        position=place % 256,
        known=np.ones(shape, bool),
        features=rng.normal(size=(*shape, 3 * 576)).astype(np.float32),
        embedded=rng.normal(size=(*shape, 576)).astype(np.float32),
        final=rng.normal(size=(*shape, 576)).astype(np.float32),
    )
    ours, theirs = (
        _our_step(config, head, rows, slots, steps),
        _their_step(config, head, rows, slots, steps),
    )
    ours(), theirs()  # compilation, warm-up
    times = [(_seconds(ours), _seconds(theirs)) for _ in range(rounds)]
    tokens = batch * length
    for name, column in zip(("specjax", "PyTorch"), np.transpose(times), strict=True):
        print(
            f"{name}: {tokens / np.median(column):.0f} tokens/s, {np.median(column):.2f} s a step"
        )
    ratios = [b / a for a, b in times]
    print(f"ratio: {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def _our_step(config: EagleConfig, head: Any, rows: Any, slots: Any, steps: int) -> Any:
    optimizer = optim.make(LoopSettings(optimizer="adamw", lr=1e-4))

    def loss(head: Any, frozen: Any, batch: Any, key: Any) -> Any:
        del key
        said = eagle.unroll(config, head, frozen, eagle.Slots(*batch), steps)
        return asked.objective(said, loss="ce", decay=DECAY)

    one = jax.jit(step.make(loss, optimizer, jnp.dtype("float32"), 0), donate_argnums=(0,))
    frozen, batches = jnp.asarray(rows), jax.tree.map(lambda x: jnp.asarray(x)[None], tuple(slots))
    sums = jax.eval_shape(loss, head, frozen, jax.tree.map(lambda x: x[0], batches), None)[1]
    state = [step.init(head, sums, optimizer)]

    def run() -> None:
        state[0], _ = one(state[0], frozen, batches)
        jax.block_until_ready(state[0])

    return run


def _their_step(config: EagleConfig, head: Any, rows: Any, slots: Any, steps: int) -> Any:
    model, given, matrix = Head(config), tensors(slots), torch.tensor(rows)
    model.load(head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def run() -> None:
        optimizer.zero_grad()
        total, _ = objective(model, matrix, given, steps)
        loss = total / given["mask"].sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return run


def _seconds(run: Any) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
