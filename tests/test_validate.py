"""Bad input gets a ValueError with the value and the fix."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Sampling, testing, validate, verify
from specjax.drafters import draft_model, ngram

VOCAB = 16
TARGET, TABLE = testing.scripted_target(VOCAB), testing.scripted_table(0, VOCAB)
KEY = jax.random.key(0)


def sample(prompts: Any = ((1, 2),), *, target: Any = TARGET, **arguments: Any) -> Any:
    return specjax.sample(target, TABLE, prompts, **{"max_new_tokens": 3, **arguments})


def sampled(**settings: Any) -> dict:
    return dict(sampling=Sampling(**settings), key=KEY)


BAD: dict[str, tuple[dict, str]] = {
    "empty batch": (dict(prompts=[]), r"prompts of shape \(0,\).*B at least 1"),
    "empty batch of arrays": (dict(prompts=np.zeros((0, 3), int)), r"shape \(0, 3\).*B at least 1"),
    "one prompt, not a batch": (dict(prompts=np.array([1, 2, 3])), r"shape \(3,\).*must be \[B, P\]"),
    "empty prompt": (dict(prompts=[[1], []]), "prompt 1 has length 0.*BOS or EOS"),
    "only an empty prompt": (dict(prompts=[[]]), "prompt 0 has length 0.*BOS or EOS"),
    "length 0": (dict(prompts=np.ones((2, 3), int), prompt_lengths=[3, 0]), "prompt 1 has length 0; it must be at least 1"),
    "length beyond": (dict(prompts=np.ones((2, 3), int), prompt_lengths=[4, 3]), "prompt 0 has length 4; .*at most 3"),
    "negative length": (dict(prompts=np.ones((1, 3), int), prompt_lengths=[-1]), "prompt 0 has length -1"),
    "lengths of another batch": (dict(prompts=np.ones((2, 3), int), prompt_lengths=[3]), r"prompt_lengths of shape \(1,\).*\[2\]"),
    "lengths that are no integers": (dict(prompts=np.ones((1, 3), int), prompt_lengths=[2.0]), "dtype float64.*integers"),
    "floats": (dict(prompts=[[1.5, 2.0]]), "dtype float64; they must be integers"),
    "text": (dict(prompts=["hello"]), "must be integers"),
    "id too large": (dict(prompts=[[1, 2], [3, 16]]), "prompt 1 holds id 16 at position 1; ids must be 0 to 15"),
    "negative id": (dict(prompts=[[1, -2]]), "prompt 0 holds id -2 at position 1"),
    "huge id": (dict(prompts=np.array([[2**40]])), f"holds id {2**40}"),
    "budget 0": (dict(max_new_tokens=0), "max_new_tokens=0; it must be at least 1"),
    "negative budget": (dict(max_new_tokens=-4), "max_new_tokens=-4; it must be at least 1"),
    "fractional budget": (dict(max_new_tokens=2.5), "max_new_tokens=2.5; it must be an int"),
    "budget True": (dict(max_new_tokens=True), "max_new_tokens=True; it must be an int"),
    "buffer too small": (dict(max_length=4), "max_length=4 can't hold 2 prompt tokens, 3 new tokens.*at least 5"),
    "prompt longer than the buffer": (dict(prompts=[[1] * 9], max_length=8), "max_length=8 can't hold 9 prompt tokens.*at least 12"),
    "no room for drafts": (dict(max_length=8, drafter=ngram(4)), "max_length=8 can't hold .* 4 draft slots.*at least 9"),
    "negative temperature": (sampled(temperature=-0.5), "temperature=-0.5; it must be at least 0"),
    "nan temperature": (sampled(temperature=np.nan), "temperature=nan"),
    "infinite temperature": (sampled(temperature=np.inf), "temperature=inf; it must be at least 0 and finite"),
    "top_k 0": (sampled(temperature=1.0, top_k=0), "top_k=0; it must be at least 1"),
    "top_k -1": (sampled(temperature=1.0, top_k=-1), "top_k=-1; it must be at least 1"),
    "fractional top_k": (sampled(temperature=1.0, top_k=2.5), "top_k=2.5; it must be an integer"),
    "top_p 0": (sampled(temperature=1.0, top_p=0.0), r"top_p=0.0; it must be in \(0, 1\]"),
    "top_p above 1": (sampled(temperature=1.0, top_p=1.5), r"top_p=1.5; it must be in \(0, 1\]"),
    "nan top_p": (sampled(temperature=1.0, top_p=np.nan), r"top_p=nan"),
    "min_p above 1": (sampled(temperature=1.0, min_p=1.1), r"min_p=1.1; it must be in \[0, 1\]"),
    "negative min_p": (sampled(temperature=1.0, min_p=-0.1), r"min_p=-0.1"),
    "one bad row": (sampled(temperature=[1.0, -1.0]) | dict(prompts=[[1], [2]]), "temperature=.*-1.0.*at least 0"),
    "settings of another batch": (sampled(temperature=[1.0, 1.0, 1.0]), r"temperature has shape \(3,\); it must be \[\] or \[1\]"),
    "top_k without temperature": (dict(sampling=Sampling(top_k=4)), "top_k without a temperature above 0.*drop the filter"),
    "top_p, min_p, temperature 0": (dict(sampling=Sampling(temperature=0, top_p=0.9, min_p=0.1)), "top_p, min_p without a temperature"),
    "no key": (dict(sampling=Sampling(temperature=1.0)), r"key=None with a temperature above 0; pass key=jax.random.key\(seed\)"),
    "key of another batch": (dict(sampling=Sampling(temperature=1.0), key=jax.random.split(KEY, 3)), r"key has shape \(3,\); it must be \[\] or \[1\]"),
    "raw key": (dict(sampling=Sampling(temperature=1.0), key=jnp.zeros(2, jnp.uint32)), r"must be a typed key, jax.random.key\(seed\)"),
    "seed for a key": (dict(sampling=Sampling(temperature=1.0), key=3), "key=3; it must be a typed key"),
    "rbg key": (dict(sampling=Sampling(temperature=1.0), key=jax.random.key(0, impl="rbg")), "rbg key; only threefry2x32"),
    "greedy verifier, sampling": (sampled(temperature=1.0) | dict(verifier=verify.greedy), "verifier 'greedy' does not go with a temperature.*verify.block"),
    "token verifier, greedy": (dict(verifier=verify.token), "verifier 'token' does not go with greedy decoding; use verify.greedy"),
    "match verifier, greedy": (dict(verifier=verify.match), "verifier 'match' does not go with greedy decoding"),
    "drafter_params that are no arrays": (dict(drafter=draft_model(TARGET), drafter_params={"a": object()}), r"drafter_params\['a'\] is a object; it must be an array"),
    "drafter_params by name": (dict(drafter=draft_model(TARGET), drafter_params="eagle3"), "drafter_params is a str; it must be an array"),
    "drafter_params alone": (dict(drafter_params=TABLE), "drafter_params without a drafter"),
    "eos too large": (dict(eos_ids=(3, 16)), "eos_ids holds 16; ids must be 0 to 15"),
    "negative eos": (dict(eos_ids=(-1,)), "eos_ids holds -1"),
    "an eos, not a sequence": (dict(eos_ids=2), "eos_ids=2; they must be a sequence of ids"),
    "fractional eos": (dict(eos_ids=(2.0,)), "must be a sequence of ids"),
    "widths without the last": (dict(drafter=ngram(4), widths=(1, 3)), r"widths=\(1, 3\); they must ascend.*N \+ 1 = 5"),
    "widths that descend": (dict(drafter=ngram(4), widths=(3, 1, 5)), "they must ascend"),
    "widths from 0": (dict(drafter=ngram(4), widths=(0, 5)), "they must ascend from at least 1"),
    "one width": (dict(drafter=ngram(4), widths=5), "widths=5; it must be a sequence of ints"),
    "no dtype": (dict(dtype="nope"), "dtype='nope'; it must be of floating point"),
    "huge budget": (dict(max_new_tokens=2**31), "max_new_tokens=2147483648; it must be at most 2147483647"),
    "no widths": (dict(drafter=ngram(4), widths=()), r"widths=\(\)"),
    "no rollback": (dict(target=TARGET._replace(rollback=None)), "'scripted' has no rollback; its cache must be able to forget"),
    "a flat list": (dict(prompts=[1, 2, 3]), r"\[B, P\]|list of lists"),
    "not a target": (dict(target=lambda x: x), "specjax.Target"),
    "verifier by name": (dict(verifier="token"), "verifier='token'; it must be a Verifier"),
    "drafter by name": (dict(drafter="ngram"), "drafter='ngram'; it must be a Drafter"),
    "top_k too large for int32": (sampled(temperature=1.0, top_k=2**32), "top_k"),
    "temperature too large for float32": (sampled(temperature=1e39), "temperature"),
    "top_p too small for float32": (sampled(temperature=1.0, top_p=1e-50), "top_p"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(what: str) -> None:
    """Also F17: a target that can't roll back fails before decoding."""
    arguments, words = BAD[what]
    with pytest.raises(ValueError, match=words) as error:
        sample(**arguments)
    assert str(error.value).count("\n") == 0, "one sentence"


@pytest.mark.parametrize("what", ["empty prompt", "budget 0", "no key", "no rollback"])
def test_stream_checks_the_same(what: str) -> None:
    arguments, words = BAD[what]
    arguments = {"prompts": [[1, 2]], "target": TARGET, "max_new_tokens": 3, **arguments}
    target, prompts = arguments.pop("target"), arguments.pop("prompts")
    with pytest.raises(ValueError, match=words):
        next(specjax.stream(target, TABLE, prompts, **arguments))


def test_budgets_may_be_numpy_integers() -> None:
    out = sample(max_new_tokens=np.int64(3))
    assert out.lengths.tolist() == [3]


# --- what is legal ---


def test_prompts_come_in_many_forms() -> None:
    """Lists, tuples, numpy of any integer type, jax; padding past a length may hold anything."""
    want = sample([[1, 2, 3], [4, 5]]).tokens.tolist()
    padded = np.array([[1, 2, 3], [4, 5, -9]])
    forms = [
        dict(prompts=((1, 2, 3), (4, 5))),
        dict(prompts=[np.array([1, 2, 3]), np.array([4, 5])]),
        dict(prompts=padded, prompt_lengths=[3, 2]),
        dict(prompts=padded.astype(np.int64), prompt_lengths=np.array([3, 2])),
        dict(prompts=jnp.asarray(padded), prompt_lengths=jnp.array([3, 2])),
        dict(prompts=np.array([[1, 2, 3], [4, 5, 9]], np.uint8), prompt_lengths=(3, 2)),
    ]
    for form in forms:
        assert sample(**form).tokens.tolist() == want


def test_settings_become_arrays_of_the_batch() -> None:
    got = validate.sampling(Sampling(temperature=0.5, top_k=np.int64(4), top_p=[0.5, 1.0]), 2)
    assert got.temperature.tolist() == [0.5, 0.5]
    assert got.top_k.tolist() == [4, 4]
    assert got.top_k.dtype == jnp.int32
    assert got.top_p.dtype == jnp.float32
    assert got.min_p is None
    assert validate.sampling(Sampling(temperature=[0, 0]), 2) == Sampling()
    assert validate.sampling(Sampling(temperature=[0, 1]), 2).temperature.tolist() == [0, 1]


def test_the_caller_s_settings_are_left_alone() -> None:
    """F79."""
    settings = Sampling(temperature=0.5, top_k=3)
    sample(sampling=settings, key=KEY, drafter=draft_model(TARGET, 2), drafter_params=TABLE)
    assert settings == Sampling(temperature=0.5, top_k=3)


def test_checks_come_before_any_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(*arguments: Any, **options: Any) -> tuple:
        raise AssertionError("traced")

    broken = partial(sample, target=TARGET._replace(apply=apply))
    for what in ("id too large", "budget 0", "negative temperature", "no widths"):
        arguments, words = BAD[what]
        with pytest.raises(ValueError, match=words):
            broken(**arguments)


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        (-1, "rounds=-1; it must be at least 0"),
        (1.5, "rounds=1.5"),
        (2**31, "rounds=2147483648; it"),
    ],
)
def test_rounds_are_counted_in_int32(rounds: Any, words: str) -> None:
    run = specjax.start(TARGET, TABLE, [[1, 2]], max_new_tokens=3)
    with pytest.raises(ValueError, match=words):
        specjax.decode(run, rounds=rounds)
