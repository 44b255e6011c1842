"""The ways of decoding that are compared: plain, prompt lookup, draft model."""

from __future__ import annotations

import dataclasses
from typing import Any

from eval.chat import Chat
from eval.settings import Settings
from eval.synthetic import synthetic
from specjax import Sampling, verify
from specjax.draft import Drafter
from specjax.drafters import check_same_tokenizer, draft_model, ngram
from specjax.target import Target
from specjax.verify import Verifier


@dataclasses.dataclass(frozen=True, eq=False)
class Mode:
    """One way to decode.

    Attributes:
      name: out of ``settings.MODES``.
      temperature: 0 is greedy.
      verifier: the rule.
      drafter: what guesses; None for plain decoding.
      drafter_params: its parameters.
      model: the draft model, where there is one.
      is_copy: the draft model is the target once more.
    """

    name: str
    temperature: float
    verifier: Verifier
    drafter: Drafter | None = None
    drafter_params: Any = dataclasses.field(default=None, repr=False)
    model: Target | None = None
    is_copy: bool = False

    @property
    def greedy(self) -> bool:
        """Whether it takes the most probable token."""
        return self.temperature == 0

    @property
    def k(self) -> int:
        """Most draft tokens a round; 0 for plain decoding."""
        return self.drafter.num_nodes if self.drafter else 0

    @property
    def label(self) -> str:
        """What a table calls it."""
        if self.drafter is None:
            return "plain"
        copy = " = copy of the target" if self.is_copy else ""
        return f"{self.name.replace('_', ' ')} k={self.k}{copy}"

    def arguments(self, key: Any) -> dict[str, Any]:
        """What ``specjax.sample`` needs for it."""
        return {
            "drafter": self.drafter,
            "drafter_params": self.drafter_params,
            "verifier": self.verifier,
            "sampling": None if self.greedy else Sampling(temperature=self.temperature),
            "key": key,
        }


def make(settings: Settings, target: Chat, draft: Chat | None) -> list[Mode]:
    """The modes of a run, greedy ones first where 0 is the first temperature.

    Args:
      settings: the run's.
      target: the target.
      draft: the draft model; None: a copy of the target.
    """
    modes, names = [], sorted(settings.modes, key=lambda name: name != "plain")  # plain first
    for temperature in settings.temperatures:
        rule = _rule(settings, temperature)
        for name in names:
            if name == "plain":
                exact = _rule(dataclasses.replace(settings, synthetic_alpha=None), temperature)
                modes.append(Mode(name, temperature, exact))
            elif name == "prompt_lookup":
                modes.append(Mode(name, temperature, rule, _lookup(settings)))
            else:
                model = draft or target
                drafter = draft_model(model.target, settings.k)
                arguments = drafter, model.params, model.target, draft is None
                modes.append(Mode(name, temperature, rule, *arguments))
    return modes


def check_pair(target: Chat, draft: Chat) -> None:
    """Checks that a draft model speaks the target's tokens.

    Raises:
      ValueError: it does not; names the first id that differs.
    """
    check_same_tokenizer(target.tokenizer.get_vocab(), draft.tokenizer.get_vocab())


def _rule(settings: Settings, temperature: float) -> Verifier:
    if settings.synthetic_alpha is not None:
        return synthetic(settings.synthetic_alpha, greedy=temperature == 0)
    return verify.BY_NAME[settings.verifier] if temperature else verify.greedy


def _lookup(settings: Settings) -> Drafter:
    s = settings.ngram
    return ngram(s.k, n_max=s.n_max, n_min=s.n_min, growth=s.growth or None, match=s.match)
