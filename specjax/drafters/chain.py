"""The loop of drafters that guess one token after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.draft import Draft


class Guess(NamedTuple):
    """What a drafter thinks of one token before it is drawn.

    Attributes:
      logits: ``[B, Vd]``.
      ids: int32 ``[Vd]`` or ``[B, Vd]``, the target's ids of the logits; None: they are by them.
      prob: float32 ``[B]``, how probable it thinks it that a token drawn from these passes; None
        where nobody asks.
      entropy: float32 ``[B]``, of its probabilities in nats; likewise.
    """

    logits: Array
    ids: Array | None = None
    prob: Array | None = None
    entropy: Array | None = None


Draw = Callable[..., tuple[Array, Array | None]]
Step = Callable[[Any, Array], tuple[Guess, Any]]


def draw_chain(
    draw: Draw,
    limit: Array,
    k: int,
    guess: Guess,
    state: Any,
    step: Step,
    *,
    min_prob: float = 0.0,
    max_entropy: float = math.inf,
) -> tuple[Draft, Any]:
    """Draws up to k tokens, each from a guess that saw the one before.

    A row's draft ends where the product of its guesses' ``prob`` is 0 or below ``min_prob``, or the
    guess's own entropy above ``max_entropy``. That is decided before the token in question is
    drawn, from guesses and the tokens before it alone: looking at the token itself would bias the
    output (Leviathan et al.'s rule needs the law of what is submitted).

    Args:
      draw: ``Context.draw``, or what chooses without drawing.
      limit: int32 ``[B]``, the most a row may draft, at most k.
      k: tokens a draft can hold.
      guess: of the first token.
      state: what ``step`` carries on.
      step: ``(state, last [B, 1]) -> (the guess of the next token, state)``.
      min_prob: 0 to 1; 0: no threshold.
      max_entropy: in nats; infinite: no threshold.

    Returns:
      The draft, and the state after the longest row's last step (its last token is not seen, or
      nothing came of it).
    """

    def going_on(prob: Array, guess: Guess) -> tuple[Array, Array]:
        prob = prob if guess.prob is None else prob * guess.prob
        sure = (prob >= min_prob) & (prob > 0)
        return prob, sure if guess.entropy is None else sure & (guess.entropy <= max_entropy)

    prob, sure = going_on(jnp.ones(limit.shape, jnp.float32), guess)
    alive = (limit > 0) & sure
    token, probs = draw(guess.logits, 1, guess.ids)
    tokens = jnp.zeros([token.shape[0], k], jnp.int32).at[:, 0].set(token)
    if probs is not None:
        shape = probs.shape[0], k + 1, probs.shape[1]
        probs = jnp.zeros(shape, probs.dtype).at[:, 0].set(probs)

    def running(carry: tuple) -> Array:
        node, alive, *_ = carry
        return jnp.any(alive & (limit > node))

    def body(carry: tuple) -> tuple:
        node, alive, length, prob, tokens, probs, state = carry
        guess, state = step(state, lax.dynamic_slice_in_dim(tokens, node - 1, 1, 1))
        prob, sure = going_on(prob, guess)
        alive = alive & (limit > node) & sure
        token, q = draw(guess.logits, node + 1, guess.ids)
        tokens = tokens.at[:, node].set(token)
        probs = None if q is None else probs.at[:, node].set(q)
        return node + 1, alive, length + alive.astype(jnp.int32), prob, tokens, probs, state

    carry = jnp.ones([], jnp.int32), alive, alive.astype(jnp.int32), prob, tokens, probs, state
    _, _, length, _, tokens, probs, state = lax.while_loop(running, body, carry)
    return Draft(tokens, length, probs), state


def largest_prob(logits: Array) -> Array:
    """The largest probability of logits ``[..., Vd]``, whatever the settings: float32 ``[...]``."""
    logits = logits.astype(jnp.float32)
    return jnp.exp(jnp.max(logits, -1) - jax.nn.logsumexp(logits, -1))


def measured(logits: Array, ids: Array | None, min_prob: float, max_entropy: float) -> Guess:
    """A guess with what the thresholds in use ask for."""
    prob = largest_prob(logits) if min_prob else None
    return Guess(logits, ids, prob, entropy(logits) if max_entropy < math.inf else None)


def entropy(logits: Array) -> Array:
    """The entropy of logits ``[..., Vd]`` in nats, whatever the settings: float32 ``[...]``."""
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    probs = jnp.exp(log_probs)
    return -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0), -1)


def check_entropy(drafter: str, max_entropy: float) -> None:
    """Raises ValueError where a drafter's threshold is no entropy; names it."""
    if not max_entropy >= 0:
        raise ValueError(
            f"{drafter}: max_entropy={max_entropy}; it must be 0 nats or more (inf: no threshold)"
        )


def check_prob(drafter: str, **values: float) -> None:
    """Raises ValueError where a drafter's threshold is no number from 0 to 1; names it."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{drafter}: {name}={value}; it must be 0 (no threshold) to 1")
