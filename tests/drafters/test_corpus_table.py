"""Corpus tables on disk, and their hashes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.drafters import corpus_table
from tests import support

COUNTS = {(1,): {2: 3, 4: 1}, (1, 2): {3: 1}, (5,): {0: 2}}


def saved(folder: pathlib.Path) -> pathlib.Path:
    table = support.table_of(COUNTS, [1.5, 0.25])
    table.about["tokenizer"] = "abc"
    corpus_table.save(folder, table)
    return folder


def test_a_table_comes_back_as_it_was(tmp_path: pathlib.Path) -> None:
    table = corpus_table.load(saved(tmp_path), vocab_size=6, tokenizer="abc")
    want = support.table_of(COUNTS, [1.5, 0.25])
    for name in ("keys", "checks", "totals", "sizes", "tokens", "counts", "doubt"):
        ours, theirs = getattr(table, name), getattr(want, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert table.about == {"tokenizer": "abc"} and table.orders == 2


def test_another_tokenizer_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"another tokenizer \(fingerprint abc, the target's is d"):
        corpus_table.load(saved(tmp_path), vocab_size=6, tokenizer="def")


def test_a_token_the_target_lacks_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="drafts token 4, and the target has 4 of them"):
        corpus_table.load(saved(tmp_path), vocab_size=4)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "order": ({"keys": np.array([3, 2, 1], np.uint32)}, "its contexts are not in order"),
    "twice": ({"keys": np.array([1, 1, 2], np.uint32)}, "not in order, each once"),
    "others": ({"keys": np.array([1, 2, 3], np.uint32)}, "not those that its config.json was writ"),
    "counts": (
        {"counts": np.ones(3, np.uint16)},
        "'sizes' names 4 continuations and 'counts' holds 3",
    ),
    "tokens": (
        {"tokens": np.ones(5, np.uint16)},
        "'sizes' names 4 continuations and 'tokens' holds 5",
    ),
    "no counts": ({"counts": np.zeros(4, np.uint16)}, "'counts' holds a 0, where numbers of at le"),
    "no totals": ({"totals": np.zeros(3, np.uint16)}, "'totals' holds a 0, where numbers of at le"),
    "checks": ({"checks": np.ones(2, np.uint16)}, "arrays belong to different numbers of contexts"),
    "sizes": ({"sizes": np.array([0, 2, 2], np.uint8)}, "'sizes' holds a 0"),
    "dtype": ({"keys": np.array([1, 2, 3], np.int32)}, r"has 'keys' as int32 \[3\]; it must be ui"),
    "axes": ({"totals": np.ones((3, 1), np.uint16)}, r"has 'totals' as uint16 \[3, 1\]"),
    "missing": ({"totals": None}, "lacks the tensor 'totals'"),
    "unknown": ({"more": np.ones(2, np.uint16)}, "has an unknown tensor 'more'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_damage_is_named(name: str, tmp_path: pathlib.Path) -> None:
    changes, message = CHANGES[name]
    path = saved(tmp_path) / corpus_table.FILE
    arrays = load_file(path) | changes
    save_file({key: value for key, value in arrays.items() if value is not None}, path)
    with pytest.raises(ValueError, match=message):
        corpus_table.load(tmp_path, vocab_size=6)


@pytest.mark.parametrize("name", ["checks", "totals", "tokens", "counts"])
def test_a_flipped_bit_is_found(name: str, tmp_path: pathlib.Path) -> None:
    """In every array; a table from before there were checksums of all of them still loads."""
    path, config = saved(tmp_path) / corpus_table.FILE, tmp_path / "config.json"
    arrays = load_file(path)
    arrays[name] = arrays[name] ^ np.array([2] + [0] * (len(arrays[name]) - 1), np.uint16)
    arrays[name] = np.maximum(arrays[name], 1)
    save_file(arrays, path)
    with pytest.raises(
        ValueError, match=f"{name!r} is not the array that its config.json was writ"
    ):
        corpus_table.load(tmp_path, vocab_size=6)
    about = json.loads(config.read_text())
    assert set(about.pop("checksums")) == set(arrays)
    config.write_text(json.dumps(about))
    corpus_table.load(tmp_path, vocab_size=6)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3"])
def test_a_tensor_that_numpy_lacks_is_named(dtype: str, tmp_path: pathlib.Path) -> None:
    size = 2 if dtype == "BF16" else 1
    header = json.dumps({"keys": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]}})
    head = len(header).to_bytes(8, "little") + header.encode()
    (saved(tmp_path) / corpus_table.FILE).write_bytes(head + bytes(size))
    with pytest.raises(ValueError, match=r"safetensors has (a tensor of a type|'keys' as)"):
        corpus_table.load(tmp_path, vocab_size=6)


@pytest.mark.parametrize("folder", [None, 3, b"table"])
def test_what_is_no_path_is_named(folder: Any) -> None:
    with pytest.raises(ValueError, match=f"folder={folder!r}; it must be the path of a table's fo"):
        corpus_table.load(folder, vocab_size=6)
    assert not corpus_table.is_table(folder)


@pytest.mark.parametrize("vocab_size", [None, "7", 6.0, True])
def test_what_is_no_vocabulary_size_is_named(vocab_size: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=f"vocab_size={vocab_size!r}; it must be an integer: pass"):
        corpus_table.load(saved(tmp_path), vocab_size=vocab_size)


def test_a_config_without_end_is_named(tmp_path: pathlib.Path) -> None:
    (saved(tmp_path) / "config.json").write_text("[" * 100_000)
    with pytest.raises(
        ValueError, match=r"config.json can't be read .* give the folder of a table"
    ):
        corpus_table.load(tmp_path, vocab_size=6)
    assert not corpus_table.is_table(tmp_path)


def test_a_truncated_file_is_named(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path) / corpus_table.FILE
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"model.safetensors is missing or truncated"):
        corpus_table.load(tmp_path, vocab_size=6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is not that of a 'specjax corpus table"),
        ({"doubt": [1.0]}, "orders=2 with 1 values of doubt"),
        ({"doubt": "much"}, "orders=2 with 0 values of doubt"),
        ({"doubt": [10**400, 1.0]}, "orders=2 with 0 values of doubt"),
        ({"checksums": 3}, "checksums=3, where one for each array belongs"),
        ({"doubt": [-1.0, 0.0]}, r"doubt=\[-1.0, 0.0\], where numbers of at least 0 belong"),
    ],
)
def test_a_config_that_can_t_be_is_named(changes: dict, message: str, tmp_path: Any) -> None:
    path = saved(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        corpus_table.load(tmp_path, vocab_size=6)


def test_no_table(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"config.json can't be read .* give the folder of a tabl"):
        corpus_table.load(tmp_path, vocab_size=6)


def test_hashes_are_the_same_in_programs_and_outside(seed: int) -> None:
    tokens = np.random.default_rng(seed).integers(-1, 2**17, (64, 5)).astype(np.int32)
    inside = jax.jit(lambda x: corpus_table.hashes(x, jnp))(tokens)
    for ours, theirs in zip(inside, corpus_table.hashes(tokens), strict=True):
        assert theirs.dtype == np.uint32
        np.testing.assert_array_equal(ours, theirs)


def test_hashes_tell_contexts_apart(seed: int) -> None:
    """By order, by length and by every token; entry n - 1 depends on the last n tokens alone."""
    tokens = np.random.default_rng(seed).integers(0, 49152, (20_000, 3)).astype(np.int32)
    keys, checks = corpus_table.hashes(tokens)
    whole = (keys.astype(np.uint64) << np.uint64(32)) | checks
    assert len(np.unique(whole)) == len(np.unique(tokens[:, 0])) + 2 * len(tokens)
    other = tokens.copy()
    other[:, 2] += 1
    for ours, theirs in zip(corpus_table.hashes(other), (keys, checks), strict=True):
        np.testing.assert_array_equal(ours[:, :2], theirs[:, :2])
        assert (ours[:, 2] != theirs[:, 2]).mean() > 0.999
    # Upper bits choose the bucket: they must be spread evenly.
    spread = np.bincount((keys >> np.uint32(27)).ravel(), minlength=32)
    assert support.p_value_of_counts(spread, np.full(32, 1 / 32)) > support.SIGNIFICANCE


def test_a_run_s_folder_holds_the_table_s(tmp_path: pathlib.Path) -> None:
    inside = saved(tmp_path / "table")
    with pytest.raises(ValueError, match=rf"config.json can't be read .* give {inside}"):
        corpus_table.load(tmp_path, vocab_size=6)
