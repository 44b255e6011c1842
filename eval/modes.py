"""The ways of decoding that are compared: plain, look-ups, a draft model, heads, some in turn.

A further one is an entry of ``MAKERS``, and its name in config.modes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import specjax
from eval import controller_cost
from eval.models import HEADS, Models
from eval.synthetic import synthetic
from specjax import AdaptiveParams, Sampling, policies, verify
from specjax.by_cost import by_cost
from specjax.draft import Drafter
from specjax.drafters import (
    corpus,
    corpus_params,
    draft_model,
    first_of,
    learn_each,
    ngram,
    past_outputs,
    remember,
    suffix,
)
from specjax.generate import Learn
from specjax.verify import Verifier

if TYPE_CHECKING:
    from eval.settings import Settings  # which knows the names of MAKERS


@dataclasses.dataclass(eq=False)
class Mode:
    """One way to decode.

    Attributes:
      name: out of ``MAKERS``.
      temperature: 0 is greedy.
      verifier: the rule.
      drafter: what guesses; None for plain decoding.
      drafter_params: its parameters; of one that learns they change from prompt to prompt.
      learn: what it makes of a finished output: ``(drafter_params, tokens) -> drafter_params``.
      always_k: it drafts k tokens every round, whatever it finds.
      parts: of a drafter made of several, each (``Drafter.parts``) and its parameters.
      is_copy: the draft model is the target once more: a check, and no speed-up.
    """

    name: str
    temperature: float
    verifier: Verifier
    drafter: Drafter | None = None
    drafter_params: Any = dataclasses.field(default=None, repr=False)
    learn: Learn | None = None
    always_k: bool = False
    parts: tuple[Drafting, ...] = dataclasses.field(default=(), repr=False)
    is_copy: bool = False

    @property
    def greedy(self) -> bool:
        """Whether it takes the most probable token."""
        return self.temperature == 0

    @property
    def alone(self) -> list[Mode]:
        """Its drafters, each as a mode of its own: one where it isn't made of several."""
        if self.drafter is None or not self.parts:
            return [self] if self.drafter else []
        none = {"parts": (), "learn": None}
        return [
            dataclasses.replace(self, drafter=part.drafter, drafter_params=part.params, **none)
            for part in self.parts
        ]

    @property
    def k(self) -> int:
        """Most draft tokens a round; 0 for plain decoding."""
        return self.drafter.num_nodes if self.drafter else 0

    @property
    def label(self) -> str:
        """What tables, charts and messages call it."""
        if self.drafter is None:
            return self.name
        # "draft model (llama)": the model is named above the tables.
        title = "target as draft" if self.is_copy else re.sub(r" \([^)]*\)", "", self.drafter.name)
        text = f"{title} k={self.k}" + (" (check)" if self.is_copy else "")
        return text if self.verifier.lossless else f"{text}, {self.verifier.name}, NOT LOSSLESS"

    def arguments(self, key: Any) -> dict[str, Any]:
        """What ``specjax.sample`` needs for it."""
        return {
            "drafter": self.drafter,
            "drafter_params": self.drafter_params,
            "verifier": self.verifier,
            "sampling": sampling_of(self.temperature),
            "key": key,
        }


class Drafting(NamedTuple):
    """What sets a mode apart; see ``Mode``."""

    drafter: Drafter | None = None
    params: Any = None
    learn: Learn | None = None
    always_k: bool = False
    parts: tuple[Drafting, ...] = ()
    is_copy: bool = False


def _lookup(name: str, settings: Settings, models: Models, temperature: float) -> Drafting:
    del models, temperature
    s = getattr(settings, name)
    lookup = ngram(s.k, n_max=s.n_max, n_min=s.n_min, k_short=s.k_short, match=s.match)
    return Drafting(lookup)


def _draft_model(settings: Settings, models: Models, temperature: float) -> Drafting:
    del temperature
    if models.draft is None:  # whose drafts are all right
        drafter = draft_model(models.target.target, settings.k)
        return Drafting(drafter, models.target.params, always_k=True, is_copy=True)
    model, params = models.draft
    min_prob = settings.draft_min_prob
    if not min_prob:
        return Drafting(draft_model(model, settings.k), params, always_k=True)
    return Drafting(draft_model(model, settings.k, min_prob=min_prob), params)


def _head(name: str, settings: Settings, models: Models, temperature: float) -> Drafting:
    del temperature
    s, head = getattr(settings, name), models.heads[name]
    params = models.params(name, lambda: head.params(models.target.params))
    given = {"min_prob": s.min_prob, "max_entropy": s.max_entropy}
    thresholds = {name: value for name, value in given.items() if value}  # 0: none
    return Drafting(head.drafter(s.k, **thresholds), params, always_k=not thresholds)


def _corpus(settings: Settings, models: Models, temperature: float) -> Drafting:
    s = settings.corpus
    limits = {"min_prob": s.min_prob, "min_first": s.min_first, "min_count": s.min_count}
    drafter = corpus(s.k, sampled=s.sampled and temperature > 0, **limits)
    return Drafting(drafter, models.params("corpus", lambda: corpus_params(models.corpus)))


def _suffix(settings: Settings, models: Models, temperature: float) -> Drafting:
    del models, temperature
    s = settings.suffix
    limits = {"n_max": s.n_max, "n_min": s.n_min, "growth": s.growth or None}
    drafter = suffix(s.k, min_prob=s.min_prob, **limits)
    return Drafting(drafter, past_outputs(s.capacity), remember)


def _first_of(settings: Settings, models: Models, temperature: float) -> Drafting:
    s = settings.first_of
    lookup = dataclasses.replace(settings.ngram, n_min=s.n_min)
    table = dataclasses.replace(settings.corpus, min_first=s.min_first)
    settings = dataclasses.replace(settings, ngram=lookup, corpus=table)
    parts = [MAKERS[name](settings, models, temperature) for name in s.modes]
    drafters = [part.drafter for part in parts]

    learn = learn_each(*(part.learn for part in parts)) if any(p.learn for p in parts) else None
    drafter, params = first_of(*drafters), tuple(part.params for part in parts)
    return Drafting(drafter, params, learn, parts=_flat(parts))


def _lookups(settings: Settings, models: Models, temperature: float) -> Drafting:
    """Those of ``first_of`` that run no network, each with the thresholds it has alone."""
    own = dataclasses.replace(
        settings.first_of, modes=settings.first_of.lookups, n_min=settings.ngram.n_min,
        min_first=settings.corpus.min_first,
    )  # fmt: skip
    return _first_of(dataclasses.replace(settings, first_of=own), models, temperature)


def _flat(parts: Sequence[Drafting]) -> tuple[Drafting, ...]:
    return tuple(one for part in parts for one in part.parts or (part,))


def _adaptive(settings: Settings, models: Models, temperature: float) -> Drafting:
    parts = _asked_in_turn(settings, models, temperature)
    # Calibrated greedily, whatever the temperature: a rule takes little of a round.
    drafter, params = specjax.adapt(
        models.target.target,
        models.target.params,
        [part.drafter for part in parts],
        [part.params for part in parts],
        acceptance=settings.adaptive.acceptance,
        fresh=settings.adaptive.fresh,
        progress=lambda what: print(f"calibrating, {what}", flush=True),
    )
    print(_overhead(params.costs, len(parts)), flush=True)
    return Drafting(drafter, params, _learn_inside(parts), parts=parts)


def _overhead(costs: Any, drafters: int) -> str:
    """What adaptive decoding takes of a plain round, in words."""
    plain_s, fresh_s = float(costs.target[0, 0]), float(costs.draft[0, 0])
    deciding_s = controller_cost.seconds(by_cost(), costs, 1, rounds=300)
    return (
        f"of a plain round ({1e3 * plain_s:.3g} ms), keeping the states of {drafters} drafters "
        f"fresh takes {fresh_s / plain_s:.1%}, deciding {deciding_s / plain_s:.2%}"
    )


def _heuristic(settings: Settings, models: Models, temperature: float) -> Drafting:
    """Those that ``adaptive`` asks, by the schedule that others use."""
    parts = _asked_in_turn(settings, models, temperature)
    drafter = specjax.adaptive(*(part.drafter for part in parts), policy=policies.heuristic())
    params = AdaptiveParams(tuple(part.params for part in parts))
    return Drafting(drafter, params, _learn_inside(parts), parts=parts)


def _asked_in_turn(settings: Settings, models: Models, temperature: float) -> tuple[Drafting, ...]:
    """Those of config.adaptive, one by one, so that each has a limit of its own."""
    return _flat([MAKERS[name](settings, models, temperature) for name in settings.adaptive.modes])


def _learn_inside(parts: Sequence[Drafting]) -> Learn | None:
    if not any(part.learn for part in parts):
        return None
    each = learn_each(*(part.learn for part in parts))
    return lambda params, tokens: params._replace(drafters=each(params.drafters, tokens))


PLAIN = "plain"
MAKERS: dict[str, Callable[[Settings, Models, float], Drafting]] = {
    PLAIN: lambda settings, models, temperature: Drafting(),
    "prompt_lookup": partial(_lookup, "ngram"),
    "short_lookup": partial(_lookup, "short_lookup"),
    "draft_model": _draft_model,
    **{name: partial(_head, name) for name in HEADS},
    "corpus": _corpus,
    "suffix": _suffix,
    "first_of": _first_of,
    "lookups": _lookups,
    "adaptive": _adaptive,
    "heuristic": _heuristic,
}


def make(settings: Settings, models: Models) -> list[Mode]:
    """The modes of a run: by temperature, in the settings' order, plain decoding first.

    A copy of the target is only decoded with greedily, where its drafts must all be accepted: a
    check, which takes as long as a measurement.
    """
    names, greedy_too = sorted(settings.modes, key=lambda n: n != PLAIN), 0 in settings.temperatures
    modes = []
    for temperature in settings.temperatures:
        for name in names:
            if temperature and greedy_too and name in settings.greedy_alone:
                continue
            drafting = MAKERS[name](settings, models, temperature)
            if not (drafting.is_copy and temperature and greedy_too):
                rule = _rule(settings, temperature, name)
                modes.append(Mode(name, temperature, rule, *drafting))
    return modes


def sampling_of(temperature: float) -> Sampling | None:
    """What ``specjax.sample`` wants for a temperature; 0 is greedy."""
    return Sampling(temperature=temperature) if temperature else None


def _rule(settings: Settings, temperature: float, name: str) -> Verifier:
    if settings.synthetic_alpha is not None and name != PLAIN:
        return synthetic(settings.synthetic_alpha, greedy=temperature == 0)
    if temperature == 0:
        return verify.greedy
    rule = verify.BY_NAME[settings.verifier]
    # Plain decoding drafts nothing, so a rule that loses something has nothing to lose there.
    return verify.token if name == PLAIN and not rule.lossless else rule
