"""Where a fault goes in: into a module's attribute, or into a part that ``sample`` is given.

Compiled programs are keyed by target, drafter and verifier, so code that was patched afterwards
would not be traced again. Every check therefore builds its targets with the rig's own ``tag``: a
new tag is a new program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import specjax
from eval import toy
from specjax import testing
from specjax.draft import Drafter
from specjax.drafters import draft_model
from specjax.target import Target
from specjax.verify import Verifier
from tests.support import SIGNIFICANCE

_TAGS = itertools.count()


class Died(AssertionError):
    """A check failed; ``p`` is its p-value, None where what must be equal differs."""

    def __init__(self, why: str, p: float | None = None) -> None:
        super().__init__(why)
        self.p = p


class Rig(NamedTuple):
    """What a fault replaces; by default nothing.

    Attributes:
      tag: names the targets, so that they are compiled anew.
      target, drafter, verifier: from the right part to the one that is used.
    """

    tag: str
    target: Callable[[Target], Target]
    drafter: Callable[[Drafter], Drafter]
    verifier: Callable[[Verifier], Verifier]

    def scripted(self, vocab: int) -> Target:
        """A scripted target, which notices every mistake with a cache."""
        return self.target(testing.scripted_target(vocab, self.tag))

    def bigram(self, vocab: int) -> Target:
        """A target that looks at the last token alone."""
        return self.target(toy.bigram(vocab, self.tag))

    def draft_model(self, model: Target, k: int) -> Drafter:
        """A drafter out of a model, which itself has no fault."""
        return self.drafter(draft_model(model, k))

    def sample(self, target: Target, *args: Any, **kwargs: Any) -> specjax.SampleOutput:
        """``specjax.sample`` with the rig's verifier."""
        if kwargs.get("verifier") is not None:
            kwargs["verifier"] = self.verifier(kwargs["verifier"])
        return specjax.sample(target, *args, **kwargs)


def rig(**parts: Callable) -> Rig:
    """A rig with a tag of its own."""

    def same(part: Any) -> Any:
        return part

    return Rig(
        tag=f"planted {next(_TAGS)}",
        target=parts.get("target", same),
        drafter=parts.get("drafter", same),
        verifier=parts.get("verifier", same),
    )


def must(holds: Any, why: str) -> None:
    """Dies unless something holds."""
    if not holds:
        raise Died(why)


def must_follow(p_value: float, what: str) -> None:
    """Dies where a chi-square test says that samples do not follow their law."""
    if not p_value > SIGNIFICANCE:
        raise Died(f"{what}: chi-square p-value {p_value:.1e}", p_value)
