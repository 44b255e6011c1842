"""The ways of decoding that are compared: plain, look-ups, a draft model, heads, some in turn.

A further one is an entry of ``MAKERS``, and its name in config.modes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import specjax
from eval import chat as chats
from eval.chat import Chat
from eval.synthetic import synthetic
from specjax import AdaptiveParams, Sampling, policies, verify
from specjax.draft import Drafter
from specjax.drafters import (
    CorpusTable,
    DraftModelParams,
    check_same_tokenizer,
    corpus,
    corpus_params,
    corpus_table,
    draft_model,
    eagle,
    eagle_params,
    first_of,
    learn_each,
    medusa,
    medusa_params,
    ngram,
    past_outputs,
    remember,
    suffix,
)
from specjax.generate import Learn
from specjax.heads import EagleConfig, MedusaConfig, formats
from specjax.models import ModelConfig, fingerprint, students
from specjax.target import Target
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


class Head(NamedTuple):
    """A head as ``heads.formats.load`` gives it.

    Attributes:
      config: what it is made of.
      weights: its parameters.
      ids: int32 ``[Vd]``, its draft vocabulary.
    """

    config: formats.HeadConfig
    weights: Any
    ids: Any

    @property
    def mode(self) -> str:
        """Its name in ``HEADS``."""
        return next(name for name, kind in HEADS.items() if isinstance(self.config, kind.config))

    @property
    def default_k(self) -> int:
        """Draft tokens a round where nobody says how many."""
        heads = self.config.num_heads if isinstance(self.config, MedusaConfig) else 3
        return min(3, heads)

    def params(self, target_params: Any) -> Any:
        """Its drafter's parameters."""
        return HEADS[self.mode].params(self.config, self.weights, self.ids, target_params)

    def drafter(self, k: int, **thresholds: float) -> Drafter:
        """The drafter of k tokens a round."""
        return HEADS[self.mode].drafter(self.config, k, **thresholds)

    def drafting(self, k: int, target_params: Any) -> Drafting:
        """The drafter of always k tokens a round, and its parameters."""
        return Drafting(self.drafter(k), self.params(target_params), always_k=True)


class Models(NamedTuple):
    """What a run's modes are made of.

    Attributes:
      target: the target.
      draft: the draft model and its parameters; None: a copy of the target.
      heads: the heads that modes ask for, by their names in ``HEADS``.
      corpus: the corpus table.
      prepared: parameters on the device, by mode, for all the drafters that are made of them.
    """

    target: Chat
    draft: tuple[Target, Any] | None = None
    heads: Mapping[str, Head] = {}
    corpus: CorpusTable | None = None
    prepared: dict[str, Any] | None = None

    def params(self, name: str, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, made once."""
        if self.prepared is None:
            return make()
        if name not in self.prepared:
            self.prepared[name] = make()
        return self.prepared[name]


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


def _flat(parts: Sequence[Drafting]) -> tuple[Drafting, ...]:
    return tuple(one for part in parts for one in part.parts or (part,))


def _adaptive(settings: Settings, models: Models, temperature: float) -> Drafting:
    parts = [MAKERS[name](settings, models, temperature) for name in settings.adaptive.modes]
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
    return Drafting(drafter, params, _learn_inside(parts), parts=_flat(parts))


def _heuristic(settings: Settings, models: Models, temperature: float) -> Drafting:
    """Those that ``adaptive`` chooses among, by the schedule that others use."""
    parts = [MAKERS[name](settings, models, temperature) for name in settings.adaptive.modes]
    drafter = specjax.adaptive(*(part.drafter for part in parts), policy=policies.heuristic())
    params = AdaptiveParams(tuple(part.params for part in parts))
    return Drafting(drafter, params, _learn_inside(parts), parts=_flat(parts))


def _learn_inside(parts: Sequence[Drafting]) -> Learn | None:
    if not any(part.learn for part in parts):
        return None
    each = learn_each(*(part.learn for part in parts))
    return lambda params, tokens: params._replace(drafters=each(params.drafters, tokens))


class HeadKind(NamedTuple):
    """A kind of head: the class of its configuration, its drafter, and what that takes."""

    config: type
    drafter: Callable[..., Drafter]
    params: Callable[[Any, Any, Any, Any], Any]


# Each is a mode, and has settings of that name.
HEADS = {
    "eagle": HeadKind(EagleConfig, eagle, eagle_params),
    "medusa": HeadKind(MedusaConfig, medusa, medusa_params),
}

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
    "adaptive": _adaptive,
    "heuristic": _heuristic,
}


def load(settings: Settings, dtype: Any) -> Models:
    """Loads what a run's modes need.

    Args:
      settings: the run's.
      dtype: of weights.

    Raises:
      ValueError: a model or a head that can't be used, or that doesn't fit the target; names it.
    """
    target = chats.load(settings.target, dtype)
    draft = None
    if settings.draft and "draft_model" in settings.drafting:
        draft = load_draft(settings.draft, target, dtype)
    heads = {}
    for name in HEADS:
        if name in settings.drafting:
            folder = getattr(settings, name).folder
            heads[name] = head = load_head(folder, target.config)
            if head.mode != name:
                raise ValueError(
                    f"config.{name}.folder={folder!r} holds a head of another kind: give it as "
                    f"config.{head.mode}.folder, and name the mode {head.mode!r}"
                )
    table = None
    if "corpus" in settings.drafting:
        table = load_corpus(settings.corpus.folder, target)
    return Models(target, draft, heads, table, prepared={})


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


def load_corpus(folder: str, target: Chat) -> CorpusTable:
    """A corpus table of the target's tokenizer.

    Raises:
      ValueError: it can't be used, or is of another tokenizer; says why.
    """
    tokenizer = fingerprint.tokenizer(chats.find(target.name))
    return corpus_table.load(folder, vocab_size=target.target.vocab_size, tokenizer=tokenizer)


def load_draft(name: str, target: Chat, dtype: Any = None) -> tuple[Target, Any]:
    """A draft model, and its parameters as ``draft_model`` takes them.

    Args:
      name: a folder or a hub id of a whole model, or the folder of a distilled one
        (``models.students``), which borrows of the target.
      target: the target.
      dtype: of a whole model's weights; None: the device's.

    Raises:
      ValueError: it can't be used, or doesn't belong to the target; says why.
    """
    if students.is_student(name):
        model, params, ids = students.load(name, target.params, target.config)
        return model, DraftModelParams(params, ids)
    draft = chats.load(name, dtype)
    check_pair(target, draft)
    return draft.target, draft.params


def check_pair(target: Chat, draft: Chat) -> None:
    """Checks that a draft model speaks the target's tokens.

    Raises:
      ValueError: it does not; names the first id that differs.
    """
    check_same_tokenizer(target.tokenizer.get_vocab(), draft.tokenizer.get_vocab())


def load_head(folder: str, target: ModelConfig) -> Head:
    """Loads a head, of whichever kind it is.

    Raises:
      ValueError: one that can't be used, or that doesn't fit the target; names it.
    """
    head = Head(*formats.load(folder))
    check_head(folder, head.config, int(head.ids[-1]), target)
    return head


def check_head(folder: str, head: formats.HeadConfig, last_id: int, target: ModelConfig) -> None:
    """Checks that a head was trained for a target of this shape.

    Args:
      folder: the head's, for the message.
      head: its configuration.
      last_id: the largest id it drafts.
      target: the target's configuration.

    Raises:
      ValueError: it was not.
    """
    if head.target_width != target.width:
        problem = f"reads streams of width {head.target_width}, and the target's are {target.width}"
    elif max(head.layers) > target.num_layers:
        problem = f"reads layer {max(head.layers)}, and the target has {target.num_layers}"
    elif last_id >= target.vocab_size:
        problem = f"drafts token {last_id}, and the target has {target.vocab_size} of them"
    else:
        return
    raise ValueError(f"{folder} holds a head of another model: it {problem}")


def sampling_of(temperature: float) -> Sampling | None:
    """What ``specjax.sample`` wants for a temperature; 0 is greedy."""
    return Sampling(temperature=temperature) if temperature else None


def _rule(settings: Settings, temperature: float, name: str) -> Verifier:
    if settings.synthetic_alpha is not None and name != PLAIN:
        return synthetic(settings.synthetic_alpha, greedy=temperature == 0)
    return verify.BY_NAME[settings.verifier] if temperature else verify.greedy
