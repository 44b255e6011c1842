"""What the repository ships: drafters that load, fit the default model and change nothing it says."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import specjax
from eval import models
from eval.chat import Chat
from specjax.drafters import corpus, corpus_params, corpus_table, draft_model
from specjax.heads import formats

HERE = pathlib.Path("checkpoints")


def head(folder: str, chat: Chat) -> dict[str, Any]:
    loaded = models.load_head(folder, chat.config)
    return {"drafter": loaded.drafter(3), "drafter_params": loaded.params(chat.params)}


def table(folder: str, chat: Chat) -> dict[str, Any]:
    return {"drafter": corpus(4), "drafter_params": corpus_params(models.load_corpus(folder, chat))}


def student(folder: str, chat: Chat) -> dict[str, Any]:
    model, params = models.load_draft(folder, chat)
    return {"drafter": draft_model(model, 3), "drafter_params": params}


class Shipped(NamedTuple):
    """The most megabytes, what makes a drafter of it, and the least tokens a pass."""

    megabytes: int
    drafting: Callable[[str, Chat], dict[str, Any]]
    tokens_per_pass: float


SHIPPED = {
    "smollm2-135m-corpus": Shipped(8, table, 1.1),
    "smollm2-135m-draft": Shipped(16, student, 1.2),
    "smollm2-135m-eagle3": Shipped(16, head, 1.4),
    "smollm2-135m-medusa": Shipped(12, head, 1.1),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_it_is_small_and_whole(name: str) -> None:
    files = sorted(path.name for path in (HERE / name).iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    size = sum(path.stat().st_size for path in (HERE / name).iterdir())
    assert size <= SHIPPED[name].megabytes * 1e6


@pytest.mark.parametrize("name", [name for name in SHIPPED if SHIPPED[name].drafting is head])
def test_a_head_is_of_the_default_model(name: str) -> None:
    config, weights, ids = formats.load(HERE / name)
    assert config.target_width == 576 and len(ids) == config.draft_vocab_size == 8192
    assert all(np.isfinite(x).all() for x in weights.values())


def test_the_table_is_of_the_target_s_words() -> None:
    held = corpus_table.load(HERE / "smollm2-135m-corpus", vocab_size=49152)
    assert held.orders == 5 and len(held.keys) > 100_000


@pytest.mark.parametrize("name", SHIPPED)
def test_its_card_is_whole(name: str) -> None:
    text = (HERE / name / "README.md").read_text()
    assert not re.findall("@[A-Z]+", text) and "Licence" in text


def test_everything_shipped_is_tested() -> None:
    assert sorted(path.name for path in HERE.iterdir()) == sorted(SHIPPED)


SLOW = "smollm2-135m-draft", "smollm2-135m-medusa"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.long) if n in SLOW else n for n in SHIPPED],
)
def test_it_speeds_the_real_model_up_and_changes_nothing(
    name: str, smollm2_folder: pathlib.Path
) -> None:
    from eval import chat as chats

    chat = chats.load(str(smollm2_folder))
    prompts = [chat.encode([text]) for text in ("What is the capital of France?", "Count to ten.")]
    same = {"max_new_tokens": 40, "eos_ids": chat.eos_ids}
    plain = specjax.sample(chat.target, chat.params, prompts, **same)
    drafting = SHIPPED[name].drafting(str(HERE / name), chat)
    out = specjax.sample(chat.target, chat.params, prompts, **drafting, **same)
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    least = SHIPPED[name].tokens_per_pass
    assert float(specjax.stats.tokens_per_pass(out.stats)) > least
