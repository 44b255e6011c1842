"""What a config of generate_data may hold."""

import dataclasses
import pathlib
import runpy

import pytest

from eval import results
from scripts.data_settings import Settings
from specjax import Sampling

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "generate_data_smollm2.py"
DEFAULT = results.read(Settings, runpy.run_path(str(CONFIG))["get_config"]())


def changed(**changes) -> Settings:
    return dataclasses.replace(DEFAULT, **changes)


def test_the_config_is_fine():
    DEFAULT.check()
    assert not DEFAULT.smoke and DEFAULT.sampling(0.8) == Sampling(0.8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "config.count=0; the built-in prompts"),
        ({"prompts": "a.jsonl", "responses": "b.jsonl"}, "both given"),
        ({"temperatures": ()}, "config.temperatures is empty"),
        ({"temperatures": (-1.0,)}, "config.temperatures holds -1.0"),
        ({"max_length": 288}, "config.max_length=288; it must be an integer of at least 289"),
        ({"batch": 0}, "config.batch=0"),
        (
            {"dtype": "float99"},
            "config.dtype='float99'; choose from float32, bfloat16, float16, or",
        ),
        ({"top_k": 0}, "config.top_k=0; it must be at least 1"),
        ({"top_p": 1.5}, r"config.top_p=1.5; it must be in \(0, 1\]"),
        ({"min_p": -0.1}, r"config.min_p=-0.1; it must be in \[0, 1\]"),
        (
            {"temperatures": (0.0,), "min_p": 0.1},
            "config.min_p without a temperature above 0: .*drop the filter",
        ),
        (
            {"temperatures": (0.8, 1e-60), "top_k": 9},
            "config.top_k without a temperature above 0",  # 0 in float32
        ),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        changed(**changes).check()


def test_filters_are_of_the_sampled_answers():
    mixed = changed(temperatures=(0.0, 0.8, 1.0), top_k=9, top_p=0.9, min_p=0.1)
    mixed.check()
    assert [mixed.sampling(mixed.temperature(number)) for number in range(4)] == [
        Sampling(), Sampling(0.8, 9, 0.9, 0.1), Sampling(1.0, 9, 0.9, 0.1), Sampling()
    ]  # fmt: skip


def test_a_smoke_run_is_short():
    short = changed(smoke=True).shortened()
    assert (short.count, short.max_new_tokens, short.batch) == (8, 24, 4)
    assert changed(prompts="x.jsonl", count=0).shortened().count == 8
    less = changed(count=3, max_new_tokens=5, batch=1)
    assert less.shortened() == less
    with pytest.raises(ValueError, match=r"config.count=-1; it must be"):
        changed(count=-1).shortened().check()
