"""A folder of shards holds the old data or the new, whole, whenever a write is stopped."""

import json

import numpy as np
import pytest

from eval import results
from train import shards


def parts(count, seed, look=lambda: None):
    for number in range(count):
        look()
        yield {"tokens": np.arange(seed, seed + number + 2)}, {"tokens": number + 2}
    look()


def replace(folder, count, seed, look=lambda: None):
    about = {"seed": seed}
    return shards.replace(folder, parts(count, seed, look), lambda entries: about)


def read(folder):
    manifest = shards.read_manifest(folder / shards.MANIFEST)
    arrays = [shards.read(folder / entry["file"], entry) for entry in manifest["shards"]]
    return manifest["seed"], [array["tokens"].tolist() for array in arrays]


def whole(count, seed):
    return seed, [list(range(seed, seed + number + 2)) for number in range(count)]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_old_data_are_whole_until_the_new_are(tmp_path):
    replace(tmp_path, 3, 0)
    looks = []
    for count, seed, before in ((4, 10, whole(3, 0)), (2, 20, whole(4, 10)), (3, 0, whole(2, 20))):
        replace(tmp_path, count, seed, lambda: looks.append(read(tmp_path)))
        assert looks == [before] * (count + 1)
        looks.clear()
        assert read(tmp_path) == whole(count, seed)
        entries = json.loads((tmp_path / shards.MANIFEST).read_text())["shards"]
        assert names(tmp_path) == [shards.MANIFEST, *(entry["file"] for entry in entries)]
        assert [entry["tokens"] for entry in entries] == [n + 2 for n in range(count)]


def test_the_same_data_again_make_the_same_manifest(tmp_path):
    plain = replace(tmp_path, 2, 0)
    assert names(tmp_path)[1:] == ["shard-00000.safetensors", "shard-00001.safetensors"]
    assert replace(tmp_path, 2, 0) == plain
    other = replace(tmp_path, 2, 1)
    assert other["shards"][0]["file"] != plain["shards"][0]["file"]
    assert replace(tmp_path, 2, 1) == other, "also under the names that kept the old data whole"
    assert read(tmp_path) == whole(2, 1)


def test_what_a_stopped_write_leaves(tmp_path, monkeypatch):
    replace(tmp_path, 2, 0)
    before = names(tmp_path)

    def stop(entries):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shards.replace(tmp_path, parts(3, 5), stop)
    assert names(tmp_path) == before and read(tmp_path) == whole(2, 0)

    (tmp_path / "shard-00007.safetensors").write_bytes(b"of a write that was killed")
    write_json = results.write_json

    def late(*arguments):
        write_json(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "write_json", late)
    with pytest.raises(KeyboardInterrupt):
        replace(tmp_path, 3, 5)
    assert read(tmp_path) == whole(3, 5), "the manifest was in place already"
    monkeypatch.undo()
    replace(tmp_path, 1, 9)
    assert len(names(tmp_path)) == 2


def test_what_it_is_not(tmp_path):
    (tmp_path / shards.MANIFEST).write_text("[]")
    with pytest.raises(ValueError, match=r"manifest.json is of the format None"):
        shards.read_manifest(tmp_path / shards.MANIFEST)
    replace(tmp_path, 1, 0)
    assert read(tmp_path) == whole(1, 0), "nothing of use was there"
