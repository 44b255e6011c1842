"""The public call: what a row's output depends on, what recompiles, what is donated, streaming."""

import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, keys, loop, testing, verify
from specjax.drafters import draft_model, ngram
from specjax.models.linear import PANEL_ROWS
from tests import support

VOCAB, K = 16, 3
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB, scale=1.0)
CLOSE = TABLE + testing.scripted_table(1, VOCAB, scale=0.5)  # a draft model that is often right
PROMPTS = [[3], [1, 2, 1, 2, 1], [5, 6, 7, 5, 6, 9, 8, 5, 6]]


# --- importing ---


def test_the_function_and_the_module_share_a_name() -> None:
    from specjax import sample

    assert callable(sample)
    import specjax.sample as also

    assert also is sample
    assert sample is specjax.sample


IMPORTS = """
import sys
import specjax.sample
from specjax import sample
import specjax.drafters, specjax.verify, specjax.testing, specjax.theory, specjax.stats
assert callable(sample) and callable(specjax.sample) and sample is specjax.sample
for name in ("ml_collections", "transformers", "torch", "orbax", "optax"):
    assert name not in sys.modules, name
"""


def test_importing_is_light() -> None:
    """In a process of its own: these tests import what the library must not."""
    subprocess.run([sys.executable, "-W", "error", "-c", IMPORTS], check=True)


# --- what the output is ---


def test_greedy_output_is_plain_greedy_for_every_drafter_and_k() -> None:
    """Ragged prompts in one batch, one truth computed without caches."""
    want = [support.plain_greedy(TABLE, prompt, 24) for prompt in PROMPTS]
    drafters: list[tuple[Any, Any]] = [
        (None, None),
        (ngram(1), None),
        (ngram(5), None),
        (draft_model(TARGET, 3), CLOSE),
        (testing.oracle(4), jnp.zeros((3, 128), jnp.int32)),
    ]
    for drafter, params in drafters:
        out = specjax.sample(
            TARGET, TABLE, PROMPTS, drafter=drafter, drafter_params=params, max_new_tokens=24
        )
        assert out.tokens.tolist() == want
        assert out.tokens.dtype == out.lengths.dtype == out.finish_reason.dtype == jnp.int32
        assert out.lengths.tolist() == out.stats.emitted.tolist() == [24] * 3


def test_pad_id_fills_the_rest() -> None:
    eos = support.plain_greedy(TABLE, PROMPTS[0], 1)
    for pad in (0, -1, 99):
        out = specjax.sample(TARGET, TABLE, PROMPTS, max_new_tokens=24, eos_ids=eos, pad_id=pad)
        assert out.lengths[0] == 1
        assert out.tokens[0].tolist() == eos + [pad] * 23


SAMPLED = dict(
    drafter=draft_model(TARGET, K),
    drafter_params=CLOSE,
    max_new_tokens=20,
    sampling=Sampling(temperature=0.8, top_p=0.95),
)
ROW_KEYS = keys.row_keys(jax.random.key(5), 3)


@pytest.fixture(scope="module")
def together() -> specjax.SampleOutput:
    return specjax.sample(TARGET, TABLE, PROMPTS, key=ROW_KEYS, **SAMPLED)


def same_row(out: specjax.SampleOutput, row: int, want: specjax.SampleOutput, as_row: int) -> None:
    """Tokens and the row's counters."""
    np.testing.assert_array_equal(out.tokens[row], want.tokens[as_row])
    for ours, theirs in zip(out.stats[:5], want.stats[:5], strict=True):
        np.testing.assert_array_equal(ours[row], theirs[as_row])


def test_one_key_stands_for_a_key_a_row(together: specjax.SampleOutput) -> None:
    out = specjax.sample(TARGET, TABLE, PROMPTS, key=jax.random.key(5), **SAMPLED)
    for row in range(3):
        same_row(out, row, together, row)


def test_the_same_key_gives_the_same_output_and_another_does_not(
    together: specjax.SampleOutput,
) -> None:
    """F57, F75: three calls, and other calls in between."""
    for _ in range(2):
        out = specjax.sample(TARGET, TABLE, PROMPTS, key=ROW_KEYS, **SAMPLED)
        for ours, theirs in zip(jax.tree.leaves(out), jax.tree.leaves(together), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        other = specjax.sample(TARGET, TABLE, PROMPTS, key=jax.random.key(6), **SAMPLED)
        assert np.all(np.any(np.asarray(other.tokens) != np.asarray(together.tokens), 1))


def test_a_row_does_not_depend_on_its_neighbours(together: specjax.SampleOutput) -> None:
    """F57, F63: other places, other neighbours, alone; drafts of other lengths next to it."""
    order = np.array([2, 0, 1])
    out = specjax.sample(TARGET, TABLE, [PROMPTS[i] for i in order], key=ROW_KEYS[order], **SAMPLED)
    for row, was in enumerate(order):
        same_row(out, row, together, was)
    others = [[7, 7], PROMPTS[1], [2, 4, 6]]
    out = specjax.sample(TARGET, TABLE, others, key=ROW_KEYS, **SAMPLED, eos_ids=())
    same_row(out, 1, together, 1)
    for row in range(3):
        alone = specjax.sample(
            TARGET, TABLE, [PROMPTS[row]], key=ROW_KEYS[row : row + 1], **SAMPLED
        )
        same_row(alone, 0, together, row)


def test_a_row_does_not_depend_on_padding_buffer_or_widths(together: specjax.SampleOutput) -> None:
    padded = np.full((3, 30), 11)
    for row, prompt in enumerate(PROMPTS):
        padded[row, : len(prompt)] = prompt
    lengths = [len(prompt) for prompt in PROMPTS]
    changes: list[dict] = [
        dict(prompts=padded, prompt_lengths=lengths),
        dict(max_length=9 + 20 + K),
        dict(widths=(K + 1,)),
    ]
    for change in changes:
        prompts = change.pop("prompts", PROMPTS)
        out = specjax.sample(TARGET, TABLE, prompts, key=ROW_KEYS, **SAMPLED, **change)
        for row in range(3):
            same_row(out, row, together, row)


def test_rows_keep_to_themselves_when_one_ends_early(together: specjax.SampleOutput) -> None:
    """F29, F68: the same rows next to one that stops after its first token."""
    eos = int(together.tokens[0, 0])
    out = specjax.sample(TARGET, TABLE, PROMPTS, key=ROW_KEYS, eos_ids=(eos,), **SAMPLED)
    assert out.lengths[0] == 1
    for row in (1, 2):
        n = int(out.lengths[row])
        np.testing.assert_array_equal(out.tokens[row, :n], together.tokens[row, :n])
        assert n == 20 or together.tokens[row, n - 1] == eos


def test_rows_of_temperature_0_and_1_in_one_batch() -> None:
    """F54: with -inf logits; the greedy row is plain greedy, under every rule that samples."""
    table = TABLE.at[:, 2::3].set(-jnp.inf)
    for rule in (verify.token, verify.match):
        out = specjax.sample(
            TARGET,
            table,
            PROMPTS,
            drafter=draft_model(TARGET, K),
            drafter_params=CLOSE,
            max_new_tokens=20,
            sampling=Sampling(temperature=[0.0, 1.0, 0.0]),
            verifier=rule,
            key=jax.random.key(0),
        )
        for row in (0, 2):
            assert out.tokens[row].tolist() == support.plain_greedy(table, PROMPTS[row], 20)
        assert out.tokens[1].tolist() != support.plain_greedy(table, PROMPTS[1], 20)
        assert not np.any(np.asarray(out.tokens) % 3 == 2)


def test_every_setting_is_honoured() -> None:
    """F43: the strictest value of each filter is greedy; a looser one stays in its set."""
    decode = partial(
        specjax.sample, TARGET, TABLE, PROMPTS, drafter=draft_model(TARGET, K),
        drafter_params=CLOSE, max_new_tokens=20, key=jax.random.key(0),
    )  # fmt: skip
    greedy = [support.plain_greedy(TABLE, prompt, 20) for prompt in PROMPTS]
    for name, strict, loose in (("top_k", 1, 3), ("top_p", 1e-6, 0.6), ("min_p", 1.0, 0.3)):
        settings = Sampling(temperature=3.0, top_k=VOCAB, top_p=1.0, min_p=0.0)
        settings = settings._replace(**{name: strict})  # one program for all
        assert decode(sampling=settings).tokens.tolist() == greedy, name
        out = decode(sampling=settings._replace(**{name: loose}))
        assert out.tokens.tolist() != greedy
        for row, prompt in enumerate(PROMPTS):
            tokens = out.tokens[row].tolist()
            prefixes = [prompt + tokens[:i] for i in range(20)]
            for prefix, token in zip(prefixes, tokens, strict=True):
                law = support.warp(support.logits_after(TABLE, prefix), 3.0, **{name: loose})
                assert law[token] > 0, name


# --- compiling ---


def compiled() -> tuple[int, int]:
    return loop.prefilled._cache_size(), loop.decode_state._cache_size()


def test_one_compile_a_bucket_and_none_for_new_values() -> None:
    """F70, F71: everything that may change without a new shape is dynamic."""
    target = TARGET._replace(name="counted")  # programs of its own
    params = dict(drafter=draft_model(target, K), drafter_params=CLOSE)
    calls: list[dict] = [
        dict(prompts=[[1, 2, 3, 4, 5]]),
        dict(prompts=[[5, 4, 3, 2, 1, 0]]),
        dict(prompts=[[1, 1, 1, 1, 1, 1, 1]]),
        dict(prompts=np.arange(8, dtype=np.int64)[None]),
        dict(temperature=0.3),
        dict(temperature=np.float64(1.7)),
        dict(temperature=jnp.float32(2)),
        dict(temperature=2),
        dict(temperature=[1.5]),
        dict(top_p=0.5),
        dict(top_p=[1]),
        dict(key=jax.random.key(9)),
        dict(key=jax.random.split(jax.random.key(9), 1)),
        dict(params=CLOSE, drafter_params=TABLE),
        dict(eos_ids=(5,)),
        dict(eos_ids=[6]),
        dict(max_new_tokens=3),
        dict(max_new_tokens=90),
        dict(pad_id=4),
        dict(drafter=draft_model(target, K)),
    ]
    before, seen = compiled(), set()
    for call in calls:
        sampling = Sampling(temperature=call.pop("temperature", 1.0), top_p=call.pop("top_p", 0.9))
        given: dict = {
            **params,
            **dict(sampling=sampling, key=jax.random.key(0), eos_ids=(4,), max_new_tokens=12),
            **call,
        }
        weights, prompts = given.pop("params", TABLE), given.pop("prompts", [[1, 2, 3, 4, 5]])
        out = specjax.sample(target, weights, prompts, **given)
        seen.add(tuple(out.stats.accepted.sum(0).tolist()))
        assert tuple(np.subtract(compiled(), before)) == (1, 1), call
    assert len(seen) > 5, "acceptance varied"
    specjax.sample(target, TABLE, [[1]], **params, sampling=Sampling(1.0, top_p=0.9),
                   key=jax.random.key(0), eos_ids=(4,), max_new_tokens=200)  # fmt: skip
    assert tuple(np.subtract(compiled(), before)) == (2, 2), "another bucket"


def test_streaming_and_splitting_compile_nothing_more() -> None:
    arguments = dict(drafter=ngram(2), max_new_tokens=6)
    specjax.sample(TARGET, TABLE, PROMPTS, **arguments)
    before = compiled()
    list(specjax.stream(TARGET, TABLE, PROMPTS, **arguments))
    specjax.decode(specjax.start(TARGET, TABLE, PROMPTS, **arguments), rounds=2)
    assert compiled() == before


def test_with_64_bit_types_on_nothing_widens() -> None:
    """F70: int32 carries stay, a second call compiles nothing, the output is the same."""
    case = dict(
        drafter=draft_model(TARGET, K),
        drafter_params=CLOSE,
        max_new_tokens=9,
        sampling=Sampling(temperature=0.8, top_k=9, top_p=0.9, min_p=0.02),
        key=jax.random.key(1),
        eos_ids=(3,),
    )
    want = specjax.sample(TARGET, TABLE, PROMPTS, **case)
    with jax.enable_x64(True):
        out = specjax.sample(TARGET, TABLE, PROMPTS, **case)
        before = compiled()
        run = specjax.decode(specjax.start(TARGET, TABLE, PROMPTS, **case))
        assert compiled() == before
    for leaf in jax.tree.leaves((out, run.state, run.request._replace(keys=()))):
        assert leaf.dtype in (jnp.int32, jnp.float32), leaf.dtype
    np.testing.assert_array_equal(out.tokens, want.tokens)


# --- donation ---


def test_the_caller_s_arrays_outlive_the_call() -> None:
    """Also where one array is passed twice: as parameters of target and drafter."""
    table = jnp.array(TABLE)
    arrays = dict(
        prompts=jnp.array([[1, 2, 3], [4, 5, 6]]),
        prompt_lengths=jnp.array([3, 2]),
        key=jax.random.split(jax.random.key(0), 2),
        temperature=jnp.array([0.5, 1.0]),
        top_k=jnp.array([3, 4]),
        eos_ids=jnp.array([3]),
    )
    before = {
        name: np.array(jax.random.key_data(x) if name == "key" else x) for name, x in arrays.items()
    }
    for _ in range(2):
        specjax.sample(
            TARGET,
            table,
            arrays["prompts"],
            prompt_lengths=arrays["prompt_lengths"],
            drafter=draft_model(TARGET, K),
            drafter_params=table,
            max_new_tokens=5,
            sampling=Sampling(temperature=arrays["temperature"], top_k=arrays["top_k"]),
            key=arrays["key"],
            eos_ids=arrays["eos_ids"],
        )
    for name, array in arrays.items():
        assert not array.is_deleted(), name
        now = jax.random.key_data(array) if name == "key" else array
        np.testing.assert_array_equal(now, before[name])
    assert not table.is_deleted()
    np.testing.assert_array_equal(table, TABLE)


def test_a_run_s_state_is_donated_and_the_rest_is_not() -> None:
    run = specjax.start(TARGET, TABLE, PROMPTS, max_new_tokens=6)
    after = specjax.decode(run, rounds=1)
    assert run.state.cache.tokens.is_deleted(), "the cache is reused in place"
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((run.params, run.request)))
    assert jax.tree.map(jnp.shape, after.state.cache) == jax.tree.map(jnp.shape, run.state.cache)


def test_the_output_of_an_unfinished_run_outlives_it() -> None:
    run = specjax.decode(specjax.start(TARGET, TABLE, PROMPTS, max_new_tokens=6), rounds=2)
    out = specjax.finish(run, max_new_tokens=6)
    specjax.decode(run)
    assert out.lengths.tolist() == [2, 2, 2]
    assert out.finish_reason.tolist() == [0, 0, 0]
    assert out.stats.rounds.tolist() == [2, 2, 2]


# --- in pieces ---


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_stream_yields_the_tokens_of_sample(temperature: float) -> None:
    """Round by round, EOS and all; nothing after a row's end."""
    arguments: dict[str, Any] = dict(
        drafter=draft_model(TARGET, K),
        drafter_params=CLOSE,
        max_new_tokens=20,
        sampling=Sampling(temperature=temperature),
        key=jax.random.key(2),
        eos_ids=(4,),
    )
    out = specjax.sample(TARGET, TABLE, PROMPTS, **arguments)
    pieces = list(specjax.stream(TARGET, TABLE, PROMPTS, **arguments))
    assert len(pieces) == int(out.stats.rounds.max())
    for row in range(3):
        tokens = [token for piece in pieces for token in piece[row]]
        assert tokens == out.tokens[row, : out.lengths[row]].tolist()
        sizes = [len(piece[row]) for piece in pieces]
        rounds = int(out.stats.rounds[row])
        assert all(1 <= size <= K + 1 for size in sizes[:rounds])
        assert not any(sizes[rounds:])
    assert any(len(piece[0]) > 1 for piece in pieces), "bursts"
    assert all(type(token) is int for piece in pieces for row in piece for token in row)


def test_decoding_in_pieces_is_decoding_at_once() -> None:
    start = partial(
        specjax.start,
        TARGET,
        TABLE,
        PROMPTS,
        drafter=draft_model(TARGET, K),
        drafter_params=CLOSE,
        max_new_tokens=20,
        sampling=Sampling(temperature=0.8),
        key=jax.random.key(2),
        eos_ids=(4,),
    )
    whole = specjax.finish(specjax.decode(start()), max_new_tokens=20)
    for piece in (1, 2, 5):
        run = start()
        while not np.all(run.state.done):
            run = specjax.decode(run, rounds=piece)
        out = specjax.finish(run, max_new_tokens=20)
        for ours, theirs in zip(jax.tree.leaves(out), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_no_rounds_change_nothing() -> None:
    run = specjax.start(TARGET, TABLE, PROMPTS, max_new_tokens=6)
    before = support.copied(run.state)
    after = support.copied(specjax.decode(run, rounds=0).state)
    for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- buffers ---


def test_buffers_come_in_powers_of_two() -> None:
    for budget, slots in ((1, 128), (115, 128), (116, 128), (117, 256), (250, 512)):
        run = specjax.start(TARGET, TABLE, PROMPTS, max_new_tokens=budget, drafter=ngram(K))
        assert run.state.tokens.shape[1] == slots, budget
        assert run.state.cache.tokens.shape == (3, slots)


def test_caches_take_the_dtype_of_the_matrices_or_the_one_asked_for() -> None:
    seen: list[Any] = []

    def init_cache(batch: int, capacity: int, dtype: Any) -> Any:
        seen.append(dtype)
        return TARGET.init_cache(batch, capacity, dtype)

    target = TARGET._replace(init_cache=init_cache)
    specjax.start(target, TABLE.astype(jnp.bfloat16), PROMPTS, max_new_tokens=2)
    specjax.start(target, TABLE, PROMPTS, max_new_tokens=2)
    specjax.start(target, TABLE, PROMPTS, max_new_tokens=2, dtype="bfloat16")
    assert seen == [jnp.bfloat16, jnp.float32, jnp.bfloat16]


def test_the_cheap_width_is_the_models() -> None:
    assert loop.CHEAP_WIDTH == PANEL_ROWS
