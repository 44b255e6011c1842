"""Settings and fixtures that every test shares.

Strict on purpose: silent dtype promotion and warnings are errors, because each has hidden a real
bug in some decoding loop.
"""

import itertools
import os
import pathlib
import sys
import zlib
from collections.abc import Iterator

import jax
import pytest

from specjax import device

# Most of a run is compiling small programs that run once. Without LLVM's optimisations, and with
# fused operations emitted as LLVM's code at once, not through MLIR, that takes a third of the time.
# Read when a program first asks for a device; the commands that tests start inherit it. An extra
# option that an XLA doesn't know is ignored there, which of a flag it would not be.
_QUICK = (
    "--xla_backend_optimization_level=0"
    " --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true"
)
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}".strip()

jax.config.update("jax_numpy_dtype_promotion", "strict")


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def pytest_configure(config: pytest.Config) -> None:
    """The commands that tests start share a folder of compiled programs; this process has none.

    Its thousands of small programs gain little from it, and twice in full runs XLA died there: it
    aborted while it serialised a program, and crashed while it read one.
    """
    del config
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(device.enable_compilation_cache())
    jax.config.update("jax_enable_compilation_cache", False)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run in which nothing passed is a failure in CI, even if all it did was skip."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if in_ci() and reporter is not None and not hasattr(session.config, "workerinput"):
        collect_only = session.config.option.collectonly
        if session.exitstatus == 0 and not collect_only and not reporter.stats.get("passed"):
            print("\nno test passed: in CI that is a failure", file=sys.stderr)
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The kill list: every planted fault, and what killed it."""
    killed: dict[str, list[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for what, value in report.user_properties:
            if what == "killed":
                killed.setdefault(value[0], []).append(value[1])
    if killed:
        terminalreporter.section(f"{len(killed)} planted faults died")
        for fault, how in sorted(killed.items()):
            terminalreporter.write_line(f"{fault}: {'; '.join(sorted(how))}")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of the test's own. A failure's report shows it; SPECJAX_SEED overrides it."""
    default = zlib.crc32(request.node.nodeid.encode())
    value = int(os.environ.get("SPECJAX_SEED", default)) % 2**31
    print(f"seed {value} (repeat with SPECJAX_SEED={value})")
    return value


@pytest.fixture(scope="session")
def smollm2_folder() -> pathlib.Path:
    """The real model's folder; gets the model at the first use."""
    from scripts import get_smollm2

    try:
        return get_smollm2.get()
    except get_smollm2.GetError as error:
        # Without a network there is nothing to test with; anything else is a failure.
        if in_ci() or not error.offline:
            raise
        pytest.skip(f"the real model isn't here and can't be downloaded: {error}")


_FINISHED = itertools.count(1)


@pytest.fixture(autouse=True)
def _few_programs() -> Iterator[None]:
    """Frees compiled programs before there are too many.

    Each maps some memory, and a process may hold 65,530 mappings: XLA crashed where it got no more.
    Counting them takes 15 ms, as long as many a test: every eighth one is soon enough.
    """
    yield
    if next(_FINISHED) % 8:
        return
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
