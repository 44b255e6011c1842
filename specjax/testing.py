"""Scripted models for exact tests, and ``check_target``: for this library's tests and for yours.

A scripted target's logits are looked up in a table by a hash of exactly the (token, position) pairs
its cache shows to each new token. They carry no rounding, and every mistake with a cache (a wrong
rollback, a hole, a stale entry, a wrong position or mask) changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from specjax import cache as kv
from specjax.draft import Context, Draft, Drafter, Params, Prefill, Record
from specjax.target import Target


class ScriptedCache(NamedTuple):
    """What a scripted target remembers: tokens and positions int32 ``[B, S]``, length ``[B]``."""

    tokens: Array
    positions: Array
    length: Array


def scripted_table(seed: int, vocab: int, rows: int = 997, scale: float = 1.5) -> Array:
    """Parameters of a scripted target: float32 ``[rows, vocab]`` of normal logits."""
    table = np.random.default_rng(seed).normal(size=(rows, vocab)) * scale
    return jnp.asarray(table, jnp.float32)


@cache
def scripted_target(vocab: int, name: str = "scripted") -> Target:
    """A target whose parameters are a table of logits; features are the hash in float32."""

    def init_cache(batch: int, capacity: int, dtype: Any) -> ScriptedCache:
        del dtype
        empty = jnp.zeros([batch, capacity], jnp.int32)
        return ScriptedCache(empty, empty, jnp.zeros([batch], jnp.int32))

    def apply(
        params: Array,
        tokens: Array,
        cache: ScriptedCache,
        *,
        positions: Array | None = None,
        mask: Array | None = None,
        layers: Sequence[int] = (),
    ) -> tuple[Array, Array | None, ScriptedCache]:
        count = tokens.shape[1]
        slots = cache.length[:, None] + jnp.arange(count, dtype=jnp.int32)
        positions = slots if positions is None else positions
        if mask is None:
            mask = jnp.tril(jnp.ones((1, count, count), bool))
        put = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))
        held = put(cache.tokens, slots, tokens), put(cache.positions, slots, positions)
        slot = jnp.arange(cache.tokens.shape[1], dtype=jnp.int32)
        new = jnp.any(mask[:, :, :, None] & (slots[:, None, :, None] == slot), 2)
        seen = new | (slot < cache.length[:, None, None])
        hashes = jnp.sum(jnp.where(seen, _mix(*held)[:, None], 0), 2, dtype=jnp.uint32)
        logits = params[(_scramble(hashes) % np.uint32(params.shape[0])).astype(jnp.int32)]
        features = jnp.stack([hashes.astype(jnp.float32)] * len(layers), -1) if layers else None
        return logits, features, ScriptedCache(*held, cache.length + count)

    def keep(cache: ScriptedCache, start: Array, path: Array) -> ScriptedCache:
        def move(buffer: Array) -> Array:
            moved = jnp.take_along_axis(buffer, start[:, None] + path, 1)
            return kv.write(buffer[:, None, :, None], moved[:, None, :, None], start)[:, 0, :, 0]

        return cache._replace(tokens=move(cache.tokens), positions=move(cache.positions))

    return Target(init_cache, apply, kv.rollback, vocab, keep=keep, name=name)


def scripted_logits(table: Array, prefix: Sequence[int]) -> np.ndarray:
    """What a scripted target says after a prefix, without any cache: float32 ``[V]``."""
    positions = jnp.arange(len(prefix), dtype=jnp.int32)
    mixed = _mix(jnp.asarray(prefix, jnp.int32), positions)
    row = _scramble(jnp.sum(mixed, dtype=jnp.uint32)) % np.uint32(table.shape[0])
    return np.asarray(table[int(row)])


def scripted_greedy(table: Array, prompt: Sequence[int], count: int) -> list[int]:
    """Plain greedy decoding of a scripted target, without any cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(scripted_logits(table, tokens))))
    return tokens[len(prompt) :]


def _mix(tokens: Array, positions: Array) -> Array:
    """A hash of each (token, position), uint32; their sum is a hash of the set."""
    tokens, positions = tokens.astype(jnp.uint32), positions.astype(jnp.uint32)
    return _scramble(tokens * np.uint32(0x9E3779B1) + _scramble(positions + np.uint32(1)))


def _scramble(x: Array) -> Array:
    """A 32-bit finaliser (Murmur3's): every input bit moves every output bit."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@cache
def oracle(k: int) -> Drafter:
    """Drafts from a script, so that a test decides what is accepted.

    ``drafter_params`` are int32 ``[B, S]``: what to draft for each absolute position; -1 ends the
    draft there. The state counts the rounds.
    """

    def init(params: Params, prefill: Prefill) -> Array:
        del params, prefill
        return jnp.zeros([], jnp.int32)

    def propose(
        params: Params, state: Array, context: Context, limit: Array
    ) -> tuple[Draft, Array, Any]:
        slots = context.length[:, None] + jnp.arange(k, dtype=jnp.int32)
        script = jnp.take_along_axis(params.drafter, slots, 1, mode="fill", fill_value=-1)
        real = jnp.sum(jnp.cumprod((script >= 0).astype(jnp.int32), 1), 1, dtype=jnp.int32)
        draft = Draft(jnp.maximum(script, 0), jnp.minimum(real, limit))
        return draft, state, context.cache

    def update(params: Params, state: Array, context: Context, record: Record) -> Array:
        del params, context, record
        return state + 1

    return Drafter(init, propose, update, num_nodes=k, name="oracle")


def check_target(
    target: Target,
    params: Any,
    *,
    layers: tuple[int, ...] = (),
    tolerance: float = 1e-3,
    dtype: Any = jnp.float32,
) -> None:
    """Tries everything that drafting chains relies on, and says in words what is wrong.

    Trees ask more (positions, mask, keep), which is not tried.

    Args:
      target: the target to check.
      params: its parameters.
      layers: streams a head would read, to try these as well.
      tolerance: largest difference allowed between logits that should be equal (kernels of
        different shapes round differently; widen it for bfloat16).
      dtype: of the cache.

    Raises:
      ValueError: naming the first broken promise.
    """
    _TargetCheck(target, params, layers, tolerance, dtype).run()


class _TargetCheck:
    """One method a promise; ``run`` goes through them in the order they build on each other."""

    def __init__(
        self, target: Target, params: Any, layers: tuple[int, ...], tolerance: float, dtype: Any
    ) -> None:
        self.target, self.tolerance, self.dtype = target, tolerance, dtype
        self.params, self.layers = params, layers
        step = jax.jit(target.apply)
        self.apply: Callable[..., Any] = lambda tokens, cache: step(params, tokens, cache)
        ids = np.random.default_rng(0).integers(0, target.vocab_size, (2, 12))
        self.tokens = jnp.asarray(ids, jnp.int32)

    def run(self) -> None:
        self.starts_empty()
        self.appends()
        self.ignores_the_future()
        self.continues_from_the_cache()
        self.rolls_back()
        self.forgets()
        self.keeps_rows_apart()
        self.drops_what_does_not_fit()
        if self.layers:
            self.gives_features()

    def empty(self, capacity: int = 32) -> Any:
        return self.target.init_cache(2, capacity, self.dtype)

    def fail(self, promise: str) -> None:
        raise ValueError(f"target {self.target.name!r}: {promise}")

    def same(self, got: ArrayLike, want: ArrayLike, promise: str) -> None:
        ids = self.target.vocab_size  # what lies behind is padding
        got, want = (np.asarray(x, np.float32)[..., :ids] for x in (got, want))
        with np.errstate(invalid="ignore"):  # -inf is legal where it stays
            apart = np.where(got == want, 0, np.abs(got - want))
        if not np.all(apart <= self.tolerance):
            worst = np.max(apart)
            self.fail(f"{promise} (largest difference {worst:.3g}, allowed {self.tolerance:g})")

    def starts_empty(self) -> None:
        if not callable(self.target.rollback):
            self.fail("it needs a rollback: (cache, length [B]) -> cache")
        length = getattr(self.empty(), "length", None)
        if length is None or length.shape != (2,) or length.dtype != jnp.int32:
            self.fail("init_cache(batch, capacity, dtype) must give a cache with int32 length [B]")
        if np.any(length):
            self.fail(f"a new cache must have length 0 in every row, not {np.asarray(length)}")

    def appends(self) -> None:
        before = self.empty()
        logits, _, after = self.apply(self.tokens[:, :5], before)
        if logits.ndim != 3 or logits.shape[:2] != (2, 5):
            self.fail(f"apply on tokens [2, 5] must give logits [2, 5, V], not {logits.shape}")
        if logits.shape[2] < self.target.vocab_size:
            self.fail(f"logits have {logits.shape[2]} ids, vocab_size is {self.target.vocab_size}")
        if np.any(np.isnan(np.asarray(logits[..., : self.target.vocab_size], np.float32))):
            self.fail("logits hold NaN (parameters that aren't finite, or a softmax over nothing?)")
        if np.any(after.length != 5):
            self.fail(f"apply on 5 tokens must move length on by 5, not to {after.length}")
        shapes = (jax.tree.map(lambda x: (x.shape, x.dtype), cache) for cache in (before, after))
        if len({str(shape) for shape in shapes}) > 1:
            self.fail("apply must return a cache of the same structure, shapes and dtypes")

    def ignores_the_future(self) -> None:
        changed = self.tokens.at[:, 5:].add(1) % self.target.vocab_size
        first, second = (self.apply(t, self.empty())[0] for t in (self.tokens, changed))
        promise = "a token's logits must not depend on later tokens (is the mask causal?)"
        self.same(second[:, :5], first[:, :5], promise)

    def continues_from_the_cache(self) -> None:
        whole = self.apply(self.tokens, self.empty())[0]
        cache, pieces = self.empty(), []
        for start, end in ((0, 4), (4, 5), (5, 9), (9, 12)):
            logits, _, cache = self.apply(self.tokens[:, start:end], cache)
            pieces.append(logits)
        promise = "passes of 4, 1, 4 and 3 tokens must give the logits of one pass over all 12"
        self.same(jnp.concatenate(pieces, 1), whole, promise)

    def rolls_back(self) -> None:
        _, _, cache = self.apply(self.tokens[:, :8], self.empty())
        for lengths, left in (([3, 7], [3, 7]), ([9, 9], [8, 8])):
            back = self.target.rollback(cache, jnp.array(lengths, jnp.int32))
            if back.length.tolist() != left:
                self.fail(
                    f"rollback to {lengths} left length {back.length.tolist()}, not {left}; it "
                    "must never lengthen a row"
                )

    def keeps_rows_apart(self) -> None:
        """Rows at different lengths, as after a round that accepted different counts."""
        whole = self.apply(self.tokens, self.empty())[0]
        _, _, cache = self.apply(self.tokens[:, :8], self.empty())
        lengths = jnp.array([3, 7], jnp.int32)
        cache = self.target.rollback(cache, lengths)
        slots = lengths[:, None] + jnp.arange(3, dtype=jnp.int32)
        logits, _, _ = self.apply(jnp.take_along_axis(self.tokens, slots, 1), cache)
        want = jnp.take_along_axis(whole, slots[:, :, None], 1)
        promise = "after a rollback to rows of different lengths the logits must go on from there"
        self.same(logits, want, promise + " (are positions and slots per row?)")

    def forgets(self) -> None:
        other = (self.tokens + 1) % self.target.vocab_size
        _, _, cache = self.apply(self.tokens[:, :2], self.empty())
        _, _, cache = self.apply(other[:, 2:8], cache)
        cache = self.target.rollback(cache, jnp.array([2, 2], jnp.int32))
        logits, _, _ = self.apply(self.tokens[:, 2:5], cache)
        want = self.apply(self.tokens[:, :5], self.empty())[0][:, 2:]
        self.same(logits, want, "entries that were rolled back must not be seen again")

    def gives_features(self) -> None:
        step = jax.jit(partial(self.target.apply, layers=self.layers))
        logits, whole, cache = step(self.params, self.tokens, self.empty())
        if whole is None or whole.ndim != 3 or whole.shape[:2] != (2, 12):
            shape = None if whole is None else whole.shape
            self.fail(f"apply with layers={self.layers} must give features [2, 12, F], not {shape}")
        plain = self.apply(self.tokens, self.empty())[0]
        self.same(logits, plain, "asking for features must not change the logits")
        _, _, cache = step(self.params, self.tokens[:, :7], self.empty())
        _, rest, _ = step(self.params, self.tokens[:, 7:], cache)
        apart = np.max(np.abs(np.asarray(rest - whole[:, 7:], np.float32)))
        if not apart <= self.tolerance * max(1.0, float(jnp.max(jnp.abs(whole)))):
            self.fail(f"features must be those of one pass over all tokens, not {apart:.3g} apart")

    def drops_what_does_not_fit(self) -> None:
        _, _, cache = self.apply(self.tokens[:, :6], self.empty(8))
        _, _, full = self.apply(self.tokens[:, 6:12], cache)
        full = self.target.rollback(full, jnp.array([6, 6], jnp.int32))
        logits, _, _ = self.apply(self.tokens[:, 6:8], full)
        want = self.apply(self.tokens[:, :8], self.empty(8))[0][:, 6:]
        promise = "appending past the last slot must drop what does not fit, not overwrite entries"
        self.same(logits, want, promise + " (dynamic_update_slice shifts its start back)")
