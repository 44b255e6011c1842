"""Scripted models see every mistake with a cache; check_target says in words what is wrong."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Target, testing
from tests import support

VOCAB = 16
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
Cache = testing.ScriptedCache


# --- scripted targets ---


def test_factories_return_the_same_object() -> None:
    assert testing.scripted_target(VOCAB) is testing.scripted_target(VOCAB)
    assert testing.oracle(3) is testing.oracle(3)


def test_scripted_logits_three_ways(seed: int) -> None:
    """One pass, ``scripted_logits``, and the numpy reference of these tests."""
    tokens = np.random.default_rng(seed).integers(0, VOCAB, (2, 9)).astype(np.int32)
    logits, features, cache = TARGET.apply(TABLE, tokens, TARGET.init_cache(2, 12, jnp.float32))
    assert features is None
    assert cache.length.tolist() == [9, 9]
    for row in range(2):
        for n in range(1, 10):
            want = support.logits_after(TABLE, tokens[row, :n])
            np.testing.assert_array_equal(logits[row, n - 1], want)
            np.testing.assert_array_equal(testing.scripted_logits(TABLE, tokens[row, :n]), want)
    prompt = tokens[0].tolist()
    assert testing.scripted_greedy(TABLE, prompt, 7) == support.plain_greedy(TABLE, prompt, 7)


def test_every_mistake_with_a_cache_changes_the_logits(seed: int) -> None:
    """Another token, position, length or mask, a hole, a swap: each gives other logits."""
    tokens = jnp.asarray(np.random.default_rng(seed).permutation(VOCAB)[None, :9], jnp.int32)
    _, _, cache = TARGET.apply(TABLE, tokens[:, :6], TARGET.init_cache(1, 12, jnp.float32))

    def logits(cache: Cache, **options: Any) -> list:
        return TARGET.apply(TABLE, tokens[:, 6:8], cache, **options)[0][0, 1].tolist()

    right = logits(cache)
    swapped = cache.tokens.at[0, 1].set(cache.tokens[0, 2]).at[0, 2].set(cache.tokens[0, 1])
    wrong = {
        "a token": logits(cache._replace(tokens=cache.tokens.at[0, 3].add(1))),
        "a position": logits(cache._replace(positions=cache.positions.at[0, 3].add(1))),
        "two swapped": logits(cache._replace(tokens=swapped)),
        "one too short": logits(cache._replace(length=cache.length - 1)),
        "one too long": logits(cache._replace(length=cache.length + 1)),
        "positions": logits(cache, positions=jnp.array([[7, 8]], jnp.int32)),
        "mask": logits(cache, mask=jnp.array([[[True, False], [False, True]]])),
    }
    for what, got in wrong.items():
        assert got != right, what
    assert logits(cache._replace(tokens=cache.tokens.at[0, 8].add(1))) == right, "scratch is free"


def test_positions_and_mask_make_a_tree(seed: int) -> None:
    """Two branches in one pass see what two chains see."""
    tokens = np.random.default_rng(seed).permutation(VOCAB)[:5].astype(np.int32)
    prompt, (root, left, right) = tokens[:2], tokens[2:]
    _, _, cache = TARGET.apply(
        TABLE, jnp.asarray(prompt[None]), TARGET.init_cache(1, 8, jnp.float32)
    )
    mask = jnp.array([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], bool)
    positions = jnp.array([[2, 3, 3]], jnp.int32)
    nodes = jnp.array([[root, left, right]])
    logits, _, cache = TARGET.apply(TABLE, nodes, cache, positions=positions, mask=mask)
    for node, last in ((1, left), (2, right)):
        chain = support.logits_after(TABLE, [*prompt, root, last])
        np.testing.assert_array_equal(logits[0, node], chain)
    # The second branch was right: its entry moves next to the root's, and decoding goes on.
    cache = TARGET.keep(cache, jnp.array([2], jnp.int32), jnp.array([[0, 2]], jnp.int32))
    cache = TARGET.rollback(cache, jnp.array([4], jnp.int32))
    logits, _, _ = TARGET.apply(TABLE, jnp.array([[5]], jnp.int32), cache)
    np.testing.assert_array_equal(
        logits[0, 0], support.logits_after(TABLE, [*prompt, root, right, 5])
    )


def test_features_are_one_column_a_layer() -> None:
    tokens = jnp.array([[1, 2, 3]], jnp.int32)
    empty = TARGET.init_cache(1, 4, jnp.float32)
    _, features, _ = TARGET.apply(TABLE, tokens, empty, layers=(0, 2))
    assert features.shape == (1, 3, 2)
    assert features.dtype == jnp.float32


# --- check_target ---


def test_a_good_target_passes() -> None:
    testing.check_target(TARGET, TABLE)


def test_logits_may_be_wider_than_the_vocabulary() -> None:
    testing.check_target(TARGET._replace(vocab_size=VOCAB - 3), TABLE)


def with_apply(change: Any) -> Target:
    """A target whose apply goes wrong: ``change(tokens, cache) -> (logits, features, cache)``."""

    def apply(params: Any, tokens: jax.Array, cache: Any, **options: Any) -> tuple:
        del params, options
        return change(tokens, cache)

    return TARGET._replace(apply=apply, name="broken")


def right(tokens: jax.Array, cache: Cache, **options: Any) -> tuple:
    return TARGET.apply(TABLE, tokens, cache, **options)


def batch_wide_index(tokens: jax.Array, cache: Cache) -> tuple:
    """All rows write and look from where the first one stands."""
    shared = jnp.broadcast_to(cache.length[0], cache.length.shape)
    logits, features, after = right(tokens, cache._replace(length=shared))
    return logits, features, after._replace(length=cache.length + tokens.shape[1])


def clamped_write(tokens: jax.Array, cache: Cache) -> tuple:
    """dynamic_update_slice: a write that does not fit moves back over valid entries."""
    count = tokens.shape[1]
    put = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice_in_dim(row, new, at, 0))
    positions = cache.length[:, None] + jnp.arange(count, dtype=jnp.int32)
    logits, features, after = right(tokens, cache)
    held = put(cache.tokens, tokens, cache.length), put(cache.positions, positions, cache.length)
    return logits, features, Cache(*held, after.length)


def not_causal(tokens: jax.Array, cache: Cache) -> tuple:
    count = tokens.shape[1]
    return right(tokens, cache, mask=jnp.ones((1, count, count), bool))


def only_the_last_key(tokens: jax.Array, cache: Cache) -> tuple:
    """A causal mask counted from 0: in a later pass the query attends to too few slots."""
    logits, features, _ = right(tokens, cache._replace(length=jnp.zeros_like(cache.length)))
    kept = right(tokens, cache)[2]
    return logits, features, kept._replace(length=cache.length + tokens.shape[1])


def positions_from_zero(tokens: jax.Array, cache: Cache) -> tuple:
    count = tokens.shape[1]
    positions = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), tokens.shape)
    return right(tokens, cache, positions=positions)


def positions_one_late(tokens: jax.Array, cache: Cache) -> tuple:
    """Only in a pass that continues, as when a position is incremented before the pass."""
    count = tokens.shape[1]
    start = cache.length + (cache.length > 0).astype(jnp.int32)
    return right(tokens, cache, positions=start[:, None] + jnp.arange(count, dtype=jnp.int32))


def stale_entries_seen(tokens: jax.Array, cache: Cache) -> tuple:
    """Everything ever written stays visible: token 0 stands for an empty slot."""
    held = jnp.sum(cache.tokens != 0, 1, dtype=jnp.int32)
    long = jnp.where(held > cache.length, held, cache.length)
    end = long - cache.length
    logits, features, _ = right(tokens, cache._replace(length=cache.length + jnp.maximum(end, 0)))
    return logits, features, right(tokens, cache)[2]


def other_dtype(tokens: jax.Array, cache: Cache) -> tuple:
    logits, features, after = right(tokens, cache._replace(tokens=cache.tokens.astype(jnp.int32)))
    return logits, features, after._replace(tokens=after.tokens.astype(jnp.float32))


def growing_cache(tokens: jax.Array, cache: Cache) -> tuple:
    logits, features, after = right(tokens, cache)
    grown = jnp.pad(after.tokens, ((0, 0), (0, tokens.shape[1])))
    return logits, features, after._replace(tokens=grown)


def narrow_logits(tokens: jax.Array, cache: Cache) -> tuple:
    logits, *rest = right(tokens, cache)
    return logits[:, :, :-1], *rest


def last_logits_only(tokens: jax.Array, cache: Cache) -> tuple:
    logits, *rest = right(tokens, cache)
    return logits[:, -1], *rest


def length_not_moved(tokens: jax.Array, cache: Cache) -> tuple:
    logits, features, after = right(tokens, cache)
    return logits, features, after._replace(length=cache.length)


def nan_logits(tokens: jax.Array, cache: Cache) -> tuple:
    logits, *rest = right(tokens, cache)
    return logits.at[0, 0, 0].set(jnp.nan), *rest


BROKEN_APPLY = {
    batch_wide_index: "rows of different lengths.*per row",
    clamped_write: "must drop what does not fit.*dynamic_update_slice",
    not_causal: "must not depend on later tokens.*causal",
    only_the_last_key: "passes of 4, 1, 4 and 3 tokens must give the logits of one pass",
    positions_from_zero: "passes of 4, 1, 4 and 3 tokens",
    positions_one_late: "passes of 4, 1, 4 and 3 tokens",
    stale_entries_seen: "rolled back must not be seen again",
    other_dtype: "same structure, shapes and dtypes",
    growing_cache: "same structure, shapes and dtypes",
    narrow_logits: "logits have 15 ids, vocab_size is 16",
    last_logits_only: r"logits \[2, 5, V\], not \(2, 16\)",
    length_not_moved: "must move length on by 5, not to",
    nan_logits: "logits hold NaN",
}


def apply_cases() -> list:
    return [pytest.param(c, id=c.__name__) for c in BROKEN_APPLY]


@pytest.mark.parametrize("change", apply_cases())
def test_a_broken_apply_is_named(change: Any) -> None:
    with pytest.raises(ValueError, match=BROKEN_APPLY[change]) as error:
        testing.check_target(with_apply(change), TABLE)
    assert "'broken'" in str(error.value)


def no_rollback(cache: Cache, length: jax.Array) -> Cache:
    del length
    return cache


def rollback_of_the_first_row(cache: Cache, length: jax.Array) -> Cache:
    return cache._replace(length=jnp.broadcast_to(length[0], cache.length.shape))


def rollback_one_short(cache: Cache, length: jax.Array) -> Cache:
    return cache._replace(length=jnp.minimum(cache.length, length - 1))


def rollback_that_lengthens(cache: Cache, length: jax.Array) -> Cache:
    return cache._replace(length=length)


BROKEN_ROLLBACK = {
    no_rollback: r"rollback to \[3, 7\] left length \[8, 8\]",
    rollback_of_the_first_row: r"rollback to \[3, 7\] left length \[3, 3\]",
    rollback_one_short: r"rollback to \[3, 7\] left length \[2, 6\]",
    rollback_that_lengthens: "never lengthen a row",
}


@pytest.mark.parametrize("rollback", BROKEN_ROLLBACK, ids=lambda rollback: rollback.__name__)
def test_a_broken_rollback_is_named(rollback: Any) -> None:
    with pytest.raises(ValueError, match=BROKEN_ROLLBACK[rollback]):
        testing.check_target(TARGET._replace(rollback=rollback), TABLE)


def test_a_missing_rollback_is_named() -> None:
    """F17."""
    with pytest.raises(ValueError, match="rollback"):
        testing.check_target(TARGET._replace(rollback=None), TABLE)


def init_with(**fields: Any) -> Any:
    def init_cache(batch: int, capacity: int, dtype: Any) -> Cache:
        cache = TARGET.init_cache(batch, capacity, dtype)
        return cache._replace(**{name: make(batch) for name, make in fields.items()})

    return init_cache


BROKEN_INIT = {
    "a scalar length": (lambda batch: jnp.zeros([], jnp.int32), r"int32 length \[B\]"),
    "a float length": (lambda batch: jnp.zeros([batch]), r"int32 length \[B\]"),
    "not empty": (lambda batch: jnp.ones([batch], jnp.int32), "length 0 in every row"),
}


@pytest.mark.parametrize("what", BROKEN_INIT)
def test_a_broken_init_cache_is_named(what: str) -> None:
    make, words = BROKEN_INIT[what]
    with pytest.raises(ValueError, match=words):
        testing.check_target(TARGET._replace(init_cache=init_with(length=make)), TABLE)


def test_a_cache_without_length_is_named() -> None:
    init_cache = lambda batch, capacity, dtype: jnp.zeros((batch, capacity))  # noqa: E731
    with pytest.raises(ValueError, match=r"int32 length \[B\]"):
        testing.check_target(TARGET._replace(init_cache=init_cache), TABLE)


def test_ids_may_be_ruled_out() -> None:
    def masked(tokens: jax.Array, cache: Cache) -> tuple:
        logits, *rest = right(tokens, cache)
        return logits.at[..., 3].set(-jnp.inf), *rest

    testing.check_target(with_apply(masked), TABLE)


def test_tolerance_is_for_rounding() -> None:
    def rounded(tokens: jax.Array, cache: Cache) -> tuple:
        logits, *rest = right(tokens, cache)
        return logits + 1e-2 * (tokens.shape[1] == 1), *rest

    with pytest.raises(ValueError, match=r"largest difference 0\.01, allowed 0\.001"):
        testing.check_target(with_apply(rounded), TABLE)
    testing.check_target(with_apply(rounded), TABLE, tolerance=0.02)


def features_of_the_pass(params: Any, tokens: jax.Array, cache: Any, **options: Any) -> Any:
    """Features that depend on where a pass began."""
    logits, features, after = TARGET.apply(params, tokens, cache, **options)
    if features is not None:
        features = features * 0 + jnp.arange(tokens.shape[1], dtype=features.dtype)[:, None]
    return logits, features, after


def test_features_are_tried_where_asked_for() -> None:
    broken = TARGET._replace(apply=features_of_the_pass)
    testing.check_target(broken, TABLE)
    with pytest.raises(ValueError, match="features must be those of one pass"):
        testing.check_target(broken, TABLE, layers=(0,))
    none = TARGET._replace(
        apply=lambda params, tokens, cache, **options: TARGET.apply(params, tokens, cache)
    )
    with pytest.raises(ValueError, match=r"layers=\(0,\) must give features"):
        testing.check_target(none, TABLE, layers=(0,))
    testing.check_target(TARGET, TABLE, layers=(0, 1))
