"""Every planted fault dies, by the check that is named for it; without a fault no check does.

``python -m tests.planted`` prints the kill list.
"""

import collections

import pytest

from tests.planted import identity, laws, wrong_loop, wrong_noise, wrong_rules
from tests.planted.fault import Fault
from tests.planted.rig import Died, rig

FAULTS: list[Fault] = [*wrong_rules.FAULTS, *wrong_noise.FAULTS, *wrong_loop.FAULTS]

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


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_dies(fault: Fault) -> None:
    died = kill(fault)
    print(f"killed: {fault.name} (by {fault.killer}: {died})")
    assert died.p is None or died.p < CLEARLY, f"{fault.name} died by a narrow margin: {died}"


def test_there_are_enough_of_them() -> None:
    names = collections.Counter(fault.name for fault in FAULTS)
    assert len(names) == len(FAULTS) >= 22, names


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
    "lookup-token",
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
