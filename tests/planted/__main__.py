"""Prints the kill list: ``python -m tests.planted``. Exits with 1 when a fault survives."""

import sys
import warnings

import jax
import pytest
import tabulate

from specjax import device
from tests.planted.fault import Fault
from tests.planted.test_planted import FAULTS, how, kill


def main() -> int:
    """Plants every fault in turn."""
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    warnings.simplefilter("error")
    device.enable_compilation_cache()
    lines, survivors = [], 0
    for fault in FAULTS:
        try:
            end = how(kill(fault))
        except AssertionError:
            end, survivors = "SURVIVED", survivors + 1
        lines.append((fault.name, fault.killer, end, enumerated(fault)))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(tabulate.tabulate(lines, headers=("planted fault", "killed by", "how", "enumerated")))
    print(f"\n{len(lines) - survivors} of {len(lines)} planted faults died")
    return 1 if survivors else 0


def enumerated(fault: Fault) -> str:
    """By how much its enumerated law is off, for a rule in law form."""
    if fault.case is None:
        return ""
    with pytest.MonkeyPatch.context() as patch:
        return f"off by {fault.deviation(patch):.3f}"


if __name__ == "__main__":
    sys.exit(main())
