"""Token shards on disk, and batches of packed rows out of them.

A folder holds ``manifest.json``, written last: a folder without it isn't complete. It says what the
tokens were made of and lists the shards: each has ``tokens`` int32 ``[n]``, ``mask`` uint8 ``[n]``
(1: supervised, the target wrote it), ``starts`` int64 ``[D+1]`` and, unless all are 0,
``continues`` uint8 ``[D]`` (1: of the conversation of the one before).

A mask belongs to the token at its own place. Whoever predicts tokens shifts tokens and mask
together: what follows position t is ``tokens[t + 1]``, and counts if ``mask[t + 1]``.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from train import shards
from train.shards import MANIFEST


class Sample(NamedTuple):
    """One document to write.

    Attributes:
      name: what messages call it.
      tokens: ids ``[n]``.
      mask: bool ``[n]``, true on supervised tokens.
      continues: whether it is of the same conversation as the sample before: where a template
        changes what came before, a conversation is several documents, which have much in common.
    """

    name: str
    tokens: ArrayLike
    mask: ArrayLike
    continues: bool = False


class Documents(NamedTuple):
    """Documents end to end.

    Attributes:
      tokens: int32 ``[n]``.
      mask: bool ``[n]``, supervised tokens.
      starts: int64 ``[D+1]``, where each begins; the last entry is n.
      manifest: what they were made of.
      continues: bool ``[D]``, see ``Sample``; None: no document does.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    starts: NDArray[np.int64]
    manifest: dict[str, Any]
    continues: NDArray[np.bool_] | None = None

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 ``[D]``, tokens of each document."""
        return np.diff(self.starts)

    @property
    def conversations(self) -> NDArray[np.int64]:
        """int64 ``[D]``, the number from 0 of each document's conversation."""
        if self.continues is None:
            return np.arange(len(self.lengths))
        begins = ~self.continues
        begins[:1] = True
        return np.cumsum(begins) - 1


class Rows(NamedTuple):
    """Documents packed into rows of one length.

    Attributes:
      tokens: int32 ``[R, T]``, 0 in the padding.
      mask: bool ``[R, T]``, supervised tokens.
      segment: int32 ``[R, T]``, 0 in the padding, else 1, 2, ...: the documents of the row.
      position: int32 ``[R, T]``, from 0 in each document.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    segment: NDArray[np.int32]
    position: NDArray[np.int32]


class Cut(NamedTuple):
    """What ``pack`` leaves out.

    Attributes:
      documents: documents longer than a row, cut to it.
      dropped: those of them with no supervised token before the cut, which are left out.
      tokens: tokens lost in all.
    """

    documents: int
    dropped: int
    tokens: int


def write(
    folder: str | os.PathLike[str],
    samples: Iterable[Sample],
    about: Mapping[str, Any],
    *,
    shard_tokens: int = 2**24,
) -> dict[str, Any]:
    """Writes samples as shards; data that were in the folder stay whole until these are complete.

    Args:
      folder: made if it isn't there.
      samples: the documents; one shard of them is in memory at a time.
      about: what the manifest says besides: fingerprints, sampling and so on.
      shard_tokens: a shard ends with the document that reaches this many.

    Returns:
      The manifest.

    Raises:
      ValueError: no samples, or one that is empty, misshapen or has nothing supervised; names it.
    """

    def describe(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if not entries:
            raise ValueError(f"there are no samples to write to {folder}; give at least one")
        counts = ("documents", "tokens", "supervised")
        return {**about, **{name: sum(entry[name] for entry in entries) for name in counts}}

    parts = map(_shard, _parts(samples, shard_tokens))
    return shards.replace(pathlib.Path(folder), parts, describe)


def read(
    folder: str | os.PathLike[str], tokenizer: str | None = None, most: int | None = None
) -> Documents:
    """Reads a folder of shards, each after a check of its checksum.

    Args:
      folder: of the shards.
      tokenizer: see ``read_manifest``.
      most: documents to read, the first ones; None: all.

    Raises:
      ValueError: no complete data there, a damaged file or tokens of another tokenizer; names it
        and the fix.
    """
    manifest = read_manifest(folder, tokenizer)
    tokens, masks, starts, continues, at, count = [], [], [np.zeros(1, np.int64)], [], 0, 0
    for number in range(len(manifest["shards"])):
        shard = read_shard(folder, manifest, number)
        tokens.append(shard.tokens)
        masks.append(shard.mask)
        starts.append(shard.starts[1:] + at)
        continues.append(shard.continues)
        at += len(shard.tokens)
        count += len(shard.lengths)
        if most is not None and count >= most:
            break
    found = Documents(
        np.concatenate(tokens),
        np.concatenate(masks),
        np.concatenate(starts),
        manifest,
        np.concatenate(continues),
    )
    return found if most is None else first(found, most)


def read_shard(folder: str | os.PathLike[str], manifest: dict[str, Any], number: int) -> Documents:
    """Reads one shard of a folder, after a check of its checksum.

    Args:
      folder: of the shards.
      manifest: as ``read_manifest`` gives it.
      number: of the shard, from 0.

    Raises:
      ValueError: a damaged file; names it and the fix.
    """
    entry = manifest["shards"][number]
    arrays = shards.read(pathlib.Path(folder) / entry["file"], entry)
    tokens, mask, starts = arrays["tokens"], arrays["mask"].astype(bool), arrays["starts"]
    continues = arrays.get("continues", np.zeros(len(starts) - 1)).astype(bool)
    return Documents(tokens, mask, starts, manifest, continues)


def read_manifest(folder: str | os.PathLike[str], tokenizer: str | None = None) -> dict[str, Any]:
    """What a folder of shards was made of.

    Args:
      folder: of the shards.
      tokenizer: the fingerprint of the one its tokens must be of; None: of any.

    Raises:
      ValueError: no complete data there, or tokens of another tokenizer; says why and the fix.
    """
    manifest = shards.read_manifest(pathlib.Path(folder) / MANIFEST)
    if tokenizer is not None and manifest.get("tokenizer") != tokenizer:
        raise ValueError(
            f"config.data: {folder} holds tokens of another tokenizer (fingerprint "
            f"{manifest.get('tokenizer')}, the target's is {tokenizer}); make the data with this "
            "target"
        )
    return manifest


def split(documents: Documents, held_out: float, seed: int) -> tuple[Documents, Documents]:
    """Splits by conversation, at random; each part keeps the order.

    Documents of one conversation may contain each other: what is held out would be trained on.

    Args:
      documents: of at least two conversations.
      held_out: the share of conversations in the second part, in (0, 1); at least one goes to each.
      seed: of the choice.

    Returns:
      What to train on, and what is held out.

    Raises:
      ValueError: a share out of range, or fewer than two conversations.
    """
    numbers = documents.conversations
    count = int(numbers[-1]) + 1 if len(numbers) else 0
    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out}; it must be a share between 0 and 1, such as 0.05")
    if count < 2:
        raise ValueError(f"{count} conversations can't be split into two parts; give at least 2")
    size = min(max(round(count * held_out), 1), count - 1)
    chosen = np.zeros(count, bool)
    chosen[np.random.default_rng([seed, 0]).permutation(count)[:size]] = True
    return _select(documents, ~chosen[numbers]), _select(documents, chosen[numbers])


def first(documents: Documents, count: int) -> Documents:
    """The first few documents, or all where there are fewer."""
    return _select(documents, np.arange(len(documents.lengths)) < count)


def pack(documents: Documents, length: int) -> Rows:
    """Packs documents into rows: the longest first, each where it leaves least room (best fit).

    A document is never divided; ``cut`` says what becomes of those longer than a row. The result
    depends on nothing but the arguments.

    Args:
      documents: at least one.
      length: T.

    Returns:
      As few rows as this finds; the documents of a row are in the order they were placed.

    Raises:
      ValueError: a length below 2 (nothing to predict), or nothing supervised fits.
    """
    if length < 2:
        raise ValueError(f"length={length}; rows must have at least 2 tokens")
    sizes = np.minimum(documents.lengths, length)
    sizes[_lost(documents, length)] = 0
    rows = _best_fit(sizes, length)
    if not rows:
        raise ValueError(f"no document has a supervised token in its first {length}; raise length")
    shape = len(rows), length
    tokens, segment, position = (np.zeros(shape, np.int32) for _ in range(3))
    mask = np.zeros(shape, bool)
    for row, members in enumerate(rows):
        at = 0
        for number, document in enumerate(members, 1):
            start, size = documents.starts[document], sizes[document]
            to = slice(at, at + size)
            tokens[row, to] = documents.tokens[start : start + size]
            mask[row, to] = documents.mask[start : start + size]
            segment[row, to] = number
            position[row, to] = np.arange(size)
            at += size
    return Rows(tokens, mask, segment, position)


def supervise_all(rows: Rows) -> Rows:
    """The rows with every token supervised that follows another of its document.

    For a head that learns from the target's distributions, which prompts have too: almost twice as
    many of them from the same text.
    """
    return rows._replace(mask=(rows.segment > 0) & (rows.position > 0))


def cut(documents: Documents, length: int) -> Cut:
    """What ``pack`` leaves out at this length."""
    lost = _lost(documents, length)
    kept = np.where(lost, 0, np.minimum(documents.lengths, length))
    return Cut(
        documents=int(np.sum(documents.lengths > length)),
        dropped=int(np.sum(lost)),
        tokens=int(np.sum(documents.lengths - kept)),
    )


def chosen(count: int, seed: int, step: int, size: int) -> NDArray[np.int64]:
    """The rows of a step's batch: a function of its arguments alone, so resuming needs only these.

    Rows come in a new random order each epoch, every row once; a batch may span two epochs.

    Args:
      count: of all rows.
      seed: of the orders.
      step: from 0.
      size: rows a batch.

    Returns:
      ``size`` row numbers.
    """
    place = step * size + np.arange(size)
    epochs = np.unique(place // count)
    orders = [_order(count, seed, int(epoch)) for epoch in epochs]
    return np.concatenate(orders)[place - epochs[0] * count]


# --- parts ---


@functools.lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, 1, epoch]).permutation(count)


def _best_fit(sizes: Sequence[int] | NDArray, length: int) -> list[list[int]]:
    """Bins of document numbers; documents of size 0 are left out.

    Rows are kept by the room they have left, and which rooms occur is one integer's bits: the least
    room that is enough is found at once, whatever the number of rows.
    """
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(length + 1)]
    rooms = 0
    for document in np.argsort(-np.asarray(sizes), kind="stable").tolist():
        size = int(sizes[document])
        if size == 0:
            break
        enough = rooms >> size << size
        if enough:
            room = (enough & -enough).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = length, len(rows)
            rows.append([])
        rows[row].append(document)
        by_room[room - size].append(row)
        rooms |= 1 << (room - size)
    return rows


def _lost(documents: Documents, length: int) -> NDArray[np.bool_]:
    """Bool ``[D]``: documents with no supervised token in their first ``length``.

    The first token of a document doesn't count: nothing predicts it.
    """
    counts = np.concatenate([[0], np.cumsum(documents.mask)])
    first = documents.starts[:-1]
    ends = np.minimum(first + length, documents.starts[1:])
    return counts[ends] == counts[np.minimum(first + 1, ends)]


def _select(documents: Documents, chosen: NDArray[np.bool_]) -> Documents:
    lengths = documents.lengths
    inside = np.repeat(chosen, lengths)
    starts = np.concatenate([[0], np.cumsum(lengths[chosen])]).astype(np.int64)
    continues = None if documents.continues is None else documents.continues[chosen]
    return Documents(
        documents.tokens[inside],
        documents.mask[inside],
        starts,
        dict(documents.manifest),
        continues,
    )


def _parts(samples: Iterable[Sample], most: int) -> Iterator[Documents]:
    """Consecutive samples, checked, as documents of about ``most`` tokens."""
    tokens: list[NDArray] = []
    masks: list[NDArray] = []
    continues: list[bool] = []
    held = 0
    for sample in samples:
        ids, mask = _checked(sample)
        if held >= most and not sample.continues:  # shards divide no conversation
            yield _joined(tokens, masks, continues)
            tokens, masks, continues, held = [], [], [], 0
        tokens.append(ids)
        masks.append(mask)
        continues.append(sample.continues)
        held += len(ids)
    if tokens:
        yield _joined(tokens, masks, continues)


def _joined(
    tokens: Sequence[NDArray], masks: Sequence[NDArray], continues: Sequence[bool]
) -> Documents:
    starts = np.cumsum([0, *map(len, tokens)]).astype(np.int64)
    flags = np.array(continues, bool)
    return Documents(np.concatenate(tokens), np.concatenate(masks), starts, {}, flags)


def _checked(sample: Sample) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    ids, mask = np.asarray(sample.tokens), np.asarray(sample.mask)
    if ids.ndim != 1 or ids.shape != mask.shape or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"{sample.name} has tokens of shape {ids.shape} and dtype {ids.dtype} and a mask of "
            f"shape {mask.shape}; they must be integers [n] and flags [n]"
        )
    if not np.any(mask[1:]):
        raise ValueError(
            f"{sample.name} has no supervised token among its {len(ids)}: its answer is empty, or "
            "the chat template hides it; drop the sample"
        )
    return ids.astype(np.int32), mask.astype(bool)


def _shard(part: Documents) -> tuple[dict[str, NDArray], dict[str, int]]:
    """The arrays of a shard, and their counts."""
    arrays = {"tokens": part.tokens, "mask": part.mask.astype(np.uint8), "starts": part.starts}
    if part.continues is not None and part.continues.any():
        arrays["continues"] = part.continues.astype(np.uint8)
    return arrays, {
        "documents": len(part.starts) - 1,
        "tokens": len(part.tokens),
        "supervised": int(np.sum(part.mask)),
    }
