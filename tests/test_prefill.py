"""Prefill: any chunking gives the cache and features of one pass, and stops before the last token."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import testing
from specjax.prefill import prefill
from tests import support

VOCAB, SLOTS = 16, 24
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)


@partial(jax.jit, static_argnums=(0, 1))
def filled(chunk: int, layers: tuple[int, ...], tokens: jax.Array, length: jax.Array) -> tuple:
    empty = TARGET.init_cache(tokens.shape[0], tokens.shape[1], jnp.float32)
    return prefill(TARGET, TABLE, tokens, length, empty, chunk=chunk, layers=layers)


def prompts(seed: int, lengths: list[int]) -> tuple[jax.Array, jax.Array]:
    """Ids past a prompt's end are junk, so that reading them shows."""
    tokens = np.random.default_rng(seed).integers(0, VOCAB, (len(lengths), SLOTS))
    return jnp.asarray(tokens, jnp.int32), jnp.asarray(lengths, jnp.int32)


@pytest.mark.parametrize("chunk", [1, 3, 4, 8, SLOTS, 64])
def test_every_chunking_fills_the_same_cache(chunk: int, seed: int) -> None:
    """F50: prompts of 1 to 9 tokens and one of the whole buffer, so every chunk end is met."""
    lengths = [*range(1, 10), SLOTS]
    tokens, length = prompts(seed, lengths)
    cache, features = filled(chunk, (0,), tokens, length)
    assert cache.length.tolist() == [n - 1 for n in lengths]
    assert cache.length.dtype == jnp.int32
    assert cache.tokens.shape == (len(lengths), SLOTS)
    assert features.shape == (len(lengths), SLOTS, 1)
    for row, n in enumerate(lengths):
        np.testing.assert_array_equal(cache.tokens[row, : n - 1], tokens[row, : n - 1])
        np.testing.assert_array_equal(cache.positions[row, : n - 1], np.arange(n - 1))
        whole = one_pass_features(tokens[row, : n - 1])
        np.testing.assert_array_equal(features[row, : n - 1, 0], whole)
        assert not np.any(features[row, n - 1 :])


def one_pass_features(tokens: jax.Array) -> np.ndarray:
    if not len(tokens):
        return np.zeros(0, np.float32)
    empty = TARGET.init_cache(1, SLOTS, jnp.float32)
    padded = jnp.pad(tokens, (0, SLOTS - len(tokens)))[None]
    _, features, _ = jax.jit(partial(TARGET.apply, layers=(0,)))(TABLE, padded, empty)
    return np.asarray(features[0, : len(tokens), 0])


def test_the_next_token_s_logits_are_right_after_it(seed: int) -> None:
    lengths = [1, 4, 5, 9]
    tokens, length = prompts(seed, lengths)
    cache, features = filled(4, (), tokens, length)
    assert features is None
    pending = jnp.take_along_axis(tokens, length[:, None] - 1, 1)
    logits, _, _ = TARGET.apply(TABLE, pending, cache)
    for row, n in enumerate(lengths):
        np.testing.assert_array_equal(logits[row, 0], support.logits_after(TABLE, tokens[row, :n]))


def test_prompts_of_one_token_take_no_pass() -> None:
    passes = []

    def apply(
        params: jax.Array, tokens: jax.Array, cache: testing.ScriptedCache, **options: object
    ) -> tuple:
        jax.debug.callback(lambda _: passes.append(1), tokens)
        return TARGET.apply(params, tokens, cache, **options)

    counting = TARGET._replace(apply=apply)
    tokens, _ = prompts(0, [1, 1])
    for lengths, count in (([1, 1], 0), ([1, 5], 1), ([6, 2], 2), ([9, 9], 2), ([10, 9], 3)):
        passes.clear()
        empty = TARGET.init_cache(2, SLOTS, jnp.float32)
        cache, _ = prefill(counting, TABLE, tokens, jnp.array(lengths, jnp.int32), empty, chunk=4)
        jax.block_until_ready(cache)
        jax.effects_barrier()
        assert len(passes) == count, lengths


def test_no_logits_of_the_prompt_are_ever_made() -> None:
    """[B, P, V] is what a long prompt could not afford: XLA must drop it."""
    tokens, length = prompts(0, [9, 9])
    text = filled.lower(8, (), tokens, length).compile().as_text()
    assert f"f32[2,8,{VOCAB}]" not in text
