"""Checks by identity: outputs and counters of ``specjax.sample`` that must be exactly so."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from eval import toy
from specjax import Sampling, keys, testing, verify
from specjax.drafters import (
    corpus,
    corpus_params,
    first_of,
    medusa,
    ngram,
    past_outputs,
    suffix,
)
from tests import support
from tests.drafters import suffix_reference
from tests.planted.rig import Rig, must

SUFFIX = importlib.import_module("specjax.drafters.suffix")  # the module, not its factory

VOCAB, BUDGET, EOS = 7, 18, 6
TABLE = testing.scripted_table(10, VOCAB)
CLOSE = TABLE + testing.scripted_table(11, VOCAB, scale=0.5)
PROMPTS = [[1, 2, 1, 2, 1], [3], [5, 0, 4, 5, 0], [2, 2], [4, 1, 0]]
PAD = 5


def _drafters(rig: Rig) -> list[dict[str, Any]]:
    """Each with passes of several widths, so that a pass too narrow shows."""
    drafter = rig.draft_model(testing.scripted_target(VOCAB), 4)
    return [
        {"drafter": drafter, "drafter_params": CLOSE, "widths": (1, 2, 4, 5)},
        {"drafter": rig.drafter(ngram(3)), "widths": (1, 2, 4)},
        {"drafter": first_of(ngram(3), drafter), "drafter_params": (None, CLOSE)},
    ]


def greedy(rig: Rig) -> None:
    """Greedy output is plain greedy decoding's, made without a cache, to the EOS or the budget."""
    target = rig.scripted(VOCAB)
    for eos in ((), (EOS,)):
        want = [support.plain_greedy(TABLE, prompt, BUDGET, eos) for prompt in PROMPTS]
        for drafting in _drafters(rig):
            out = rig.sample(
                target, TABLE, PROMPTS, max_new_tokens=BUDGET, eos_ids=eos, pad_id=PAD, **drafting
            )
            for row, tokens in enumerate(want):
                got, length = out.tokens[row].tolist(), int(out.lengths[row])
                must(length == len(tokens), f"{length} tokens emitted instead of {len(tokens)}")
                must(got[:length] == tokens, f"row {row} is not plain greedy decoding's")
                must(set(got[length:]) <= {PAD}, "tokens after the end")


def rounds(rig: Rig) -> None:
    """Counters are those of rounds that make no mistake, row by row."""
    drafting, k = _drafters(rig)[0], 4
    out = rig.sample(rig.scripted(VOCAB), TABLE, PROMPTS, max_new_tokens=BUDGET, **drafting)
    for row, prompt in enumerate(PROMPTS):
        want = support.greedy_rounds(TABLE, CLOSE, prompt, k, BUDGET)
        got = out.stats.rounds[row], out.stats.drafted[row], out.stats.accepted[row].sum()
        sums = len(want), sum(r.drafted for r in want), sum(r.accepted for r in want)
        must(tuple(map(int, got)) == sums, f"row {row}: rounds, drafted, accepted {got} not {sums}")


def always_right(rig: Rig) -> None:
    """A draft model that is the target itself has every draft accepted, greedy and coupled."""
    model = testing.scripted_target(VOCAB)
    drafting = {"drafter": rig.draft_model(model, 3), "drafter_params": TABLE}
    sampled = {"sampling": Sampling(1.0), "key": jax.random.key(0), "verifier": verify.coupled}
    for settings in ({}, sampled):
        out = rig.sample(
            rig.scripted(VOCAB), TABLE, PROMPTS, max_new_tokens=BUDGET, **drafting, **settings
        )
        rate = specjax.stats.acceptance_rate(out.stats)
        must(rate == 1, f"the target drafting for itself has {rate:.1%} accepted")


def right_in_turn(rig: Rig) -> None:
    """Where two drafters that are always right take turns, every draft is accepted."""
    model = rig.draft_model(testing.scripted_target(VOCAB), 2)
    texts = np.full((len(PROMPTS), 64), -1, np.int32)
    for row, prompt in enumerate(PROMPTS):
        text = prompt + support.plain_greedy(TABLE, prompt, BUDGET)
        texts[row, : len(text)] = np.where(np.arange(len(text)) % 7 < 4, text, -1)
    drafting = {
        "drafter": first_of(testing.oracle(4), model),
        "drafter_params": (jnp.asarray(texts), TABLE),
    }
    out = rig.sample(rig.scripted(VOCAB), TABLE, PROMPTS, max_new_tokens=BUDGET, **drafting)
    rate = specjax.stats.acceptance_rate(out.stats)
    must(rate == 1, f"the text itself and the target, drafting in turn, have {rate:.1%} accepted")
    # A model that is often wrong; what it fed while another row asked it must not be believed.
    same = {"drafter": drafting["drafter"], "max_new_tokens": BUDGET, "max_length": 64}
    both = jnp.asarray(texts), CLOSE
    whole = rig.sample(rig.scripted(VOCAB), TABLE, PROMPTS, drafter_params=both, **same)
    for row, prompt in enumerate(PROMPTS):
        own = jnp.asarray(texts[row : row + 1]), CLOSE
        alone = rig.sample(rig.scripted(VOCAB), TABLE, [prompt], drafter_params=own, **same)
        equal = np.array_equal(alone.stats.accepted[0], whole.stats.accepted[row])
        must(equal, f"row {row} has other drafts accepted beside the others than alone")


RING = (np.arange(VOCAB) + 2) % VOCAB


def _around(token: int, count: int) -> list[int]:
    return [(token + 2 * n) % VOCAB for n in range(count)]


def heads_in_place(rig: Rig) -> None:
    """Medusa heads that know the text are right at each node, alone and where another drafts too.

    The prompts are what the target would say: heads don't know the pending token. The third head is
    always wrong, so that rounds end before the draft does.
    """
    config, params = support.ring_heads(RING, (True, True, False))
    prompts = [_around(row, 1 + row) for row in range(5)]
    texts = np.array([_around(row, 64) for row in range(5)], np.int32)
    texts = jnp.asarray(np.where(np.arange(64) % 9 < 2, texts, -1))
    heads = rig.drafter(medusa(config))
    for drafter, given in (
        (heads, params),
        (first_of(testing.oracle(4), heads), (texts, params)),
    ):
        out = rig.sample(
            rig.target(support.ring(VOCAB, rig.tag)), jnp.asarray(RING, jnp.int32), prompts,
            max_new_tokens=BUDGET, drafter=drafter, drafter_params=given,
        )  # fmt: skip
        judged, accepted = out.stats.judged.sum(0).tolist(), out.stats.accepted.sum(0).tolist()
        must(min(judged[:3]) > 10, "little was judged: little was tested")
        must(accepted[:2] == judged[:2], f"{drafter.name}: {accepted} accepted of {judged} judged")
        must(accepted[2] == 0, "a head that is always wrong was right")


def known_text(rig: Rig) -> None:
    """A corpus that holds what the target says drafts nothing else."""
    texts = [prompt + support.plain_greedy(TABLE, prompt, BUDGET + 4) for prompt in PROMPTS]
    whole = support.counts_of(texts, 4)
    sure = {context: follows for context, follows in whole.items() if len(follows) == 1}
    params = corpus_params(support.table_of(sure, [0.0] * 4))
    out = rig.sample(
        rig.scripted(VOCAB), TABLE, PROMPTS, max_new_tokens=BUDGET,
        drafter=rig.drafter(corpus(4)), drafter_params=params,
    )  # fmt: skip
    drafted, rate = int(out.stats.drafted.sum()), specjax.stats.acceptance_rate(out.stats)
    must(drafted > 3 * len(PROMPTS), f"only {drafted} tokens were drafted: little was tested")
    must(rate == 1, f"a corpus of the very text has {rate:.1%} accepted")


# The first ones fall out; the rest is often right, and often frequent where it isn't.
TRUTH = [support.plain_greedy(TABLE, prompt, BUDGET) for prompt in PROMPTS]
CAPACITY = 150
OUTPUTS = [
    *np.random.default_rng(1).integers(0, VOCAB, (2, CAPACITY + 20)).tolist(),
    *([(token + (n > 5)) % VOCAB for n, token in enumerate(text)] for text in TRUTH * 2),
    *([3, 0, 0, 0, n] for n in range(4)),
    TRUTH[1][:3],
    *TRUTH[:3],
]  # fmt: skip
VOTING: list[dict[str, Any]] = [
    dict(k=4, n_max=3, n_min=1, growth=None, min_prob=0.34),
    dict(k=5, n_max=8, n_min=2, growth=2, min_prob=0.1),
    dict(k=6, n_max=1, n_min=1, growth=None, min_prob=0.0),
]


def votes(rig: Rig) -> None:
    """Suffix decoding's counters are those of rounds with a few lines of Python's drafts."""
    past = past_outputs(CAPACITY)
    for output in OUTPUTS:
        past = SUFFIX.remember(past, output)
    held, target = suffix_reference.held(OUTPUTS, CAPACITY), rig.scripted(VOCAB)
    for how in VOTING:
        drafting = {"drafter": rig.drafter(suffix(**how)), "drafter_params": past}
        out = rig.sample(target, TABLE, PROMPTS, max_new_tokens=BUDGET, **drafting)
        _must_count(out, [_counted(held, *row, how) for row in zip(PROMPTS, TRUTH, strict=True)])


def goes_round(rig: Rig) -> None:
    """The same of a target that says three tokens in turn: drafts go on past the text's end."""
    prompts = [[0], [1, 2, 0, 1], [6, 6], [4, 5, 3, 4, 5]]
    follows, how = np.array([1, 2, 0, 4, 5, 3, 6]), VOTING[0]
    truth = [[prompt[-1]] for prompt in prompts]
    for text in truth:
        for _ in range(BUDGET):
            text.append(int(follows[text[-1]]))
        del text[0]
    out = rig.sample(
        rig.target(support.ring(VOCAB, rig.tag)), jnp.asarray(follows, jnp.int32), prompts,
        max_new_tokens=BUDGET, drafter=rig.drafter(suffix(**how)),
        drafter_params=past_outputs(CAPACITY),
    )  # fmt: skip
    _must_count(out, [_counted([], *row, how) for row in zip(prompts, truth, strict=True)])


def learned(rig: Rig) -> None:
    """Counters of answers that follow each other, each remembered when the next one begins."""
    target, how, capacity = rig.scripted(VOCAB), VOTING[0], 60
    prompts, outputs = PROMPTS * 2, []
    drafting = {"drafter": rig.drafter(suffix(**how)), "drafter_params": past_outputs(capacity)}
    finished = specjax.generate_many(
        target, TABLE, prompts, batch=1, max_new_tokens=BUDGET, max_length=64,
        learn=lambda *arguments: SUFFIX.remember(*arguments), **drafting,
    )  # fmt: skip
    for one in finished:
        row = one.number % len(PROMPTS)
        held = suffix_reference.held(outputs, capacity)
        want = _counted(held, PROMPTS[row], TRUTH[row], how)
        got = one.rounds, one.drafted, one.accepted
        must(got == want, f"answer {one.number}: rounds, drafted, accepted {got} not {want}")
        must(one.tokens == TRUTH[row], f"answer {one.number} is not plain greedy decoding's")
        outputs.append(TRUTH[row])


def _must_count(out: specjax.SampleOutput, want: list[tuple[int, int, int]]) -> None:
    """Rounds, drafted and accepted tokens, row by row."""
    counts = out.stats.rounds, out.stats.drafted, out.stats.accepted.sum(1)
    got = list(zip(*(count.tolist() for count in counts), strict=True))
    must(got == want, f"rounds, drafted, accepted {got} not {want}")


def _counted(
    held: list[int], prompt: list[int], truth: list[int], how: dict[str, Any]
) -> tuple[int, int, int]:
    """Rounds, drafted and accepted tokens of one prompt."""
    rounds = drafted = kept = at = 0
    while at < len(truth):
        limit = min(how["k"], len(truth) - at - 1)
        draft = suffix_reference.draft(held, prompt + truth[:at], **how, limit=limit)
        right = [a == b for a, b in zip(draft, truth[at:], strict=False)]
        accepted = [*right, False].index(False)
        rounds, drafted, kept = rounds + 1, drafted + len(draft), kept + accepted
        at += accepted + 1
    return rounds, drafted, kept


SETTINGS = Sampling(temperature=[0.7, 1.3, 0.0, 1.0, 0.9], top_k=5)


def coupled(rig: Rig) -> None:
    """Coupled and match give plain sampling's tokens, which a few lines of numpy predict."""
    key, target = jax.random.key(3), rig.scripted(VOCAB)
    same = {"max_new_tokens": BUDGET, "key": key, "sampling": SETTINGS}
    want = np.asarray(_plain_sampling(key))
    for rule in (verify.coupled, verify.match):
        for drafting in ({}, *_drafters(rig)):
            out = rig.sample(target, TABLE, PROMPTS, verifier=rule, **same, **drafting)
            name = drafting["drafter"].name if drafting else "no drafter"
            must(
                np.array_equal(out.tokens, want),
                f"{rule.name}, {name}: not plain sampling's tokens",
            )


def _plain_sampling(key: jax.Array) -> list[list[int]]:
    """argmax of log p plus the noise of row and position, which is made here by hand."""
    out = []
    for row, prompt in enumerate(PROMPTS):
        row_key, tokens = jax.random.fold_in(key, row), list(prompt)
        for position in range(len(prompt), len(prompt) + BUDGET):
            own = row_key
            for number in (position, 0, keys.TARGET):
                own = jax.random.fold_in(own, number)
            noise = np.asarray(jax.random.gumbel(own, [VOCAB], jnp.float32, mode="high"))
            temperature = float(SETTINGS.temperature[row])  # type: ignore[index]
            probs = support.warp(support.logits_after(TABLE, tokens), temperature, top_k=5)
            with np.errstate(divide="ignore"):
                tokens.append(int(np.argmax(np.log(probs) + noise)))
        out.append(tokens[len(prompt) :])
    return out


def neighbours(rig: Rig) -> None:
    """A row's sampled output does not depend on the rows beside it."""
    row_keys = jax.random.split(jax.random.key(4), len(PROMPTS))
    target, drafting = rig.scripted(VOCAB), _drafters(rig)[0]
    same = {"max_new_tokens": BUDGET, "sampling": Sampling(1.0), "verifier": verify.token}
    whole = rig.sample(target, TABLE, PROMPTS, key=row_keys, **same, **drafting)
    turned = rig.sample(target, TABLE, PROMPTS[::-1], key=row_keys[::-1], **same, **drafting)
    must(np.array_equal(whole.tokens, turned.tokens[::-1]), "a row depends on its neighbours")


def zero_uniform(rig: Rig) -> None:
    """Uniforms can be 0: even then a token of probability 0 is neither accepted nor drawn."""
    p, q = np.array([0.0, 0.4, 0.6]), np.array([0.5, 0.25, 0.25])
    drafting = {
        "drafter": rig.draft_model(toy.bigram(3), 3),
        "drafter_params": toy.log_table(np.tile(q, (3, 1))),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            keys, "uniforms", lambda noise, offset, stream, n: jnp.zeros((len(noise.keys), n))
        )
        out = rig.sample(
            rig.bigram(3),
            toy.log_table(np.tile(p, (3, 1))),
            [[1], [2]],
            max_new_tokens=8,
            sampling=Sampling(1.0),
            key=jax.random.key(0),
            verifier=verify.token,
            **drafting,
        )
    must(not np.any(np.asarray(out.tokens) == 0), "a token of probability 0 at a uniform of 0")


def far_tail(rig: Rig) -> None:
    """Noise of 18.4, found by a search: jax's default mode ends at 16.6 and can't draw the id.

    The tail holds 50,000 ids of 1.7e-8 each. tests/test_keys.py counts its hits, in minutes.
    """
    seed, vocab, id_, logit = 1051, 50_000, 883, 17.9
    table = jnp.zeros([1, vocab], jnp.float32).at[0, 0].set(logit)
    out = rig.sample(
        rig.scripted(vocab),
        table,
        [[1]],
        max_new_tokens=1,
        sampling=Sampling(1.0),
        key=jax.random.key(seed),
        verifier=verify.match,
    )
    must(int(out.tokens[0, 0]) == id_, f"id {int(out.tokens[0, 0])} from the tail instead of {id_}")


CHECKS = (
    greedy, rounds, always_right, right_in_turn, heads_in_place, known_text, votes, goes_round,
    learned, coupled, neighbours, zero_uniform, far_tail,
)  # fmt: skip
