"""The target: any JAX language model, seen as a handful of pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Cache = Any  # a pytree with an int32 [B] attribute ``length``: specjax.KVCache, or the caller's own


class Target(NamedTuple):
    """A language model with a cache that can be rolled back by index.

    Make it in a small factory that returns the same object for equal arguments
    (``specjax.factory.factory`` does it): compiled programs are keyed by the identity of these
    functions.

    Attributes:
      init_cache: ``(batch, capacity, dtype) -> cache``, empty, of fixed shapes.
      apply: ``(params, tokens [B, T], cache, *, positions=None, mask=None, layers=())
        -> (logits [B, T, V], features [B, T, F] | None, cache)``. Appends T entries at
        ``cache.length`` (per row) and moves it on by T. ``positions`` (int32 ``[B, T]``) are the
        slot numbers by default; ``mask`` (bool ``[B, T, T]``, query by key) says which of the *new*
        tokens each new token sees, causal by default; all older valid slots are always seen.
        ``layers`` names the features to return, concatenated on the last axis: i is the residual
        stream entering block i, L the one after the last block and before the final norm, -1 the
        one after the final norm.
      rollback: ``(cache, length [B]) -> cache``, forgets all entries from ``length`` on.
      vocab_size: ids the target can emit; logits may be wider (padding), never narrower.
      keep: ``(cache, start [B], path [B, D]) -> cache``, moves an accepted tree path together; None
        for targets that verify chains only.
      name: for messages and tables.
    """

    init_cache: Callable[..., Cache]
    apply: Callable[..., tuple[Any, Any, Cache]]
    rollback: Callable[[Cache, Any], Cache]
    vocab_size: int
    keep: Callable[..., Cache] | None = None
    name: str = "target"
