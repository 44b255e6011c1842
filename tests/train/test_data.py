"""Shards come back as they were written or not at all; packing loses nothing and mixes nothing."""

import json

import numpy as np
import pytest

from train import data


def samples(count: int, seed: int, most: int = 40) -> list[data.Sample]:
    """Documents whose tokens say which document and place they are."""
    rng = np.random.default_rng(seed)
    out = []
    for number in range(count):
        size = int(rng.integers(3, most + 1))
        mask = rng.random(size) < 0.4
        mask[-1] = True
        out.append(data.Sample(f"sample {number}", number * 1000 + np.arange(size), mask))
    return out


def documents(tmp_path, count=30, seed=0, **settings) -> data.Documents:
    data.write(tmp_path / "data", samples(count, seed), {"target": "x"}, **settings)
    return data.read(tmp_path / "data")


@pytest.mark.parametrize("shard_tokens", [1, 100, 10**6])
def test_shards_come_back_as_they_were_written(tmp_path, shard_tokens):
    got = documents(tmp_path, shard_tokens=shard_tokens)
    want = samples(30, 0)
    assert got.tokens.dtype == np.int32 and got.mask.dtype == bool and got.starts.dtype == np.int64
    for number, sample in enumerate(want):
        place = slice(got.starts[number], got.starts[number + 1])
        np.testing.assert_array_equal(got.tokens[place], sample.tokens)
        np.testing.assert_array_equal(got.mask[place], sample.mask)
    manifest = got.manifest
    assert manifest["target"] == "x" and manifest["documents"] == 30
    assert manifest["tokens"] == len(got.tokens) == got.starts[-1]
    assert manifest["supervised"] == got.mask.sum()
    shards = manifest["shards"]
    assert len(shards) == {1: 30, 100: len(shards), 10**6: 1}[shard_tokens]
    assert all(shard["tokens"] >= shard_tokens for shard in shards[:-1])
    names = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert names == [data.MANIFEST, *(shard["file"] for shard in shards)]


def test_writing_again_leaves_nothing_of_what_was_there(tmp_path):
    documents(tmp_path, shard_tokens=1)
    again = documents(tmp_path, count=2)
    assert len(again.starts) == 3
    assert len(list((tmp_path / "data").iterdir())) == 2


def test_a_stopped_write_is_not_taken_for_data(tmp_path):
    def stopping():
        yield from samples(3, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.write(tmp_path / "data", stopping(), {}, shard_tokens=1)
    with pytest.raises(ValueError, match=r"there is no .*manifest.json.*isn't complete"):
        data.read(tmp_path / "data")


def test_samples_that_turn_out_bad_leave_the_data_before(tmp_path):
    before = documents(tmp_path, shard_tokens=100)
    there = sorted((tmp_path / "data").iterdir())
    bad = data.Sample("sample 7", [1, 2, 3], [False] * 3)
    for new, message in (([*samples(9, 1), bad], "sample 7"), ([], "no samples")):
        with pytest.raises(ValueError, match=message):
            data.write(tmp_path / "data", new, {}, shard_tokens=1)
        again = data.read(tmp_path / "data")
        np.testing.assert_array_equal(again.tokens, before.tokens)
        assert again.manifest == before.manifest
        assert sorted((tmp_path / "data").iterdir()) == there


@pytest.mark.parametrize("where", ["first", "last", "short", "gone", "swapped"])
def test_a_damaged_shard_is_named(tmp_path, where):
    documents(tmp_path, shard_tokens=100)
    path = tmp_path / "data" / "shard-00001.safetensors"
    content = bytearray(path.read_bytes())
    if where == "gone":
        path.unlink()
    elif where == "swapped":
        path.write_bytes((tmp_path / "data" / "shard-00000.safetensors").read_bytes())
    elif where == "short":
        path.write_bytes(content[:-1])
    else:
        content[8 if where == "first" else -1] ^= 1
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"shard-00001\.safetensors.*make the data again"):
        data.read(tmp_path / "data")


def test_another_format_is_named(tmp_path):
    documents(tmp_path)
    path = tmp_path / "data" / data.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": "old"}))
    with pytest.raises(ValueError, match="format 'old'"):
        data.read(tmp_path / "data")
    path.write_text("{")
    with pytest.raises(ValueError, match=r"can't read .*manifest.json"):
        data.read(tmp_path / "data")


@pytest.mark.parametrize(
    ("tokens", "mask", "message"),
    [
        ([1, 2, 3], [False] * 3, "sample 7 has no supervised token among its 3"),
        (
            [1, 2, 3],
            [True, False, False],
            "sample 7 has no supervised token",
        ),  # nothing predicts it
        ([], [], "sample 7"),
        ([1, 2], [True], "sample 7 has tokens of shape"),
        ([1.5, 2.5], [True, True], "dtype float64"),
    ],
)
def test_a_useless_sample_is_named(tmp_path, tokens, mask, message):
    bad = data.Sample("sample 7", tokens, mask)
    with pytest.raises(ValueError, match=message):
        data.write(tmp_path, [*samples(2, 0), bad], {})
    assert not (tmp_path / data.MANIFEST).exists()


def test_no_samples(tmp_path):
    with pytest.raises(ValueError, match="no samples"):
        data.write(tmp_path, [], {})


# --- split ---


def test_a_split_is_by_document_and_random(tmp_path):
    whole = documents(tmp_path, count=200)
    train, held = data.split(whole, 0.1, seed=3)

    def numbers(part):
        return (part.tokens[part.starts[:-1]] // 1000).tolist()

    assert len(numbers(held)) == 20 and len(numbers(train)) == 180
    assert sorted(numbers(train) + numbers(held)) == list(range(200))
    assert numbers(held) == sorted(numbers(held)) != list(range(20))
    assert numbers(data.split(whole, 0.1, seed=3)[1]) == numbers(held)
    assert numbers(data.split(whole, 0.1, seed=4)[1]) != numbers(held)
    for part in (train, held):
        for at, number in enumerate(numbers(part)):
            place = slice(part.starts[at], part.starts[at + 1])
            original = slice(whole.starts[number], whole.starts[number + 1])
            np.testing.assert_array_equal(part.tokens[place], whole.tokens[original])
            np.testing.assert_array_equal(part.mask[place], whole.mask[original])


@pytest.mark.parametrize("shard_tokens", [1, 10**6])
def test_a_split_divides_no_conversation(tmp_path, shard_tokens):
    """Across shards too; and without conversations of several documents it is the same split."""
    several = [s._replace(continues=n % 3 > 0) for n, s in enumerate(samples(60, 0))]
    data.write(tmp_path / "several", several, {}, shard_tokens=shard_tokens)
    whole = data.read(tmp_path / "several")
    assert len(whole.manifest["shards"]) == (20 if shard_tokens == 1 else 1)
    assert whole.conversations.tolist() == [n // 3 for n in range(60)]
    train, held = (
        (part.tokens[part.starts[:-1]] // 1000).tolist() for part in data.split(whole, 0.2, 0)
    )
    assert len(held) == 12 and sorted(train + held) == list(range(60))
    assert not {n // 3 for n in train} & {n // 3 for n in held}
    alone = data.split(documents(tmp_path, count=20), 0.2, 0)[1]
    assert sorted({n // 3 for n in held}) == (alone.tokens[alone.starts[:-1]] // 1000).tolist()
    assert data.first(whole, 5).conversations.tolist() == [0, 0, 0, 1, 1]


def test_a_split_leaves_no_part_empty(tmp_path):
    whole = documents(tmp_path, count=3)
    for share in (0.01, 0.99):
        assert all(len(part.starts) > 1 for part in data.split(whole, share, 0))
    for share in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="held_out="):
            data.split(whole, share, 0)
    with pytest.raises(ValueError, match="1 conversations"):
        data.split(documents(tmp_path, count=1), 0.5, 0)


# --- packing ---


def unpacked(rows: data.Rows) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Tokens and mask of each document in the rows, by its number."""
    out = {}
    for row in range(len(rows.tokens)):
        segment = rows.segment[row]
        real = segment > 0
        assert np.all(np.diff(real.astype(int)) <= 0), "padding only at the end"
        assert np.all(np.isin(np.diff(segment[real]), (0, 1))) and segment[0] == 1
        assert not np.any(rows.tokens[row][~real] | rows.position[row][~real])
        assert not np.any(rows.mask[row][~real])
        for number in range(1, segment.max() + 1):
            inside = segment == number
            tokens = rows.tokens[row][inside]
            np.testing.assert_array_equal(rows.position[row][inside], np.arange(len(tokens)))
            document = int(tokens[0] // 1000)
            assert document not in out
            out[document] = tokens, rows.mask[row][inside]
    return out


def test_packing_keeps_every_document_whole(tmp_path):
    whole = documents(tmp_path, count=300)
    rows = data.pack(whole, 64)
    assert rows.tokens.shape == rows.mask.shape == rows.segment.shape == rows.position.shape
    assert [array.dtype for array in rows] == [np.int32, bool, np.int32, np.int32]
    found = unpacked(rows)
    for number, sample in enumerate(samples(300, 0)):
        np.testing.assert_array_equal(found[number][0], sample.tokens)
        np.testing.assert_array_equal(found[number][1], sample.mask)
    assert len(found) == 300 and data.cut(whole, 64) == data.Cut(0, 0, 0)
    # Best fit decreasing comes within two ninths of the least number of rows; here it's closer.
    assert len(rows.tokens) <= np.ceil(1.03 * len(whole.tokens) / 64)
    again = data.pack(whole, 64)
    assert all(np.array_equal(a, b) for a, b in zip(rows, again, strict=True))


@pytest.mark.parametrize("most", [1, 7, 30, 99])
def test_the_first_few_documents(tmp_path, most):
    """Of as few shards as hold them: what comes after isn't even opened."""
    whole = documents(tmp_path, shard_tokens=100)
    if most < 30:
        (tmp_path / "data" / whole.manifest["shards"][-1]["file"]).unlink()
    few = data.read(tmp_path / "data", most=most)
    assert len(few.lengths) == min(most, 30)
    np.testing.assert_array_equal(few.tokens, whole.tokens[: few.starts[-1]])
    np.testing.assert_array_equal(few.starts, whole.starts[: most + 1])


def test_supervising_all_takes_every_token_that_follows_one(tmp_path):
    rows = data.pack(documents(tmp_path, count=40), 64)
    every = data.supervise_all(rows)
    for tokens, mask in unpacked(every).values():
        assert mask.tolist() == [False] + [True] * (len(tokens) - 1)
    assert not every.mask[rows.segment == 0].any()
    assert all(a is b for a, b in zip(rows[2:], every[2:], strict=True))


def test_best_fit_is_best_fit():
    # 6 opens a row (room 4), 5 another (5), 4 goes where it leaves 0, 3 to the other, 2 as well.
    assert data._best_fit([3, 6, 2, 5, 4], 10) == [[1, 4], [3, 0, 2]]
    assert data._best_fit([10, 0, 10], 10) == [[0], [2]]


def test_long_documents_are_cut_and_counted(tmp_path):
    long = data.Sample("long", np.arange(50), np.arange(50) >= 10)
    late = data.Sample("late", 1000 + np.arange(50), np.arange(50) >= 30)
    first = data.Sample("first", 2000 + np.arange(40), np.isin(np.arange(40), (0, 35)))
    short = data.Sample("short", 3000 + np.arange(5), np.ones(5, bool))
    data.write(tmp_path, [long, late, first, short], {})
    whole = data.read(tmp_path)
    found = unpacked(data.pack(whole, 30))
    np.testing.assert_array_equal(found[0][0], np.arange(30))
    np.testing.assert_array_equal(found[0][1], np.arange(30) >= 10)
    assert sorted(found) == [0, 3]
    assert data.cut(whole, 30) == data.Cut(documents=3, dropped=2, tokens=20 + 50 + 40)
    with pytest.raises(ValueError, match="length=1"):
        data.pack(whole, 1)
    data.write(tmp_path, [late], {})
    with pytest.raises(ValueError, match="no document has a supervised token in its first 30"):
        data.pack(data.read(tmp_path), 30)


# --- batches ---


@pytest.mark.parametrize(("count", "size"), [(10, 5), (10, 4), (7, 3), (3, 8), (1, 4), (5, 1)])
def test_every_row_once_an_epoch(count, size):
    stream = np.concatenate([data.chosen(count, 5, step, size) for step in range(4 * count)])
    epochs = stream[: len(stream) // count * count].reshape(-1, count)
    np.testing.assert_array_equal(np.sort(epochs, 1), np.tile(np.arange(count), (len(epochs), 1)))
    if count > 4:
        assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1, "a new order each epoch"


def test_a_batch_depends_on_seed_and_step_alone():
    ahead = data.chosen(50, 1, 1000, 8)
    data._order.cache_clear()
    np.testing.assert_array_equal(ahead, data.chosen(50, 1, 1000, 8))
    assert not np.array_equal(ahead, data.chosen(50, 2, 1000, 8))
