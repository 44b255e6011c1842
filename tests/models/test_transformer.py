"""What the transformer does with its buffer: blocks, scratch, the end, copies, unused logits."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import machine
from specjax.models import ModelConfig, attention, init_params, linear, transformer_target
from specjax.models.transformer import Params

CONFIG = ModelConfig(
    vocab_size=31,
    width=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_width=24,
)
TARGET = transformer_target(CONFIG)
APPLY = jax.jit(TARGET.apply, static_argnames="layers")


def params_of(seed: int, dtype: jax.typing.DTypeLike = jnp.float32) -> Params:
    params = init_params(CONFIG, jax.random.key(seed), dtype)
    return jax.tree.map(lambda x: x * 4 if x.ndim > 1 else x, params)  # far from uniform


def tokens_of(seed: int, *shape: int) -> jax.Array:
    ids = np.random.default_rng(seed).integers(0, CONFIG.vocab_size, shape)
    return jnp.asarray(ids, jnp.int32)


@pytest.mark.parametrize("capacity", [600, attention.BLOCK, attention.BLOCK + 1, 700])
def test_blocks_of_slots(seed: int, capacity: int) -> None:
    """Rows in different blocks, a capacity that is no multiple: the same logits as one by one."""
    params, length = params_of(seed), attention.BLOCK - 7
    tokens = tokens_of(seed, 2, capacity)
    _, _, cache = APPLY(params, tokens[:, :length], TARGET.init_cache(2, capacity, jnp.float32))
    cache = TARGET.rollback(cache, jnp.array([3, length], jnp.int32))
    size = min(20, capacity - length)
    new = jnp.stack([tokens[0, 3 : 3 + size], tokens[1, length : length + size]])
    logits, _, after = APPLY(params, new, cache)
    np.testing.assert_array_equal(after.length, cache.length + size)
    for row, start in enumerate((3, length)):
        whole = tokens[row : row + 1, : start + size]
        want, _, _ = APPLY(params, whole, TARGET.init_cache(1, whole.shape[1], jnp.float32))
        np.testing.assert_allclose(logits[row], want[0, start:], rtol=0, atol=2e-4)


def test_scratch_does_not_matter(seed: int) -> None:
    """Slots past a row's length may hold anything finite."""
    params, tokens = params_of(seed), tokens_of(seed, 2, 12)
    _, _, cache = APPLY(params, tokens[:, :8], TARGET.init_cache(2, 300, jnp.float32))
    cache = TARGET.rollback(cache, jnp.array([4, 8], jnp.int32))
    scratch = jnp.arange(300)[None, :] >= cache.length[:, None]

    def poison(buffer: jax.Array) -> jax.Array:
        return jnp.where(scratch[:, None, :, None], 1e30, buffer)

    keys, values = jax.tree.map(poison, (cache.keys, cache.values))
    clean, _, _ = APPLY(params, tokens[:, 8:], cache)
    poisoned, _, _ = APPLY(params, tokens[:, 8:], cache._replace(keys=keys, values=values))
    np.testing.assert_array_equal(clean, poisoned)


def test_an_id_outside_the_vocabulary_stays_finite(seed: int) -> None:
    """Junk beyond a draft's end must not turn the slots it is written to into NaN."""
    tokens = jnp.array([[1, 2, CONFIG.vocab_size, -1]], jnp.int32)
    logits, _, cache = APPLY(params_of(seed), tokens, TARGET.init_cache(1, 8, jnp.float32))
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((logits, cache)))


def test_the_end_of_the_buffer(seed: int) -> None:
    """Tokens past the last slot are dropped; what was there, and the logits before, stay."""
    params, tokens = params_of(seed), tokens_of(seed, 1, 9)
    _, _, cache = APPLY(params, tokens[:, :6], TARGET.init_cache(1, 8, jnp.float32))
    fits, _, _ = APPLY(params, tokens[:, 6:8], cache)
    logits, _, after = APPLY(params, tokens[:, 6:9], cache)
    np.testing.assert_allclose(logits[:, :2], fits, rtol=0, atol=1e-5)
    for old, new in zip(cache.keys + cache.values, after.keys + after.values, strict=True):
        np.testing.assert_array_equal(old[:, :, :6], new[:, :, :6])


def test_bfloat16_stays_close(seed: int) -> None:
    params, tokens = params_of(seed), tokens_of(seed, 2, 10)
    whole, _, _ = APPLY(params, tokens, TARGET.init_cache(2, 16, jnp.float32))
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    logits, features, cache = APPLY(
        half, tokens, TARGET.init_cache(2, 16, jnp.bfloat16), layers=(1,)
    )
    assert features is not None and features.dtype == jnp.bfloat16
    assert logits.dtype == jnp.float32 and cache.keys[0].dtype == jnp.bfloat16
    scale = float(jnp.abs(whole).max())
    np.testing.assert_allclose(logits, whole, rtol=0, atol=0.05 * scale)


@pytest.mark.parametrize("layers", [(3,), (-2,), (0, 7)])
def test_layers_that_do_not_exist(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"layers=.*allowed: 0\.\.2"):
        TARGET.apply(params_of(0), tokens_of(0, 1, 1), TARGET.init_cache(1, 4), layers=layers)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("lacks_avx512", [True, False])
@pytest.mark.parametrize("length", [1, 2, 5, 6])
def test_panels_are_the_same_weights(
    seed: int, tied: bool, lacks_avx512: bool, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CPU small models keep their matrices as panels too, read by passes of a few tokens."""
    monkeypatch.setattr(machine, "lacks_avx512", lambda: lacks_avx512)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    sizes = {"width": 64, "ffn_width": 192, "vocab_size": 128, "num_heads": 4, "num_kv_heads": 4}
    config = ModelConfig(**{**vars(CONFIG), **sizes, "head_dim": 16, "tied": tied})
    target = transformer_target(config)
    params = init_params(config, jax.random.key(seed))
    with_panels = jax.tree.map(lambda x: x, params)  # new dicts
    for name in ("block_0", "block_1"):
        for matrix in ("qkv", "out", "gate_up", "down"):
            with_panels[name][f"{matrix}_panels"] = linear.to_panels(params[name][matrix])
    head = params["embed"].T if tied else params["head"]
    with_panels["head_panels"] = linear.to_panels(head)
    tokens = tokens_of(seed, 1, length)
    cache = target.init_cache(1, 8, jnp.float32)
    plain, _, _ = target.apply(params, tokens, cache)
    panels, _, _ = target.apply(with_panels, tokens, cache)
    np.testing.assert_allclose(panels, plain, rtol=0, atol=1e-5)
    doubled = jax.tree.map(lambda x: x, with_panels)
    doubled["head_panels"] = 2 * doubled["head_panels"]
    logits, _, _ = target.apply(doubled, tokens, cache)
    read = (tied or length > 2) if lacks_avx512 else (length <= linear.PANEL_ROWS)
    assert np.allclose(logits, 2 * panels) == read


@pytest.mark.parametrize("capacity", [128, 1024])
@pytest.mark.parametrize("length", [1, 5])
def test_the_compiled_loop_copies_no_cache(capacity: int, length: int) -> None:
    def decode(params, cache, tokens, steps):  # type: ignore[no-untyped-def]
        def body(carry):  # type: ignore[no-untyped-def]
            step, cache, tokens = carry
            logits, _, cache = TARGET.apply(params, tokens, cache)
            tokens = jnp.argmax(logits, -1).astype(jnp.int32)
            return step + 1, TARGET.rollback(cache, cache.length - length + 1), tokens

        return jax.lax.while_loop(lambda c: c[0] < steps, body, (jnp.int32(0), cache, tokens))

    cache = TARGET.init_cache(1, capacity, jnp.float32)
    tokens = jnp.zeros([1, length], jnp.int32)
    jitted = jax.jit(decode, donate_argnums=1)
    text = jitted.lower(params_of(0), cache, tokens, jnp.int32(3)).compile().as_text()
    assert text is not None and "while" in text
    # With or without the batch axis of size 1, which XLA may drop.
    shape = rf"f32\[(1,)?{CONFIG.num_kv_heads},{capacity},{CONFIG.head_dim}\]"
    copies = [
        line for line in text.splitlines() if re.search(rf"= {shape}\S* copy(-start)?\(", line)
    ]
    assert not copies


def test_prefill_does_not_compute_logits() -> None:
    """Logits that nobody reads cost nothing: the product with the head is gone."""

    def prefill(params, tokens, cache):  # type: ignore[no-untyped-def]
        return TARGET.apply(params, tokens, cache)[2]

    arguments = params_of(0), tokens_of(0, 1, 16), TARGET.init_cache(1, 32, jnp.float32)
    text = jax.jit(prefill).lower(*arguments).compile().as_text()
    assert text is not None and f"f32[16,{CONFIG.vocab_size}]" not in text
    with_logits = jax.jit(TARGET.apply).lower(*arguments).compile().as_text()
    assert with_logits is not None and f"f32[16,{CONFIG.vocab_size}]" in with_logits
