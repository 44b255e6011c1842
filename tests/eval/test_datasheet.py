"""The roofline against sums done by hand, published shapes against published sizes."""

import jax.numpy as jnp
import pytest

from eval import datasheet, shapes
from eval.datasheet import Device, Roofline
from specjax import device
from specjax.models import ModelConfig

# A layer: norms 16, q k v 128, out 64, gate up down 384. In all 2 * 592 + norm 8 + embedding 800.
TINY = ModelConfig(100, 8, 2, 2, 1, 4, 16, tied=True)
UNTIED = ModelConfig(100, 8, 2, 2, 1, 4, 16)
WEIGHTS = 1992
SLOW_MEMORY = Device("slow memory", 100, 1e12, None)  # bytes and operations a second
SLOW_PRODUCTS = Device("slow products", 1e12, 100, None)


def test_a_pass_that_waits_for_memory() -> None:
    """Two bytes a weight; of 11 slots keys and values, of 4 numbers, in 2 layers; 100 logits."""
    seconds = Roofline(SLOW_MEMORY, TINY, 2).pass_seconds(1, 10, 1)
    assert seconds == pytest.approx((2 * WEIGHTS + 2 * 2 * 4 * 11 * 2 + 2 * 4 * 100) / 100)


def test_rows_read_their_own_cache_and_tokens_of_a_row_share_it() -> None:
    line = Roofline(SLOW_MEMORY, TINY, 2)
    cache, logits = 2 * 2 * 4 * 13 * 2, 8 * 100
    weights = 2 * WEIGHTS
    assert line.pass_seconds(1, 10, 3) == pytest.approx((weights + cache + 3 * logits) / 100)
    assert line.pass_seconds(5, 10, 3) == pytest.approx((weights + 5 * cache + 15 * logits) / 100)


def test_a_pass_that_waits_for_products() -> None:
    """3 rows of 2 tokens: two operations a weight and token; 2 heads of 4 see 12 slots twice."""
    seconds = Roofline(SLOW_PRODUCTS, TINY, 2).pass_seconds(3, 10, 2)
    assert seconds == pytest.approx((2 * WEIGHTS * 6 + 2 * 2 * 2 * (2 * 4) * 12 * 6) / 100)


def test_an_embedding_that_is_no_head_is_not_read() -> None:
    assert UNTIED.num_parameters == WEIGHTS + 800
    for on in (SLOW_MEMORY, SLOW_PRODUCTS):
        tied, untied = (Roofline(on, c, 2).pass_seconds(2, 5, 2) for c in (TINY, UNTIED))
        assert tied == untied


def test_a_draft_step() -> None:
    """1000 weights and a layer's cache of 10 slots in 3 rows; two operations a weight and row."""
    step = Roofline(SLOW_MEMORY, TINY, 2).draft_seconds(3, 10, 1000, 1)
    assert step == pytest.approx((2 * 1000 + 2 * 4 * 10 * 3 * 2) / 100)
    step = Roofline(SLOW_PRODUCTS, TINY, 2).draft_seconds(3, 10, 1000, 1)
    assert step == pytest.approx(2 * 1000 * 3 / 100)
    assert Roofline(SLOW_MEMORY, TINY, 2).draft_seconds(3, 10, 0, 0) == 0


def test_efficiency_changes_seconds_and_no_ratio() -> None:
    whole, half = (
        Roofline(datasheet.device_of("h100", share), shapes.config_of("llama3-8b"), 2)
        for share in (1.0, 0.5)
    )
    for batch, tokens in ((1, 1), (64, 9)):
        ours, theirs = (line.pass_seconds(batch, 1024, tokens) for line in (half, whole))
        assert ours == pytest.approx(2 * theirs)


def test_llama_on_an_h100() -> None:
    """7.505e9 weights but for the embedding: 15.01 GB, 4.48 ms; 134 MB of cache; 1 MB of logits."""
    line = Roofline(datasheet.device_of("h100"), shapes.config_of("llama3-8b"), 2)
    assert 1e3 * line.pass_seconds(1, 1023, 1) == pytest.approx(
        (15.0098 + 0.13422 + 0.00103) / 3.35, abs=1e-3
    )
    one, four = (line.pass_seconds(1, 1023, tokens) for tokens in (1, 4))
    assert four / one == pytest.approx(1, abs=1e-3), "in one row wider passes come for nothing"
    at_peak = 2 * 7.5049e9 * 512 * 4 / 989e12
    four = line.pass_seconds(512, 1023, 4)
    assert at_peak < four < at_peak + 512 * 0.135 / 3350 * 1.01 + 0.001


def test_the_device_here_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "memory_bandwidth", lambda: 2e10)
    here = datasheet.measured(jnp.dtype(jnp.float32), 128)
    assert (here.bandwidth, here.efficiency) == (2e10, 1)
    assert 1e6 < here.flops < 1e14
    assert here.memory == device.memory_bytes()


# Counted in the published weights' files.
SIZES = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "llama3-1b": 1_235_814_400,
    "llama3-3b": 3_212_749_824,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
}


@pytest.mark.parametrize("name", SIZES)
def test_shapes_have_the_published_sizes(name: str) -> None:
    assert shapes.config_of(name).num_parameters == SIZES[name]


def test_every_shape_is_checked() -> None:
    assert set(SIZES) == set(shapes.SHAPES)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="no datasheet of 'h1000'; choose from h100, h200"):
        datasheet.device_of("h1000")
    with pytest.raises(ValueError, match="no shape 'llama3'; choose from smollm2-135m"):
        shapes.config_of("llama3")
