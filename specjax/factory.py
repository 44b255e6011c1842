"""Factories that give the same object for equal arguments, so that nothing compiles twice."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def factory(make: Callable[P, T]) -> Callable[P, T]:
    """Keeps what ``make`` made, by the values of its arguments.

    jax compiles once for each object that it is given as a static argument, and drafters, targets
    and rules are such objects. ``functools.cache`` goes by how a call is spelled: ``ngram(4)``,
    ``ngram(k=4)`` and ``ngram(4, n_min=1)`` would be three drafters, and three compilations.

    Raises:
      ValueError: (the factory) an argument that can't be hashed; names it.
    """
    signature, kept = inspect.signature(make), functools.cache(make)

    @functools.wraps(kept)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            _check_hashable(f"{make.__name__}: {name}", value)
        return kept(*bound.args, **bound.kwargs)

    return made


def _check_hashable(what: str, value: object) -> None:
    try:
        hash(value)
    except TypeError:
        raise ValueError(
            f"{what}={value!r}; it must be hashable, as what is compiled depends on it (a tuple "
            "for a list, a number for an array of one)"
        ) from None
