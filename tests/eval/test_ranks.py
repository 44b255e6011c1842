"""Ranks of heads' guesses: the numbers, held against numpy and against decoding itself."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from eval import chat as chats
from eval import ranks
from eval.chat import Chat
from eval.models import Head, load_head
from specjax.heads import MedusaConfig, MedusaHeads, formats
from tests.eval import tiny
from train import features

K, NEW = 2, 40


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return chats.load(str(tiny.make_folder(tmp_path_factory.mktemp("model"))))


def read(chat: Chat, tokens: list[int]) -> np.ndarray:
    """The target's stream after its last norm, ``[T, W]``, by a pass of its own."""
    row = jnp.asarray([tokens], jnp.int32)
    cache = chat.target.init_cache(*row.shape, jnp.float32)
    _, final, _ = chat.target.apply(chat.params, row, cache, layers=(features.FINAL,))
    return np.asarray(final[0])


def learned(chat: Chat, tokens: list[int], start: int, folder: pathlib.Path) -> Head:
    """Medusa heads that know every other token of an answer by heart, and one not at all."""
    streams, said = read(chat, tokens), np.unique(tokens[start:])
    ids = np.union1d(said[1:], np.arange(8)).astype(np.int32)
    config = MedusaConfig(streams.shape[1], K, 1, len(ids))
    weights = MedusaHeads(config).init(jax.random.key(0), jnp.asarray(streams[:1]))["params"]
    weights = {name: np.zeros(value.shape, np.float32) for name, value in weights.items()}
    for number in range(K):
        slots = np.arange(start - 2, len(tokens) - 2 - number)[::2]
        wanted = np.equal.outer(np.array(tokens)[slots + 2 + number], ids).astype(np.float32)
        x = streams[slots]
        inverse = np.linalg.inv(x.T @ x + 0.1 * np.eye(x.shape[1]))
        weights[f"projection_{number}"] = (inverse @ x.T @ wanted).astype(np.float32)
    formats.save(folder, config, weights, ids, chat.config.vocab_size)
    return load_head(str(folder), chat.config)


def test_counts_are_those_of_each_slots_logits(chat: Chat, tmp_path: pathlib.Path) -> None:
    """By a loop over slots: the heads at s are asked for tokens s + 2 and s + 3."""
    start = 5
    tokens = np.random.default_rng(0).integers(97, 109, start + NEW).tolist()
    head, streams = learned(chat, tokens, start, tmp_path), read(chat, tokens)
    hits, asked = np.zeros([2, K, ranks.RANKS], int), np.zeros([2, K], int)
    for slot in range(len(tokens)):
        alive = True
        for number in range(K):
            place = slot + 2 + number
            if not start <= place < len(tokens):
                alive = False
                continue
            logits = streams[slot] @ np.asarray(head.weights[f"projection_{number}"])
            best = head.ids[np.argsort(-logits)[: ranks.RANKS]]
            within = np.cumsum(best == tokens[place]) > 0
            asked[1, number] += 1
            hits[1, number] += within
            if alive:
                asked[0, number] += 1
                hits[0, number] += within
            alive = alive and bool(within[0])
    got_hits, got_asked = ranks.count(chat, head, K, tokens, start)
    np.testing.assert_array_equal(got_asked, asked)
    np.testing.assert_array_equal(got_hits, hits)
    assert asked[1].tolist() == [NEW, NEW] and 0 < asked[0, 1] < NEW
    assert np.all(hits[1, :, 0] > 0) and np.all(hits[1, :, 0] < hits[1, :, -1])
    assert np.all(hits[1, :, -1] < NEW) and 0 < hits[0, 1, 0] < asked[0, 1]


def test_the_best_guesses_are_those_that_decoding_accepts(
    chat: Chat, tmp_path: pathlib.Path
) -> None:
    """A round from each place of the answer: what it judges and accepts, position by position."""
    prompt = chat.encode(["abcabc"])
    out = specjax.sample(chat.target, chat.params, [prompt], max_new_tokens=NEW)
    tokens, start = [*prompt, *out.tokens[0].tolist()], len(prompt)
    head = learned(chat, tokens, start, tmp_path)
    prompts = [tokens[:length] for length in range(start, len(tokens) - K + 1)]
    run = specjax.start(
        chat.target, chat.params, prompts, max_new_tokens=K + 1, drafter=head.drafter(K),
        drafter_params=head.params(chat.params),
    )  # fmt: skip
    stats = jax.device_get(specjax.decode(run, rounds=1).state.stats)
    # Before the last token there is no room for a whole draft: no round was begun there.
    hits, asked = ranks.count(chat, head, K, tokens, start)
    fewer = ranks.count(chat, head, 1, tokens, len(tokens) - K + 1)
    accepted, judged = stats.accepted.sum(0), stats.judged.sum(0)
    np.testing.assert_array_equal(hits[0, :, 0], accepted + np.array([fewer[0][0, 0, 0], 0]))
    np.testing.assert_array_equal(asked[0], judged + np.array([fewer[1][0, 0], 0]))
    assert 0 < accepted[0] < judged[0] and 0 < judged[1] < judged[0]
