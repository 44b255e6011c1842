"""The table that scripts.build_corpus makes, against counts in plain Python."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from configs import corpus_smollm2
from eval import chat as chats
from scripts import build_corpus, corpus_counts, corpus_fit, corpus_prune
from specjax.drafters import corpus_table
from specjax.models import fingerprint, loading
from tests import support
from tests.eval import tiny
from train import data

VOCAB, ORDERS = 7, 3


def documents_of(seed: int, count: int = 12) -> tuple[data.Documents, list[list[int]]]:
    """Documents whose first token isn't supervised, nor one inside of every third."""
    rng, texts, masks = np.random.default_rng(seed), [], []
    for number in range(count):
        text = rng.integers(0, VOCAB, rng.integers(3, 15))
        mask = np.arange(len(text)) > 0
        mask[2] = number % 3 > 0
        texts.append(text.astype(np.int32))
        masks.append(mask)
    starts = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return data.Documents(np.concatenate(texts), np.concatenate(masks), starts, {}), texts


def counted(documents: data.Documents) -> support.Counts:
    """By the docstrings' words."""
    out: dict = {}
    for first, end in zip(documents.starts[:-1], documents.starts[1:], strict=True):
        text = documents.tokens[first:end].tolist()
        for at in np.flatnonzero(documents.mask[first:end]):
            for n in range(1, min(ORDERS, at) + 1):
                follows = out.setdefault(tuple(text[at - n : at]), {})
                follows[text[at]] = follows.get(text[at], 0) + 1
    return out


def parts_of(folder: pathlib.Path, seeds: list[int]) -> tuple[Any, support.Counts]:
    parts, whole = corpus_counts.Parts(folder, {"seed": seeds}, ORDERS), {}
    for number, seed in enumerate(seeds):
        documents, _ = documents_of(seed)
        parts.add(number, documents)
        for context, follows in counted(documents).items():
            mine = whole.setdefault(context, {})
            for token, count in follows.items():
                mine[token] = mine.get(token, 0) + count
    return parts, whole


def same(table: corpus_table.CorpusTable, want: corpus_table.CorpusTable) -> None:
    for name in ("keys", "checks", "totals", "sizes", "tokens", "counts"):
        np.testing.assert_array_equal(getattr(table, name), getattr(want, name), name)


@pytest.mark.parametrize("at_once", [2**22, 40])
def test_a_table_with_room_holds_all_counts(
    at_once: int, tmp_path: pathlib.Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several shards, merged whole or some hashes at a time; rare continuations are left out."""
    monkeypatch.setattr(corpus_prune, "_AT_ONCE", at_once)
    parts, whole = parts_of(tmp_path, [seed, seed + 1, seed + 2])
    table = corpus_prune.prune(parts, ranks=2, min_count=1, bytes_=10**6, vocab_size=VOCAB)
    kept = {
        context: dict(
            [best[0]] + [one for one in best[1:2] if one[1] >= 2]
        )
        for context, follows in whole.items()
        if (best := sorted(follows.items(), key=lambda item: (-item[1], item[0])))
    }  # fmt: skip
    want = support.table_of(kept, [0.0] * ORDERS)
    totals = support.table_of(whole, [0.0] * ORDERS).totals
    same(table, dataclasses.replace(want, totals=totals))


def test_what_earns_least_goes_first(tmp_path: pathlib.Path, seed: int) -> None:
    """What is kept of a small budget earns at least as much as anything that isn't."""
    parts, whole = parts_of(tmp_path, [seed, seed + 1])

    def earns(context: tuple[int, ...]) -> int:
        follows = whole[context]
        best = max(follows.values())
        shorter = whole.get(context[1:]) if len(context) > 1 else None
        if not shorter:
            return best
        says = min(shorter, key=lambda token: (-shorter[token], token))
        return best - follows.get(says, 0)

    bytes_ = 30 * 13
    table = corpus_prune.prune(parts, ranks=1, min_count=1, bytes_=bytes_, vocab_size=VOCAB)
    assert len(table.keys) == 30
    everything = support.table_of(whole, [0.0] * ORDERS, ranks=1)
    by_key = {}
    for context in whole:
        key = support.table_of({context: whole[context]}, [0.0] * ORDERS).keys[0]
        by_key[int(key)] = context
    assert len(by_key) == len(everything.keys)
    kept = {by_key[int(key)] for key in table.keys}
    least = min(map(earns, kept))
    assert least >= max(earns(context) for context in whole if context not in kept)
    assert least > 0, "half of the contexts earn nothing; they must not be among the first"


def test_large_counts_are_halved_until_they_fit() -> None:
    contexts = corpus_prune.Contexts(
        hash=np.array([5 << 32], np.uint64), total=np.array([200_000]), earns=np.array([1]),
        tokens=np.array([[3, 4]], np.uint32), counts=np.array([[150_000, 1]]),
    )  # fmt: skip
    table = corpus_prune._table(contexts, np.dtype(np.uint16), 1)
    assert table.totals.tolist() == [50_000] and table.counts.tolist() == [37_500, 1]


def test_doubt_is_how_often_counts_are_wrong() -> None:
    """A context seen once that is right in a third of its places has a doubt of 2."""
    right = np.arange(300) % 3 == 0
    looked = corpus_fit.Looked(
        np.ones(300, np.int32), np.ones(300, np.float32), np.ones(300, np.float32), right
    )
    fitted = corpus_fit.doubt(looked, 2)
    assert abs(fitted[0] - 2) < 0.2 and fitted[1] == 4.0


def folder_of(path: pathlib.Path, target: pathlib.Path, seeds: list[int], **about: Any) -> Any:
    samples = []
    for seed in seeds:
        documents, texts = documents_of(seed, 30)
        for number, text in enumerate(texts):
            mask = documents.mask[documents.starts[number] : documents.starts[number + 1]]
            samples.append(data.Sample(f"{seed}/{number}", text, mask))
    about = {"tokenizer": fingerprint.tokenizer(target)} | about
    data.write(path, samples, about, shard_tokens=150)
    return path


@pytest.fixture
def target(tmp_path: pathlib.Path) -> pathlib.Path:
    return tiny.make_folder(tmp_path / "target")


def config(target: pathlib.Path, *folders: Any, **changes: Any) -> Any:
    out = corpus_smollm2.get_config().unlock()
    out.target, out.data, out.orders = str(target), tuple(map(str, folders)), ORDERS
    out.update({"held_out": 0.2, "megabytes": 0.01, **changes})
    return out


def test_a_run_leaves_a_table_that_loads(target: Any, tmp_path: pathlib.Path) -> None:
    one = folder_of(tmp_path / "a", target, [0, 1])
    two = folder_of(tmp_path / "b", target, [2])
    assert build_corpus.run(config(target, one, two), tmp_path / "out") == []
    table = corpus_table.load(
        tmp_path / "out" / "table", vocab_size=chats.load(str(target)).target.vocab_size,
        tokenizer=fingerprint.tokenizer(target),
    )  # fmt: skip
    assert table.orders == ORDERS and len(table.keys) > 50
    assert table.about["held_out"] == 0.2 and (tmp_path / "out" / "results.json").exists()
    whole = sum(data.read_manifest(folder)["supervised"] for folder in (one, two))
    assert 0.6 * whole < table.about["tokens"] < whole, "held-out documents are not counted"


def test_a_killed_run_goes_on(target: Any, tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    """With the shards that were not counted yet; the table is that of one run."""
    folder = folder_of(tmp_path / "a", target, [0, 1])
    build_corpus.run(config(target, folder), tmp_path / "whole")
    right = corpus_counts.Parts.add

    def killed(self: Any, number: int, documents: Any) -> None:
        if number == 2:
            raise KeyboardInterrupt
        right(self, number, documents)

    monkeypatch.setattr(corpus_counts.Parts, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        build_corpus.run(config(target, folder), tmp_path / "out")
    monkeypatch.setattr(corpus_counts.Parts, "add", right)
    capsys.readouterr()
    build_corpus.run(config(target, folder), tmp_path / "out")
    assert "counted 1 of" not in capsys.readouterr().err
    names = "table/model.safetensors", "table/config.json"
    for name in names:
        whole, ours = (tmp_path / run / name for run in ("whole", "out"))
        assert whole.read_bytes() == ours.read_bytes()


def test_a_run_killed_while_it_counts_leaves_nothing(
    target: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    folder = folder_of(tmp_path / "a", target, [0])
    unfinished = tmp_path / "out" / "counts" / ".part-x"
    (unfinished / "whole").mkdir(parents=True)
    build_corpus.run(config(target, folder), tmp_path / "out")
    assert not unfinished.exists()


def test_a_second_run_in_a_workdir_is_refused(target: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """While the first one is at work; it removes nothing of that one's, which goes on."""
    folder, right = folder_of(tmp_path / "a", target, [0]), corpus_counts.Parts.add
    message = rf"another run is building a table in {re.escape(str(tmp_path / 'out'))}: wait for"

    def meanwhile(self: Any, number: int, documents: Any) -> None:
        with pytest.raises(RuntimeError, match=message):
            build_corpus.run(config(target, folder), tmp_path / "out")
        right(self, number, documents)

    monkeypatch.setattr(corpus_counts.Parts, "add", meanwhile)
    build_corpus.run(config(target, folder), tmp_path / "out")
    build_corpus.run(config(target, folder), tmp_path / "out")  # the lock is gone with the run


def test_a_shard_of_one_document(target: Any, tmp_path: pathlib.Path) -> None:
    """Is counted whole; another one is measured with."""
    _, texts = documents_of(0, 4)
    samples = [data.Sample(str(n), text, np.arange(len(text)) > 0) for n, text in enumerate(texts)]
    first = sum(map(len, texts[:3]))
    about = {"tokenizer": fingerprint.tokenizer(target)}
    manifest = data.write(tmp_path / "a", samples, about, shard_tokens=first)
    assert [shard["documents"] for shard in manifest["shards"]] == [3, 1]
    build_corpus.run(config(target, tmp_path / "a"), tmp_path / "out")


@pytest.mark.parametrize("documents", [1, 2])
def test_nothing_is_held_out_of_a_single_conversation(
    documents: int, target: Any, tmp_path: pathlib.Path, capsys: Any
) -> None:
    """The table is made all the same; what wasn't measured is None, not a number."""
    _, texts = documents_of(0, documents)
    samples = [
        data.Sample(str(n), text, np.arange(len(text)) > 0, continues=n > 0)
        for n, text in enumerate(texts)
    ]
    data.write(tmp_path / "a", samples, {"tokenizer": fingerprint.tokenizer(target)})
    build_corpus.run(config(target, tmp_path / "a"), tmp_path / "out")
    assert "Nothing was measured, and doubt is a guess" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [row["context"] for row in rows] == ["1", "2", "3", "all"]
    assert all(row["share"] is None and row["right"] is None for row in rows)
    assert corpus_table.is_table(tmp_path / "out" / "table")


def test_counts_of_another_run_are_refused(target: Any, tmp_path: pathlib.Path) -> None:
    folder = folder_of(tmp_path / "a", target, [0])
    build_corpus.run(config(target, folder), tmp_path / "out")
    with pytest.raises(ValueError, match="holds counts of another run: seed was 0 and is 1 now"):
        build_corpus.run(config(target, folder, seed=1), tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"orders": 0}, "config.orders=0; it must be an integer of at least 1"),
        ({"orders": 9}, "config.orders=9; it must be 1 to 8"),
        ({"ranks": 17}, "config.ranks=17; it must be 1 to 16"),
        ({"megabytes": 0.0}, "config.megabytes=0.0; it must be a number above 0"),
        ({"megabytes": "4"}, "config.megabytes='4'; it must be a number above 0, at most 4096"),
        ({"megabytes": None}, "config.megabytes=None; it must be a number"),
        ({"megabytes": True}, "config.megabytes=True; it must be a number"),
        ({"held_out": ".2"}, "config.held_out='.2'; it must be a share between 0 and 1"),
        ({"data": 5}, "config.data=5; it must be names of folders of token shards"),
        ({"data": None}, "config.data=None; it must be names of folders"),
        ({"data": ("a", 5)}, r"config.data=\('a', 5\); it must be names of folders"),
        ({"target": None}, "config.target=None; it must be a folder, a hub id or 'smollm2'"),
        ({"held_out": 1.0}, "config.held_out=1.0; it must be a share"),
        ({"data": ()}, "config.data is empty; name folders of token shards"),
        ({"min_count": 99}, r"no context is left \(min_count=99"),
    ],
)
def test_bad_settings(changes: dict, message: str, target: Any, tmp_path: pathlib.Path) -> None:
    folder = folder_of(tmp_path / "a", target, [0])
    with pytest.raises(ValueError, match=message):
        build_corpus.run({**config(target, folder)} | changes, tmp_path / "out")
    assert not (tmp_path / "out" / "table").exists()


@pytest.mark.parametrize("text", ["{", "3", "[" * 100_000])
def test_a_damaged_file_of_counts_is_named(text: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "about.json").write_text(text)
    message = rf"about.json is damaged \(.*\): remove {re.escape(str(tmp_path))} to count again"
    with pytest.raises(ValueError, match=message):
        corpus_counts.Parts(tmp_path, {}, ORDERS)


@pytest.mark.parametrize("token", [-1, 70_000])
def test_tokens_the_target_lacks(token: int, target: Any, tmp_path: pathlib.Path) -> None:
    """Both would fit a table: as other tokens, or as none."""
    samples = [data.Sample(str(n), [1, 2, token if n else 3], [0, 1, 1]) for n in range(4)]
    about = {"tokenizer": fingerprint.tokenizer(target)}
    data.write(tmp_path / "a", samples, about, shard_tokens=6)
    most = loading.read_config(target).vocab_size - 1
    message = (
        rf"a/shard-00000.safetensors holds token {token}, and the target's go from 0 to {most}"
    )
    with pytest.raises(ValueError, match=message):
        build_corpus.run(config(target, tmp_path / "a"), tmp_path / "out")
    assert not list((tmp_path / "out").glob("counts/part-*"))


def test_text_of_another_tokenizer(target: Any, tmp_path: pathlib.Path) -> None:
    folder = folder_of(tmp_path / "a", target, [0], tokenizer="abc")
    with pytest.raises(ValueError, match=r"tokens of another tokenizer \(fingerprint abc, the tar"):
        build_corpus.run(config(target, folder), tmp_path / "out")
