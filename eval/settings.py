"""The settings of ``eval.speedup``: what a config may hold, and the checks on it."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

from eval import results
from eval.chat import BUILTIN_MODEL
from eval.mode_settings import (
    AdaptiveSettings,
    CorpusSettings,
    FirstOfSettings,
    HeadSettings,
    NgramSettings,
    SuffixSettings,
)
from eval.models import HEADS
from eval.modes import MAKERS, PLAIN
from specjax import verify
from specjax.verify import lossy

_SAMPLING = {name: rule for name, rule in verify.BY_NAME.items() if not rule.greedy}
VERIFIERS = tuple(name for name, rule in _SAMPLING.items() if rule.lossless)
ASKING = ("adaptive", "heuristic")  # modes that ask those of config.adaptive in turn
DTYPES = ("", "float32", "bfloat16", "float16")
_OF_MODES: dict[str, type] = {
    **dict.fromkeys(("ngram", "short_lookup"), NgramSettings),
    **dict.fromkeys(HEADS, HeadSettings),
    "corpus": CorpusSettings,
    "suffix": SuffixSettings,
    "first_of": FirstOfSettings,
    "adaptive": AdaptiveSettings,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything a run of ``eval.speedup`` depends on, besides the machine.

    Attributes:
      target: a folder, a hub id, or "smollm2": the default model.
      draft: the same for the draft model; "": a second copy of the target, a check and no speed-up.
      modes: names out of ``modes.MAKERS``; "plain" is what the others are compared with.
      temperatures: 0 is greedy.
      sampled_modes: the drafting modes that are measured above temperature 0, to save time; all
        where the modes hold none of them.
      verifier: the rule above temperature 0, out of ``VERIFIERS``, or "typical", which is lossy.
      k: most draft tokens of the draft model.
      draft_min_prob: how probable its drafts must stay to go on; 0: always k tokens.
      ngram: prompt lookup.
      short_lookup: prompt lookup once more, for matches so short that it only speaks in
        ``first_of``, after all others.
      eagle: the EAGLE head.
      medusa: the Medusa heads.
      corpus: the corpus table.
      suffix: suffix decoding.
      first_of: drafters in turn.
      adaptive: drafting by measured cost.
      max_new_tokens: budget of a prompt.
      repeats: measurements of a prompt and mode.
      article_new_tokens: budget of the two article prompts.
      article_repeats: their repeats.
      sampled_per_category: prompts of a category measured at temperatures above 0; 0: all.
      copy_prompts: prompts the copy of the target is measured on; it checks, so few are enough.
      prompts: a prompt file; "": the built-in set.
      turns: turns of a prompt that are played, each with the model's own greedy answers before it.
      seed: of the noise and of the bootstrap.
      dtype: of weights and caches; "": the device's (float32 on CPU, else bfloat16).
      synthetic_alpha: accept each draft token with this probability, whatever it is: for timing
        only, not lossless. None: verify.
    """

    target: str
    draft: str
    modes: tuple[str, ...]
    temperatures: tuple[float, ...]
    sampled_modes: tuple[str, ...]
    verifier: str
    k: int
    draft_min_prob: float
    ngram: NgramSettings
    short_lookup: NgramSettings
    eagle: HeadSettings
    medusa: HeadSettings
    corpus: CorpusSettings
    suffix: SuffixSettings
    first_of: FirstOfSettings
    adaptive: AdaptiveSettings
    max_new_tokens: int
    repeats: int
    article_new_tokens: int
    article_repeats: int
    sampled_per_category: int
    copy_prompts: int
    prompts: str
    turns: int
    seed: int
    dtype: str
    synthetic_alpha: float | None

    @property
    def greedy_alone(self) -> set[str]:
        """The modes that are measured at temperature 0 alone."""
        sampled = set(self.sampled_modes) & set(self.modes)
        return set(self.modes) - sampled - {PLAIN} if sampled else set()

    @property
    def drafting(self) -> set[str]:
        """The modes that are decoded in, and those whose drafters they use."""
        names = set(self.modes)
        names |= set(self.adaptive.modes) if names & set(ASKING) else set()
        names |= set(self.first_of.lookups) if "lookups" in names else set()
        return names | (set(self.first_of.modes) if "first_of" in names else set())


def read(config: Mapping[str, Any]) -> Settings:
    """Settings from a config (any mapping; an ``ml_collections.ConfigDict`` at the command line).

    Warns, on stderr, of a verifier that is lossy.

    Raises:
      ValueError: an unknown or missing key, or a value out of range; names it and the fix.
    """
    values = results.fields(Settings, config)
    for name, kind in _OF_MODES.items():
        own = results.fields(kind, values[name], f"{name}.")
        if "modes" in own:
            own["modes"] = _words(own["modes"])
        values[name] = kind(**own)
    for name in ("modes", "sampled_modes"):
        values[name] = _words(values[name])
    values["temperatures"] = tuple(map(float, _listed(values["temperatures"], "temperatures")))
    settings = Settings(**values)
    _check(settings)
    warning = lossy.warning(_SAMPLING[settings.verifier])
    if warning:
        print(warning, file=sys.stderr, flush=True)
    return settings


def _listed(value: Any, name: str) -> tuple:
    if isinstance(value, list | tuple):
        return tuple(value)
    raise ValueError(f"config.{name}={value!r}; it must be a tuple, such as (0.0, 1.0)")


def _words(value: Any) -> tuple[str, ...]:
    """Names, also where the command line gave them as one text with commas."""
    parts = [value] if isinstance(value, str) else value
    return tuple(word.strip() for part in parts for word in str(part).split(",") if word.strip())


def _check(s: Settings) -> None:
    for name in ("modes", "sampled_modes"):
        for mode in getattr(s, name):
            if mode not in MAKERS:
                raise ValueError(f"config.{name} holds {mode!r}; choose from {', '.join(MAKERS)}")
    if PLAIN not in s.modes or len(set(s.modes)) != len(s.modes):
        raise ValueError(f"config.modes={s.modes}; name each once, and plain: speed-ups need it")
    for name in (*HEADS, "corpus"):
        if name in s.drafting and not getattr(s, name).folder:
            what = "table" if name == "corpus" else "head"
            raise ValueError(
                f"a mode of the config asks for {name!r}: give the {what}'s folder, "
                f"config.{name}.folder"
            )
    if not s.temperatures or len(set(s.temperatures)) != len(s.temperatures):
        raise ValueError(f"config.temperatures={s.temperatures}; name at least one, each once")
    for temperature in s.temperatures:
        if not (temperature >= 0 and math.isfinite(temperature)):
            raise ValueError(f"config.temperatures holds {temperature}; 0 (greedy) or more, finite")
    if s.verifier not in _SAMPLING:
        raise ValueError(f"config.verifier={s.verifier!r}; choose from {', '.join(_SAMPLING)}")
    for name in (
        "k", "max_new_tokens", "repeats", "turns", "copy_prompts", "article_new_tokens",
        "article_repeats",
    ):  # fmt: skip
        results.at_least(1, **{name: getattr(s, name)})
    results.at_least(0, sampled_per_category=s.sampled_per_category, seed=s.seed)
    results.share(draft_min_prob=s.draft_min_prob)
    for name in _OF_MODES:
        getattr(s, name).check(name)
    _check_first_of(s)
    _check_parts(s, "adaptive", (PLAIN, *ASKING))
    if s.dtype not in DTYPES:
        raise ValueError(f"config.dtype={s.dtype!r}; choose from {', '.join(DTYPES[1:])}, or ''")
    if not s.target:
        raise ValueError(f"config.target is empty; a folder, a hub id or {BUILTIN_MODEL!r}")
    if s.synthetic_alpha is not None and not 0 <= s.synthetic_alpha <= 1:
        raise ValueError(f"config.synthetic_alpha={s.synthetic_alpha}; it must be 0 to 1")


def _check_first_of(s: Settings) -> None:
    _check_parts(s, "first_of", (PLAIN, "first_of", "lookups", *ASKING))
    if "lookups" in s.drafting and not s.first_of.lookups:
        raise ValueError(
            f"the mode 'lookups' takes those of config.first_of.modes={s.first_of.modes} that run "
            "no network, and there are none; name some"
        )
    if s.first_of.n_min > s.ngram.n_max:
        raise ValueError(
            f"config.first_of.n_min={s.first_of.n_min} is above config.ngram.n_max="
            f"{s.ngram.n_max}; prompt lookup would never speak"
        )


def _check_parts(s: Settings, kind: str, others: tuple[str, ...]) -> None:
    """The modes that one mode is made of."""
    modes, names = getattr(s, kind).modes, tuple(name for name in MAKERS if name not in others)
    for name in modes:
        if name not in names:
            raise ValueError(f"config.{kind}.modes holds {name!r}; choose from {', '.join(names)}")
    asks = ASKING if kind == "adaptive" else (kind,)
    if s.drafting & set(asks) and "draft_model" in modes and not s.draft:
        raise ValueError(
            f"config.{kind}.modes holds 'draft_model', but config.draft is empty, and a copy of "
            "the target is no drafter: give config.draft"
        )
    if not modes or len(set(modes)) != len(modes):
        raise ValueError(f"config.{kind}.modes={modes}; name some of {', '.join(names)}, each once")
