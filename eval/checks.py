"""What a measurement must hold: greedy outputs equal plain ones, and nothing compiled meanwhile.

Two passes of different widths round differently, so where the two best logits all but tie, greedy
decoding may take the one or the other. A difference at such a near tie is reported; any other is a
failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from eval.chat import Chat
from eval.measure import Cell
from eval.rows import ALL, Row, first_difference
from specjax import Sampling, keys, stats, warp
from specjax.loop import chunk_size
from specjax.prefill import prefill
from specjax.target import Target

# Gaps of the two best logits below which rounding may decide.
NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.03}


def differences(cells: Sequence[Cell], rows: Sequence[Row], chat: Chat) -> list[str]:
    """Checks greedy outputs against plain ones; writes the margins into the rows.

    Args:
      cells: the measurement.
      rows: of single prompts and of groups.
      chat: the target.

    Returns:
      A sentence for each failure.
    """
    failures, limit = [], near_tie(chat)
    plain = {c.prompt.name: c for c in cells if c.mode.name == "plain" and c.mode.greedy}
    for cell in cells:
        if not (cell.mode.greedy and cell.mode.verifier.lossless):
            continue
        expected = plain[cell.prompt.name].tokens
        for trial in cell.trials:
            index = first_difference(trial.decoding.tokens, expected)
            if index is None:
                continue
            gap = margin(chat, cell.ids + expected[:index])
            for row in rows:
                _note(row, cell, index, gap)
            if not gap < limit:
                failures.append(
                    f"{cell.mode.label} differs from plain greedy decoding on {cell.prompt.name!r} "
                    f"at token {index}, where plain's two best logits are {gap:.2g} apart; only "
                    f"below {limit:g} may rounding decide: this is a bug"
                )
                break
    return failures


def copies(cells: Sequence[Cell], chat: Chat) -> list[str]:
    """Checks that a copy of the target has all its greedy drafts accepted (but at near ties)."""
    failures, limit = [], near_tie(chat)
    for cell in cells:
        if not (cell.mode.is_copy and cell.mode.greedy and cell.mode.verifier.lossless):
            continue
        counts = cell.trials[0].decoding.stats
        places = _refused(cell)
        # What was drafted past the answer's end is thrown away; no text leads there.
        gaps = [margin(chat, cell.ids + cell.tokens[:at]) for at in places if at < len(cell.tokens)]
        if len(places) < _refusals(counts) or not all(gap < limit for gap in gaps):
            failures.append(
                f"{cell.mode.label} has {100 * stats.acceptance_rate(counts):.1f}% of its drafts "
                f"accepted on {cell.prompt.name!r}; it must be 100%: its cache or its positions "
                "are wrong"
            )
    return failures


def _refusals(counts: stats.Stats) -> int:
    """Rounds that refused a draft token: each judged one more than it accepted."""
    return int(counts.judged.sum() - counts.accepted.sum())


def _refused(cell: Cell) -> list[int]:
    """Output indices of the corrections (or where they would be), as far as they can be found.

    A burst short of k + 1 tokens ends with a correction. The last one may also be short because the
    answer ended in it: there the counts say how much of the draft stayed.
    """
    *sizes, _ = (cell.bursts or ([], []))[0] or [0]
    ends, at = [], 0
    for size in sizes:
        at += size
        if size <= cell.mode.k:
            ends.append(at - 1)
    counts = cell.trials[0].decoding.stats
    if cell.bursts and _refusals(counts) > len(ends):
        kept_before = at - len(sizes)  # each burst is what was accepted, and one token more
        ends.append(at + int(counts.accepted.sum()) - kept_before)
    return ends


def near_tie(chat: Chat) -> float:
    """The gap of the two best values below which rounding may decide between them."""
    return NEAR_TIE.get(str(chat.dtype), NEAR_TIE["float32"])


def margin(
    chat: Chat, ids: Sequence[int], temperature: float = 0.0, key: Array | None = None
) -> float:
    """By how much plain decoding's token wins after ``ids``, in a pass over one token.

    Args:
      chat: the target.
      ids: prompt and output so far.
      temperature: 0: the gap of the two best logits. Above: that of the two best ``log p + g`` of
        coupled sampling.
      key: the row's key ``[1]``; for sampling only.
    """
    size = 1 << (len(ids) - 1).bit_length()
    tokens = jnp.asarray([[*ids, *[0] * (size - len(ids))]], jnp.int32)
    length = jnp.asarray([len(ids)], jnp.int32)
    warmth = jnp.full([1], temperature, jnp.float32) if temperature else None
    arguments = chat.params, tokens, length, warmth, key if temperature else None
    return float(_margin(chat.target, chat.dtype, *arguments))


@partial(jax.jit, static_argnums=(0, 1))
def _margin(
    target: Target,
    dtype: Any,
    params: Any,
    tokens: Array,
    length: Array,
    temperature: Array | None,
    key: Array | None,
) -> Array:
    cache = target.init_cache(1, tokens.shape[1], dtype)
    chunk = chunk_size(tokens.shape[1])
    cache, _ = prefill(target, params, tokens, length, cache, chunk=chunk)
    last = jnp.take_along_axis(tokens, length[:, None] - 1, 1)
    logits, _, _ = target.apply(params, last, cache)
    values = logits[:, :, : target.vocab_size].astype(jnp.float32)
    if temperature is not None:
        depth = jnp.zeros([1], jnp.int32)
        noise = keys.target_gumbel(keys.Noise(key, length), depth, target.vocab_size)
        values = jnp.log(warp.apply(Sampling(temperature=temperature), values)) + noise
    best = jax.lax.top_k(values[0, 0], 2)[0]
    return best[0] - best[1]


def _note(row: Row, cell: Cell, index: int, gap: float) -> None:
    """Writes the margin into the prompt's row; groups keep the largest."""
    mode = cell.mode
    same_mode = (row["mode"], row["temperature"]) == (mode.name, mode.temperature)
    if same_mode and row["prompt"] == cell.prompt.name and row["first_difference"] == index:
        row["margin"] = gap
    elif same_mode and row["prompt"] == ALL and row["category"] in (ALL, cell.prompt.category):
        row["margin"] = max(gap, row["margin"] or 0.0)
