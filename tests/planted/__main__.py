"""Prints the kill list: ``python -m tests.planted``. Exits with 1 when a fault survives."""

import sys
import warnings

import jax
import tabulate

from specjax import device
from tests.planted.test_planted import FAULTS, kill


def main() -> int:
    """Plants every fault in turn."""
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    warnings.simplefilter("error")
    device.enable_compilation_cache()
    lines, survivors = [], 0
    for fault in FAULTS:
        try:
            died = kill(fault)
            how = "differs" if died.p is None else f"p = {died.p:.0e}" if died.p else "p < 1e-300"
        except AssertionError:
            how, survivors = "SURVIVED", survivors + 1
        lines.append((fault.name, fault.killer, how))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(tabulate.tabulate(lines, headers=("planted fault", "killed by", "how")))
    print(f"\n{len(lines) - survivors} of {len(lines)} planted faults died")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
