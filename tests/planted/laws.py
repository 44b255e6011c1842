"""Checks in law: the joint of several rounds' tokens, sampled through ``specjax.sample``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval import toy
from specjax import Sampling, testing, verify
from specjax.adaptive import AdaptiveParams, adaptive
from specjax.by_cost import by_cost
from specjax.drafters import (
    MedusaParams,
    corpus,
    corpus_params,
    draft_model,
    first_of,
    medusa,
    ngram,
    suffix,
)
from specjax.heads import MedusaConfig
from specjax.policies import Policy
from specjax.prospects import Costs
from tests import support
from tests.planted.rig import Rig, must_follow

# The instance on which wrong variants show most. Of the planted faults, shared noise with the test
# of p / q shows least on it: its p-value is 7e-27 at 15,000 samples.
P, Q = np.array([0.31, 0.31, 0.38]), np.array([0.02, 0.16, 0.82])
VOCAB, K, COUNT = 3, 3, 6
SAMPLES = 15_000
LOSSLESS = (verify.token, verify.block, verify.match, verify.coupled)


def check(
    rig: Rig,
    what: str,
    rule: verify.Verifier,
    drafting: dict[str, Any],
    samples: int,
    *,
    table: Any = None,
    prompt: tuple[int, ...] = (0,),
    eos: int | None = None,
    seed: int = 0,
    **settings: float,
) -> None:
    """Chi-square of the joint of COUNT tokens after a prompt; an EOS is absorbing.

    Args:
      rig: what is used.
      what: for messages.
      rule: the verifier.
      drafting: drafter and its parameters.
      samples: rows of the batch.
      table: of a scripted target; None: the target says P after every token.
      prompt: every row's.
      eos: ends a row.
      seed: of the noise.
      **settings: of the sampling; temperature 1 by default.
    """
    iid = table is None
    target = rig.bigram(VOCAB) if iid else rig.scripted(VOCAB)
    params = toy.log_table(np.tile(P, (VOCAB, 1))) if iid else table
    settings = {"temperature": 1.0} | settings
    out = rig.sample(
        target,
        params,
        np.tile(prompt, (samples, 1)),
        max_new_tokens=COUNT,
        max_length=len(prompt) + COUNT + K,
        sampling=Sampling(**settings),
        verifier=rule,
        eos_ids=() if eos is None else (eos,),
        pad_id=eos or 0,
        key=jax.random.key(seed),
        **drafting,
    )
    tokens = np.asarray(out.tokens)
    if iid:
        law = toy.joint(np.tile(P, (VOCAB, 1)), COUNT)
    else:
        law = support.joint_law(table, prompt, COUNT, eos=eos, **settings)
    impossible = np.any((tokens < 0) | (tokens >= VOCAB))
    p = 0.0 if impossible else support.p_value(tokens, law, VOCAB)
    must_follow(p, f"{what}, {rule.name}")


def iid(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """The strong instance: P and Q after every token, a draft model of 3 tokens."""
    model = toy.bigram(VOCAB)
    drafting = {
        "drafter": rig.draft_model(model, K),
        "drafter_params": toy.log_table(np.tile(Q, (VOCAB, 1))),
    }
    check(rig, "independent tokens", rule, drafting, samples)


TABLE = testing.scripted_table(1, VOCAB, scale=1.0)
CLOSE = TABLE + testing.scripted_table(2, VOCAB, scale=0.7)


def context(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Laws that depend on the whole prefix; warped, with an EOS, several widths and roll-backs."""
    model = testing.scripted_target(VOCAB)
    drafting = {"drafter": rig.draft_model(model, K), "drafter_params": CLOSE}
    warped = {"temperature": 0.7, "top_p": 0.9}
    check(
        rig,
        "whole prefix, EOS",
        rule,
        drafting,
        samples,
        table=TABLE,
        prompt=(1, 2),
        eos=2,
        **warped,
    )


MARKOV = testing.scripted_table(3, VOCAB, rows=VOCAB, scale=1.0)


def partial(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Drafts that end after a token 1, by what was drafted."""
    params = support.MarkovParams(MARKOV, jnp.arange(VOCAB) == 1)
    drafting = {"drafter": rig.drafter(support.markov(K)), "drafter_params": params}
    check(rig, "drafts of any length", rule, drafting, samples, table=TABLE)


def mixed(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Drafts whose first and last token are given, and the one between is drawn."""
    params = support.MarkovParams(MARKOV, jnp.zeros(VOCAB, bool))
    drafter = rig.drafter(support.markov(K, (True, False, True)))
    drafting = {"drafter": drafter, "drafter_params": params}
    check(rig, "given and drawn tokens", rule, drafting, samples, table=TABLE)


def sticky(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Drafts that depend on what was drafted a round before: used noise would show."""
    logits = testing.scripted_table(4, VOCAB, rows=VOCAB + 1, scale=1.5)
    drafting = {"drafter": rig.drafter(support.sticky(K)), "drafter_params": logits}
    check(rig, "drafts that remember", rule, drafting, samples)


PART = (2, 0)  # ids of a draft vocabulary, in an order of its own


def part(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Drafts out of a part of the ids, as an EAGLE head with a draft vocabulary makes them."""
    logits = testing.scripted_table(5, len(PART), rows=VOCAB, scale=1.0)
    params = support.MarkovParams(logits, jnp.zeros(VOCAB, bool))
    drafting = {"drafter": rig.drafter(support.markov(K, ids=PART)), "drafter_params": params}
    check(rig, "a draft vocabulary", rule, drafting, samples, table=TABLE)


def scripted_heads(config: MedusaConfig, seed: int) -> MedusaParams:
    """Medusa heads that read a scripted target's only feature, a hash of the whole prefix.

    Logits are the hash, as a number below 1, times a vector of each head's own.
    """
    heads, size = {}, (config.num_heads, 1, config.draft_vocab_size)
    vectors = np.random.default_rng(seed).normal(0, 4, size) / 2**32
    for i in range(config.num_heads):
        zeros = {f"block_{i}_0": jnp.zeros([1, 1]), f"block_{i}_0_bias": jnp.zeros([1])}
        heads |= zeros | {f"projection_{i}": jnp.asarray(vectors[i], jnp.float32)}
    return MedusaParams(heads, jnp.arange(config.draft_vocab_size, dtype=jnp.int32))


def heads(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Medusa heads: each node drawn from its own head's law, whatever the others drew."""
    config = MedusaConfig(target_width=1, num_heads=K, num_blocks=1, draft_vocab_size=VOCAB)
    params = scripted_heads(config, seed=6)
    drafting = {"drafter": rig.drafter(medusa(config)), "drafter_params": params}
    check(rig, "Medusa heads", rule, drafting, samples, table=TABLE, prompt=(1, 2))


# What followed one and two tokens in some text, in other shares than the target's.
COUNTED = {(0,): {0: 5, 1: 2, 2: 1}, (1,): {2: 3, 0: 3}, (2,): {1: 4}, (0, 1): {1: 7, 2: 2}}


def counted(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Drafts drawn from a corpus' counts, of any length, by the counts of what was drawn before."""
    params = corpus_params(support.table_of(COUNTED, [1.0, 0.5]))
    drafter = corpus(K, sampled=True, min_prob=0.45)
    drafting = {"drafter": rig.drafter(drafter), "drafter_params": params}
    check(rig, "a corpus' counts", rule, drafting, samples, table=TABLE)


def lookup(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Prompt lookup: every token given, none drawn."""
    prompt = (0, 1, 2, 0, 1)
    drafting = {"drafter": rig.drafter(ngram(K))}
    check(rig, "prompt lookup", rule, drafting, samples, table=TABLE, prompt=prompt, eos=2)


def remembered(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Suffix decoding: given tokens again, voted by past outputs or copied from the row itself."""
    outputs = np.random.default_rng(7).integers(0, VOCAB, (12, 9)).tolist()
    drafter = rig.drafter(suffix(K, n_max=4, growth=None, min_prob=0.4))
    drafting = {"drafter": drafter, "drafter_params": support.past_of(outputs, 90)}
    check(rig, "suffix decoding", rule, drafting, samples, table=TABLE, prompt=(1, 2))


def in_turn(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Prompt lookup, and where it is silent a draft model: given and drawn drafts in one batch."""
    prompt = (0, 1, 2, 0, 1)
    model = rig.draft_model(testing.scripted_target(VOCAB), K)
    drafting = {
        "drafter": first_of(rig.drafter(ngram(2, n_min=2)), model),
        "drafter_params": (None, CLOSE),
    }
    check(rig, "drafters in turn", rule, drafting, samples, table=TABLE, prompt=prompt)


def unsure(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Drawn drafts that end where they are improbable; a row without any asks a draft model."""
    params = corpus_params(support.table_of(COUNTED, [1.0, 0.5]))
    model = draft_model(testing.scripted_target(VOCAB), K, min_prob=0.3)
    drafting = {
        "drafter": first_of(rig.drafter(corpus(2, sampled=True, min_first=0.7)), model),
        "drafter_params": (params, CLOSE),
    }
    check(rig, "unsure drafters", rule, drafting, samples, table=TABLE)


def each_alone(policy: Policy) -> Policy:
    """Every row decides by its own past: so many rows together would all but fix the length."""

    def choose(costs: Any, state: Any, context: Any) -> Any:
        def one(row: Any, length: Any, done: Any) -> Any:
            own = context._replace(length=length[None], done=done[None])
            return policy.choose(costs, jax.tree.map(lambda x: x[None], row), own)

        return jax.vmap(one)(state, context.length, context.done)[:, 0]

    return policy._replace(choose=choose)


ALONE = each_alone(by_cost(memory=3, weight=1.0, probe_every=1))
FROM_EACH = Costs(
    contexts=jnp.ones([1]),
    target=1 + 0.3 * jnp.arange(K + 1, dtype=jnp.float32)[None],
    draft=0.05 * jnp.arange(K + 1, dtype=jnp.float32)[None],
    accepted=jnp.full([1, K], 0.6),
    drafted=jnp.ones([1, K]),
    seen=jnp.zeros([2, 1, K]),
    silent=jnp.zeros([1]),
)


def controlled(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Draft lengths, 0 included, that depend on what the row's past rounds accepted."""
    model = draft_model(testing.scripted_target(VOCAB), K)
    drafting = {
        "drafter": rig.drafter(adaptive(model, policy=ALONE)),
        "drafter_params": AdaptiveParams((CLOSE,), FROM_EACH),
    }
    check(rig, "lengths by a controller", rule, drafting, samples, table=TABLE, prompt=(1, 2))


def limited(rig: Rig, rule: verify.Verifier, samples: int = SAMPLES) -> None:
    """Drafters in turn, each with a limit of its own: given where a look-up speaks, else drawn."""
    model = draft_model(testing.scripted_target(VOCAB), K)
    two = FROM_EACH._replace(
        draft=jnp.tile(FROM_EACH.draft, (2, 1)),
        accepted=jnp.full([2, K], 0.6),
        drafted=jnp.ones([2, K]),
        seen=jnp.zeros([2, 2, K]),
        silent=jnp.zeros([2]),
    )
    drafting = {
        "drafter": rig.drafter(adaptive(ngram(K), model, policy=ALONE)),
        "drafter_params": AdaptiveParams((None, CLOSE), two),
    }
    prompt = (0, 1, 2, 0, 1)
    check(rig, "limits by a controller", rule, drafting, samples, table=TABLE, prompt=prompt)


INSTANCES = (
    iid, context, partial, mixed, part, sticky, heads, counted, lookup, remembered, in_turn, unsure,
    controlled, limited,
)  # fmt: skip
