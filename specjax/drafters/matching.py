"""Where a text's last tokens stand elsewhere: what drafters that look things up share.

Brute force: every slot is compared with the last tokens, in one pass. At the tens of thousands of
tokens that are searched here it costs less than keeping an index on the device would.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

NOTHING = -1  # in a text: no token here (a separator, or past the end)
_TOO_SHORT = -2  # among last tokens: the text is shorter; equals neither a token nor NOTHING


def only_text(tokens: Array, length: Array) -> Array:
    """The tokens ``[B, S]``, NOTHING from each row's ``length [B]`` on."""
    slot = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    return jnp.where(slot < length[:, None], tokens, NOTHING)


def last_tokens(tokens: Array, length: Array, count: int) -> Array:
    """The last tokens of ``tokens[b, :length[b]]``, the last one first: int32 ``[B, count]``."""
    back = length[:, None] - 1 - jnp.arange(count, dtype=jnp.int32)
    last = jnp.take_along_axis(tokens, jnp.maximum(back, 0), 1)
    return jnp.where(back >= 0, last, _TOO_SHORT)


def matched_lengths(text: Array, last: Array) -> Array:
    """How many of the last tokens stand before each slot that a token stands in.

    Args:
      text: int32 ``[B, S]`` or ``[1, S]``, NOTHING where there is no token.
      last: int32 ``[B, n_max]``, the last tokens, the last one first.

    Returns:
      int32 ``[B, S]``, 0 to n_max; 0 where ``text`` holds NOTHING.
    """
    slots, n_max = text.shape[1], last.shape[1]
    padded = jnp.pad(text, ((0, 0), (n_max, 0)), constant_values=NOTHING)
    alive = text != NOTHING
    matched = jnp.zeros([], jnp.int32)
    for n in range(n_max):
        before = padded[:, n_max - 1 - n :][:, :slots]  # text[s - 1 - n]
        alive = alive & (before == last[:, n, None])
        matched = matched + alive.astype(jnp.int32)
    return matched
