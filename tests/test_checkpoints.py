"""What the repository ships: heads that load, fit the default model and change nothing it says."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import specjax
from eval import modes
from specjax.heads import formats

HERE = pathlib.Path("checkpoints")
MEGABYTES = {"smollm2-135m-eagle3": 16}  # at most


@pytest.mark.parametrize("name", MEGABYTES)
def test_it_is_small_and_whole(name: str) -> None:
    folder = HERE / name
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md", "config.json", "model.safetensors",
    ]  # fmt: skip
    assert sum(p.stat().st_size for p in folder.iterdir()) <= MEGABYTES[name] * 1e6
    config, head, ids = formats.load(folder)
    assert config.target_width == 576 and len(ids) == config.draft_vocab_size == 8192
    assert all(np.isfinite(x).all() for x in head.values())


def test_everything_shipped_is_tested() -> None:
    assert sorted(p.name for p in HERE.iterdir()) == sorted(MEGABYTES)


@pytest.mark.parametrize("name", MEGABYTES)
def test_it_speeds_the_real_model_up_and_changes_nothing(
    name: str, smollm2_folder: pathlib.Path
) -> None:
    from eval import chat as chats

    chat = chats.load(str(smollm2_folder))
    drafting = modes.load_head(str(HERE / name), chat.config).drafting(3, chat.params)
    prompts = [chat.encode([text]) for text in ("What is the capital of France?", "Count to ten.")]
    same = {"max_new_tokens": 40, "eos_ids": chat.eos_ids}
    plain = specjax.sample(chat.target, chat.params, prompts, **same)
    out = specjax.sample(
        chat.target, chat.params, prompts, drafter=drafting.drafter, drafter_params=drafting.params,
        **same,
    )  # fmt: skip
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    assert float(specjax.stats.tokens_per_pass(out.stats)) > 1.4
