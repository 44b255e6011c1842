"""Checks at the public edge: plain Python, one sentence an error, with the value and the fix."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from specjax import keys
from specjax.draft import Drafter
from specjax.target import Target
from specjax.verify import Verifier
from specjax.warp import Sampling


def prompts(
    prompts: ArrayLike | Sequence[Sequence[int]],
    lengths: ArrayLike | None,
    vocab_size: int,
    first: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The prompts as int32 ``[B, P]`` and their lengths as int32 ``[B]``.

    Messages number the prompts from ``first``.
    """
    if isinstance(prompts, Sequence) and prompts and np.ndim(prompts[0]) == 0:
        raise ValueError(
            f"prompts holds {prompts[0]!r}; they must be integers [B, P] or a list of lists of "
            "them (a single prompt goes in a list, [prompt])"
        )
    if isinstance(prompts, Sequence):
        own = [len(prompt) for prompt in prompts]
        lengths = np.array(own, int) if lengths is None else np.asarray(lengths)
        if lengths.shape == (len(own),):
            for row in np.flatnonzero(lengths > own)[:1]:
                raise ValueError(
                    f"prompt_lengths[{row}] is {lengths[row]}, but prompt {row} has {own[row]} ids"
                )
        width = max(own, default=0)
        prompts = [[*prompt, *[0] * (width - len(prompt))] for prompt in prompts]
    tokens = np.asarray(prompts)
    if tokens.ndim != 2 or tokens.shape[0] == 0:
        raise ValueError(f"prompts of shape {tokens.shape}; they must be [B, P] with B at least 1")
    if tokens.size and not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"prompts of dtype {tokens.dtype}; they must be integers (token ids)")
    batch, width = tokens.shape
    lengths = np.full(batch, width) if lengths is None else np.asarray(lengths)
    if lengths.shape != (batch,) or not np.issubdtype(lengths.dtype, np.integer):
        raise ValueError(
            f"prompt_lengths of shape {lengths.shape} and dtype {lengths.dtype}; they must be "
            f"integers [{batch}], one a prompt"
        )
    for row in np.flatnonzero((lengths < 1) | (lengths > width))[:1]:
        raise ValueError(
            f"prompt {first + row} has length {lengths[row]}; it must be at least 1 and at most "
            f"{width}, the width of prompts (give an empty prompt the tokenizer's BOS or EOS id)"
        )
    real = np.arange(width) < lengths[:, None]
    for row, slot in np.argwhere(real & ((tokens < 0) | (tokens >= vocab_size)))[:1]:
        raise ValueError(
            f"prompt {first + row} holds id {tokens[row, slot]} at position {slot}; ids must be "
            f"0 to {vocab_size - 1} (does the tokenizer belong to this target?)"
        )
    return np.where(real, tokens, 0).astype(np.int32), lengths.astype(np.int32)


def ids(eos_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """The ids that end a row, int32 ``[E]``."""
    out = np.asarray(list(eos_ids) if isinstance(eos_ids, Sequence) else eos_ids)
    if out.ndim != 1 or (out.size and not np.issubdtype(out.dtype, np.integer)):
        raise ValueError(f"eos_ids={eos_ids!r}; they must be a sequence of ids, such as (2,)")
    for bad in out[(out < 0) | (out >= vocab_size)][:1]:
        raise ValueError(f"eos_ids holds {bad}; ids must be 0 to {vocab_size - 1}")
    return out.astype(np.int32)


def count(name: str, value: int, least: int = 1) -> int:
    """A number of something is an int (numpy's will do), not too small, and counted in int32."""
    try:
        whole = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}; it must be an int") from None
    if isinstance(value, bool):
        raise ValueError(f"{name}={value!r}; it must be an int")
    if whole < least:
        raise ValueError(f"{name}={whole}; it must be at least {least}")
    if whole > np.iinfo(np.int32).max:
        raise ValueError(f"{name}={whole}; it must be at most {np.iinfo(np.int32).max} (as int32)")
    return whole


def ascending(name: str, values: Sequence[int], least: int) -> list[int]:
    """Ascending ints from at least ``least``."""
    try:
        numbers = [operator.index(value) for value in values]
    except TypeError:
        fix = "it must be a sequence of ints, such as (1, 4)"
        raise ValueError(f"{name}={values!r}; {fix}") from None
    if not numbers or numbers != sorted(set(numbers)) or numbers[0] < least:
        raise ValueError(f"{name}={values}; they must ascend from at least {least}")
    return numbers


def floating(dtype: DTypeLike) -> DTypeLike:
    """A cache's dtype must be of floating point."""
    try:
        right = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:  # no dtype at all
        right = False
    if not right:
        raise ValueError(f"dtype={dtype!r}; it must be of floating point, such as jnp.bfloat16")
    return dtype


def parts(target: Target, drafter: Drafter | None, verifier: Verifier | None) -> None:
    """What is decoded with must be what it should be, and the cache able to forget."""
    if not isinstance(target, Target):
        raise ValueError(f"target is a {type(target).__name__}; wrap the model in specjax.Target")
    if not isinstance(drafter, Drafter | None):
        raise ValueError(f"drafter={drafter!r}; it must be a Drafter, such as drafters.ngram(k=4)")
    if not isinstance(verifier, Verifier | None):
        raise ValueError(f"verifier={verifier!r}; it must be a Verifier, such as verify.block")
    if not callable(target.rollback):
        raise ValueError(
            f"target {target.name!r} has no rollback; its cache must be able to forget entries "
            "(recurrent and rolling-window caches need snapshots)"
        )


def arrays(name: str, params: Any) -> None:
    """Parameters must be arrays and numbers, or jax can't be given them."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not isinstance(leaf, Array | np.ndarray | np.generic | int | float):
            where = name + jax.tree_util.keystr(path)
            raise ValueError(
                f"{where} is a {type(leaf).__name__}; it must be an array (drafters say what they "
                "take: corpus wants corpus_params(table), eagle what eagle_params makes)"
            )


def sampling(sampling: Sampling, batch: int) -> Sampling:
    """The settings as ``[B]`` arrays; a temperature of 0 everywhere becomes None (greedy)."""
    checks = {
        "temperature": (np.float32, lambda x: x >= 0, "at least 0 and finite"),
        "top_k": (np.int32, lambda x: x >= 1, "at least 1"),
        "top_p": (np.float32, lambda x: (x > 0) & (x <= 1), "in (0, 1]"),
        "min_p": (np.float32, lambda x: (x >= 0) & (x <= 1), "in [0, 1]"),
    }
    out: dict[str, Any] = {}
    for name, (dtype, allowed, words) in checks.items():
        value = getattr(sampling, name)
        if value is None:
            continue
        array = np.asarray(value)
        if array.shape not in ((), (batch,)):
            raise ValueError(f"{name} has shape {array.shape}; it must be [] or [{batch}]")
        if name == "top_k" and not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"top_k={value}; it must be an integer")
        if name == "top_k" and np.any(array > np.iinfo(np.int32).max):  # the cast would wrap it
            raise ValueError(f"top_k={value}; it must be at least 1 (as int32)")
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(dtype)  # what decoding will see: the checks are on that
        if not np.all(np.isfinite(cast) & allowed(cast)):
            raise ValueError(f"{name}={value}; it must be {words} (as {dtype.__name__})")
        out[name] = np.broadcast_to(cast, (batch,))
    if np.all(out.get("temperature", 0) == 0):
        out.pop("temperature", None)
        if out:
            raise ValueError(
                f"{', '.join(out)} without a temperature above 0: greedy decoding would ignore "
                "it; set a temperature or drop the filter"
            )
    return Sampling(**{name: jnp.asarray(value) for name, value in out.items()})


def pairing(
    verifier: Verifier,
    is_greedy: bool,
    key: Array | None,
    drafter: Drafter | None,
    drafter_params: Any,
) -> None:
    """Settings that only make sense together."""
    if verifier.greedy != is_greedy:
        how = "greedy decoding" if is_greedy else "a temperature above 0"
        fix = "verify.greedy, or set a temperature" if is_greedy else "verify.block or verify.match"
        raise ValueError(f"verifier {verifier.name!r} does not go with {how}; use {fix}")
    if key is None and not is_greedy:
        raise ValueError("key=None with a temperature above 0; pass key=jax.random.key(seed)")
    if drafter is None and drafter_params is not None:
        raise ValueError("drafter_params without a drafter; pass drafter=... too")
    arrays("drafter_params", drafter_params)


def row_keys(key: Array | None, batch: int) -> Array:
    """Row keys ``[B]``."""
    if key is None:  # greedy decoding: never read
        key = jax.random.key(0, impl="threefry2x32")
    if not isinstance(key, Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError(f"key={key!r}; it must be a typed key, jax.random.key(seed)")
    if str(jax.random.key_impl(key)) != "threefry2x32":
        raise ValueError(
            f"a {jax.random.key_impl(key)} key; only threefry2x32 keeps rows independent of their "
            "neighbours: jax.random.key(seed, impl='threefry2x32')"
        )
    if key.shape not in ((), (batch,)):
        raise ValueError(f"key has shape {key.shape}; it must be [] or [{batch}]")
    return keys.row_keys(key, batch)
