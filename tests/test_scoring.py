"""Passes: how wide they are, and that nothing else depends on it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax import Sampling, testing
from tests import support

VOCAB, SLOTS = 16, 128
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)


def test_the_width_of_a_pass_is_the_smallest_that_holds_the_longest_draft() -> None:
    """Drafts of every length; a round without drafts costs a one-token pass."""
    prompt, lengths = [3, 1], [0, 1, 4, 2, 3, 0, 4]
    truth = support.plain_greedy(TABLE, prompt, 40)
    script, at = np.full((1, SLOTS), -1, np.int32), len(prompt)
    for n in lengths:  # right drafts of n tokens, then one that ends the draft
        script[0, at : at + n] = truth[at - 2 : at - 2 + n]
        at += n + 1
    for widths, want in (((1, 3, 5), [2, 2, 3]), ((1, 2, 3, 4, 5), [2, 1, 1, 1, 2]), ((5,), [7])):
        out = specjax.sample(
            TARGET,
            TABLE,
            [prompt],
            drafter=testing.oracle(4),
            drafter_params=jnp.asarray(script),
            max_new_tokens=sum(lengths) + len(lengths) + 4,
            widths=widths,
            max_length=SLOTS,
        )
        used = np.array(out.stats.widths)
        extra = int(out.stats.rounds[0]) - len(lengths)
        used[0] -= extra  # the script is over: rounds without drafts
        assert used.tolist() == want
        assert out.tokens[0].tolist() == truth[: out.tokens.shape[1]]


def test_a_pass_really_takes_that_many_tokens() -> None:
    seen: set[int] = set()

    def apply(params: Any, tokens: jax.Array, cache: Any, **options: Any) -> tuple:
        jax.debug.callback(partial(lambda width, _: seen.add(width), tokens.shape[1]), tokens)
        return TARGET.apply(params, tokens, cache, **options)

    counting = TARGET._replace(apply=apply)
    specjax.sample(
        counting,
        TABLE,
        [[1]],
        drafter=testing.oracle(4),
        drafter_params=jnp.full((1, SLOTS), -1, jnp.int32),
        max_new_tokens=4,
        widths=(1, 3, 5),
    )
    jax.effects_barrier()
    assert seen == {1}


WIDTHS = [(5,), (1, 2, 3, 4, 5)]


def test_the_output_does_not_depend_on_the_widths() -> None:
    """At a temperature, where a stray number would show in what is drawn."""
    markov = support.markov(4)
    rng = np.random.default_rng(0)
    params = support.MarkovParams(
        jnp.asarray(rng.normal(size=(VOCAB, VOCAB)), jnp.float32),
        jnp.asarray(rng.random(VOCAB) < 0.5),
    )
    outs = [
        specjax.sample(
            TARGET,
            TABLE,
            [[3], [6, 13]],
            drafter=markov,
            drafter_params=params,
            max_new_tokens=20,
            sampling=Sampling(temperature=1.5),
            key=jax.random.key(0),
            widths=widths,
        )
        for widths in WIDTHS
    ]
    assert int(np.min(np.asarray(outs[1].stats.widths))) >= 1, "all five must be used"
    for out in outs[1:]:
        np.testing.assert_array_equal(out.tokens, outs[0].tokens)
        np.testing.assert_array_equal(out.stats.accepted, outs[0].stats.accepted)
