"""Factories that give the same object for equal arguments, so that nothing compiles twice."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")


def factory(make: Callable[P, T]) -> Callable[P, T]:
    """Keeps what ``make`` made, by the values of its arguments.

    jax compiles once for each object that it is given as a static argument, and drafters, targets
    and rules are such objects. ``functools.cache`` goes by how a call is spelled: ``ngram(4)``,
    ``ngram(k=4)`` and ``ngram(4, n_min=1)`` would be three drafters, and three compilations; and
    ``ngram(4.0)``, which no loop can run, would be the answer to a later ``ngram(4)``. So arguments
    that are annotated as ``int``, ``float``, ``bool`` or ``str`` are taken as that, or refused.

    Raises:
      ValueError: (the factory) an argument of another type, an int past int32, or what can't be
        hashed; names it.
      TypeError: (the factory) an argument that is missing or unknown, as of any function.
    """
    signature, kept = inspect.signature(make), functools.cache(make)

    @functools.cache
    def hints() -> dict[str, Any]:  # not before modules that import each other are whole
        return typing.get_type_hints(make)

    @functools.wraps(kept)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            what = f"{make.__name__}: {name}"
            bound.arguments[name] = value = _plain(what, value, hints().get(name))
            if not _hashable(value):
                make(*bound.args, **bound.kwargs)  # its own checks know better what is wrong
                raise ValueError(
                    f"{what}={value!r}; it must be hashable, as what is compiled depends on it (a "
                    "tuple for a list, a number for an array)"
                )
        return kept(*bound.args, **bound.kwargs)

    return made


_WORDS = {bool: "True or False", int: "an int", float: "a number", str: "a string"}


def _plain(what: str, value: Any, hint: Any) -> Any:
    """The value as Python's own of what it is annotated as, where that is a plain type.

    Raises:
      ValueError: it is something else, or an int past int32.
    """
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind: Any = next((kind for kind in _WORDS if kind in allowed), None)
    if kind is None or (value is None and types.NoneType in allowed):
        return value
    given: Any = value.item() if isinstance(value, np.generic) else value
    numbers = (int, float) if kind is float else kind
    if not isinstance(given, numbers) or (isinstance(given, bool) and kind is not bool):
        words = _WORDS[kind] + (" or None" if types.NoneType in allowed else "")
        raise ValueError(f"{what}={value!r}; it must be {words}")
    if kind is int and given > np.iinfo(np.int32).max:
        raise ValueError(f"{what}={value}; it must be at most {np.iinfo(np.int32).max} (as int32)")
    return kind(given)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
