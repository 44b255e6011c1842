"""Every planted fault dies, by the check that is named for it; without a fault no check does.

A test run ends with the kill list; ``python -m tests.planted`` prints it alone.
"""

import collections
from collections.abc import Callable

import pytest

from specjax.verify.block import rule as block_rule
from specjax.verify.token import rule as token_rule
from tests.enumeration import EXACT
from tests.planted import (
    enumerated,
    identity,
    laws,
    wrong_drafters,
    wrong_loop,
    wrong_noise,
    wrong_rules,
    wrong_suffix,
)
from tests.planted.fault import Fault
from tests.planted.rig import Died, rig

FAULTS: list[Fault] = [
    *wrong_rules.FAULTS,
    *wrong_noise.FAULTS,
    *wrong_loop.FAULTS,
    *wrong_drafters.FAULTS,
    *wrong_suffix.FAULTS,
]

# A fault that dies at this p-value dies at SIGNIFICANCE with all but one seed in a hundred: between
# the two lie more than the 2.3 standard deviations by which another seed's statistic may fall.
CLEARLY = 1e-15


def kill(fault: Fault) -> Died:
    """Plants a fault, and returns how it died."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            fault.run(patch)
        except Died as died:
            return died
    raise AssertionError(f"survived: {fault.name} (by {fault.killer})")


def how(died: Died) -> str:
    """In how far it died: by what differs, or by which p-value."""
    return "differs" if died.p is None else f"p = {died.p:.0e}" if died.p else "p < 1e-300"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_dies(fault: Fault, record_property: Callable[[str, object], None]) -> None:
    died = kill(fault)
    record_property("killed", (fault.name, f"{fault.killer}, {how(died)}"))
    assert died.p is None or died.p < CLEARLY, f"{fault.name} died by a narrow margin: {died}"


IN_LAW_FORM = [fault for fault in FAULTS if fault.case]


@pytest.mark.parametrize("fault", IN_LAW_FORM, ids=lambda fault: fault.name)
def test_the_enumerated_law_shows_the_fault(
    fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        off = fault.deviation(patch)
    record_property("killed", (fault.name, f"its enumerated law is off by {off:.3f}"))
    assert off > 1e-3


@pytest.mark.parametrize("case", enumerated.CASES)
def test_without_a_fault_the_enumerated_law_is_the_target_s(case: str) -> None:
    for rule in (token_rule, block_rule):
        assert enumerated.deviation(rule, enumerated.CASES[case]) < EXACT


def test_there_are_enough_of_them() -> None:
    names = collections.Counter(fault.name for fault in FAULTS)
    assert len(names) == len(FAULTS) >= 50, names
    assert len(IN_LAW_FORM) >= 15


@pytest.mark.parametrize("check", identity.CHECKS, ids=lambda check: check.__name__)
def test_without_a_fault_nothing_dies(check: object) -> None:
    check(rig())  # type: ignore[operator]


# Half of the grid runs in `make test`: each rule on the instance that tells most, and on others.
_QUICK = {
    "iid-token",
    "iid-block",
    "iid-match",
    "iid-coupled",
    "context-token",
    "context-block",
    "context-coupled",
    "mixed-token",
    "mixed-block",
    "part-token",
    "part-block",
    "sticky-token",
    "sticky-block",
    "partial-block",
    "heads-token",
    "heads-block",
    "counted-token",
    "counted-block",
    "lookup-token",
    "remembered-token",
    "remembered-block",
    "in_turn-token",
    "in_turn-block",
    "unsure-token",
    "unsure-block",
    "controlled-token",
    "controlled-block",
}
GRID = [
    pytest.param(
        instance,
        rule,
        id=f"{instance.__name__}-{rule.name}",
    )
    for instance in laws.INSTANCES
    for rule in laws.LOSSLESS
    if rule.uses_q or instance is not laws.sticky  # which always wants a q
]
QUICK = [param for param in GRID if param.id in _QUICK]


@pytest.mark.parametrize(("instance", "rule"), QUICK)
def test_the_joint_of_several_rounds_is_the_target_s(instance: object, rule: object) -> None:
    instance(rig(), rule)  # type: ignore[operator]


@pytest.mark.long
@pytest.mark.parametrize(("instance", "rule"), GRID)
def test_the_joint_of_several_rounds_with_many_samples(instance: object, rule: object) -> None:
    instance(rig(), rule, 100_000)  # type: ignore[operator]


def test_half_of_the_grid_is_quick() -> None:
    assert len(QUICK) == len(_QUICK)
    assert 2 * len(QUICK) >= len(GRID)
