"""What a planted fault is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.planted import enumerated
from tests.planted.rig import Rig, rig

# The modules, where the package shows a rule, a factory or a function of the same name.
CORPUS = importlib.import_module("specjax.drafters.corpus")
DRAFT_MODEL = importlib.import_module("specjax.drafters.draft_model")
SUFFIX = importlib.import_module("specjax.drafters.suffix")
GENERATE = importlib.import_module("specjax.generate")
LOOP = importlib.import_module("specjax.loop")


class Fault(NamedTuple):
    """A wrong variant, and the check that kills it.

    Attributes:
      name: what is wrong.
      check: the check that must die.
      rule: for checks in law, the verifier they run with.
      plant: ``(patch) -> parts``, patches modules and returns what replaces the rig's parts.
      case: for rules in law form, the instance of ``enumerated.CASES`` that must notice it too.
    """

    name: str
    check: Callable[..., None]
    rule: Any
    plant: Callable[[pytest.MonkeyPatch], dict[str, Callable]]
    case: str | None = None

    def run(self, patch: pytest.MonkeyPatch) -> None:
        """Plants the fault and runs the check, which must raise ``Died``."""
        broken: Rig = rig(**self.plant(patch))
        arguments = () if self.rule is None else (self.rule,)
        self.check(broken, *arguments)

    def deviation(self, patch: pytest.MonkeyPatch) -> float:
        """Plants the fault and enumerates its case: the largest error of a probability."""
        parts, case = self.plant(patch), enumerated.CASES[self.case or ""]
        verifier = parts["verifier"](self.rule) if "verifier" in parts else self.rule
        (rule,) = verifier.verify.args  # partial(law.verify, rule)
        return enumerated.deviation(rule, case)

    @property
    def killer(self) -> str:
        """What the kill list calls the check."""
        module = self.check.__module__.rpartition(".")[2]
        return f"{module}.{self.check.__name__}" + (f"({self.rule.name})" if self.rule else "")


class Faults(list[Fault]):
    """A list that functions add themselves to; the first line of their docstring is the name."""

    def add(
        self, check: Callable[..., None], rule: Any = None, case: str | None = None
    ) -> Callable:
        """Registers a ``plant`` function under its docstring."""

        def register(plant: Callable) -> Callable:
            name = (plant.__doc__ or "").strip().splitlines()[0].rstrip(".")
            self.append(Fault(name, check, rule, plant, case))
            return plant

        return register
