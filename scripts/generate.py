"""Answers a prompt with a chat model, streamed, speculatively.

  python -m scripts.generate --prompt="Why is the sky blue?"
      [--target=smollm2|FOLDER|HUB_ID] [--drafter=ngram|none|FOLDER|HUB_ID] [--k=10]
      [--temperature=0.8] [--verifier=block|token|match|coupled|typical] [--max_new_tokens=256]
      [--seed=0] [--times]

The answer goes to stdout, all else to stderr. The drafter changes the speed, not what is said: at
temperature 0 the answer is the same with --drafter=none, above it answers follow the same law. With
--verifier=typical alone they don't.
"""

from __future__ import annotations

import pathlib
import sys
import time
from typing import TYPE_CHECKING, Any

_BEGUN = time.perf_counter()  # before the imports, which take a second

from absl import app, flags, logging  # noqa: E402

if TYPE_CHECKING:
    from eval.chat import Chat
    from specjax.verify import Verifier


class Watch:
    """Notes when each step of the way to the first token ended."""

    def __init__(self, begun: float) -> None:
        self.last, self._begun, self.steps = begun, begun, {}

    def step(self, name: str) -> None:
        """Books the time since the last step under a name."""
        now = time.perf_counter()
        self.steps[name], self.last = now - self.last, now

    @property
    def total(self) -> float:
        """Seconds from the beginning to the last step."""
        return self.last - self._begun


def run(
    prompt: str,
    *,
    target: str = "smollm2",
    drafter: str = "ngram",
    k: int | None = None,
    temperature: float = 0.0,
    verifier: str | None = None,
    max_new_tokens: int = 256,
    seed: int = 0,
    times: bool = False,
    begun: float | None = None,
) -> str:
    """Streams an answer to stdout and its figures to stderr; returns the answer.

    Args:
      prompt: what to ask.
      target: a folder, a hub id, or "smollm2", the default model.
      drafter: "ngram", "none", a draft model's folder or hub id, or the folder of a head or of a
        corpus table.
      k: draft tokens a round.
      temperature: 0 takes the most probable token.
      verifier: the rule above temperature 0, of ``verify.BY_NAME``; by default "block".
      max_new_tokens: most tokens of the answer.
      seed: of the noise.
      times: say where the time up to the first token went.
      begun: when the process began, by ``time.perf_counter``; by default now.

    Raises:
      ValueError: a value that can't be used; names it and the fix.
    """
    if not prompt or not prompt.strip():
        raise ValueError('--prompt is empty; ask something, such as --prompt="Why is it dark?"')
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise ValueError(f"--prompt={prompt!r} isn't UTF-8; write it in UTF-8") from None
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed={seed}; it must be 0 to 2**32 - 1")
    watch = Watch(time.perf_counter() if begun is None else begun)

    import jax

    import specjax
    from eval import chat as chats
    from specjax import device

    watch.step("imports")
    rule = _rule(verifier, temperature)
    device.check_accelerator()
    device.enable_compilation_cache()
    print(device.describe(), file=sys.stderr, flush=True)
    chat = chats.load(target)
    how = _drafter(drafter, k, chat)
    ids = chat.encode([prompt])
    room = chat.config.max_positions - len(ids)
    if max_new_tokens > room:
        fix = f"give --max_new_tokens={room} at most, or a" if room > 0 else "give a"
        raise ValueError(
            f"--prompt takes {len(ids)} tokens and --max_new_tokens={max_new_tokens} as many more, "
            f"but {target} takes {chat.config.max_positions} in all; {fix} shorter prompt"
        )
    watch.step("model and tokenizer")
    bursts = specjax.stream(
        chat.target,
        chat.params,
        [ids],
        max_new_tokens=max_new_tokens,
        sampling=specjax.Sampling(temperature=temperature),
        verifier=rule,
        eos_ids=chat.eos_ids,
        key=jax.random.key(seed),
        **how,
    )
    tokens: list[int] = []
    rounds, first, shown = 0, 0, ""
    for rows in bursts:
        tokens += rows[0]
        text = chat.decode(tokens)
        # What the tokenizer makes of half a character waits for the other half.
        complete = text.rstrip("\ufffd")
        print(complete[len(shown) :], end="", flush=True)
        shown = complete
        rounds += 1
        if rounds == 1:
            first = len(tokens)
            watch.step("compilation, prefill and first round")
    elapsed = time.perf_counter() - watch.last
    print(text[len(shown) :], flush=True)
    _report(len(tokens), first, rounds, elapsed, watch, times)
    return text


def _rule(name: str | None, temperature: float) -> Verifier | None:
    """The verifier; None: the default. Warns of one that is lossy."""
    from specjax import verify
    from specjax.verify import lossy

    if name is None:
        return None
    rules = {known: rule for known, rule in verify.BY_NAME.items() if not rule.greedy}
    if name not in rules:
        raise ValueError(f"--verifier={name}; choose from {', '.join(rules)}")
    if temperature == 0:
        raise ValueError(
            f"--verifier={name} samples, and --temperature=0 takes the most probable token; give a "
            "temperature above 0, or no verifier"
        )
    warning = lossy.warning(rules[name])
    if warning:
        print(warning, file=sys.stderr, flush=True)
    return rules[name]


def _drafter(name: str, k: int | None, chat: Chat) -> dict[str, Any]:
    """The drafter as arguments of ``specjax.stream``."""
    from eval import models
    from specjax.drafters import corpus, corpus_params, corpus_table, draft_model, ngram
    from specjax.heads import formats

    if name == "none":
        return {}
    if name == "ngram":
        k = 10 if k is None else k
        return {"drafter": ngram(k, n_max=8, n_min=2, k_short=min(4, k))}
    if "/" not in name and not pathlib.Path(name).is_dir():
        raise ValueError(f"--drafter={name}: give ngram, none, a folder or a hub id (owner/name)")
    if corpus_table.is_table(name):
        drafter = corpus(4 if k is None else k)
        return {"drafter": drafter, "drafter_params": corpus_params(models.load_corpus(name, chat))}
    if formats.is_head(name):
        head = models.load_head(name, chat.config)
        drafter = head.drafter(head.default_k if k is None else k)
        return {"drafter": drafter, "drafter_params": head.params(chat.params)}
    model, params = models.load_draft(name, chat)
    drafter = draft_model(model, 5 if k is None else k)
    return {"drafter": drafter, "drafter_params": params}


def _report(
    tokens: int, first: int, rounds: int, elapsed: float, watch: Watch, times: bool
) -> None:
    speed = f"{(tokens - first) / elapsed:.1f} tokens per second, " if tokens > first else ""
    words = f"{tokens} tokens in {rounds} target passes"
    print(f"\n[{speed}{words}: {tokens / rounds:.2f} tokens per pass]", file=sys.stderr)
    print(f"[first token {watch.total:.1f} s after the start]", file=sys.stderr)
    if times:
        for name, seconds in watch.steps.items():
            print(f"  {name}: {seconds:.1f} s", file=sys.stderr)


def _define_flags() -> None:
    """Defines the flags: here and not at import, where they would clash with other scripts'."""
    flags.DEFINE_string("prompt", None, "What to ask.")
    flags.DEFINE_string("target", "smollm2", "The default model, a folder, or a hub id.")
    flags.DEFINE_string(
        "drafter",
        "ngram",
        "ngram, none, a draft model's folder or hub id, a head's or a corpus table's folder.",
    )
    flags.DEFINE_integer(
        "k",
        None,
        "Draft tokens a round; by default 10, a draft model's 5, a table's 4, a head's 3.",
    )
    flags.DEFINE_float("temperature", 0.0, "0 takes the most probable token.")
    flags.DEFINE_string(
        "verifier",
        None,
        "Above temperature 0: block (the default), token, match, coupled, or typical, a lossy one.",
    )
    flags.DEFINE_integer("max_new_tokens", 256, "Most tokens of the answer.")
    flags.DEFINE_integer("seed", 0, "Of the noise, at a temperature above 0.")
    flags.DEFINE_boolean("times", False, "Say where the time up to the first token went.")


def _parse(argv: list[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)
        if rest[1:]:
            raise flags.Error(f'unexpected argument {rest[1]!r}; write --prompt="..."')
        if flags.FLAGS.prompt is None:
            raise flags.Error('--prompt is missing; such as --prompt="Why is the sky blue?"')
    except flags.Error as error:
        _fail(f"{error}; --help lists the flags", 2)
    return rest


def _fail(message: str, code: int) -> None:
    print(f"generate: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def main(argv: list[str]) -> None:
    """Answers the prompt of the flags."""
    del argv
    names = (
        "prompt", "target", "drafter", "k", "temperature", "verifier", "max_new_tokens", "seed",
        "times",
    )  # fmt: skip
    values = {name: flags.FLAGS[name].value for name in names}
    try:
        run(begun=_BEGUN, **values)
    except ValueError as error:
        _fail(str(error), 2)
    except (RuntimeError, OSError) as error:
        _fail(str(error), 1)


if __name__ == "__main__":
    _define_flags()
    logging.set_verbosity(logging.WARNING)  # INFO would show jax's search for backends
    app.run(main, flags_parser=_parse)
