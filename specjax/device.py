"""The device a command runs on: its description, memory, bandwidth, and whether a model fits."""

import functools
import os
import pathlib
import platform
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from specjax import machine
from specjax.machine import cache_folder

GIB = 2**30


def enable_compilation_cache(folder: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Keeps compiled programs on disk, so that a second run needn't compile them again.

    Args:
        folder: Where; by default what `JAX_COMPILATION_CACHE_DIR` (or jax's own setting) says,
            else `xla` in the specjax cache folder.

    Returns:
        The folder in use.
    """
    path = folder or _setting("jax_compilation_cache_dir") or cache_folder() / "xla"
    jax.config.update("jax_compilation_cache_dir", os.fspath(path))
    # jax keeps only what took a second; the small programs around a loop add up to more.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return pathlib.Path(path)


def default_dtype() -> jnp.dtype:
    """Returns float32 on CPU, where bfloat16 products are emulated (10x slower), else bfloat16."""
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)


def memory_bytes() -> int | None:
    """Returns the memory programs may use on one device, in bytes; None if jax can't say.

    On CPU that is the machine's memory, or the container's where that is less.
    """
    if jax.default_backend() == "cpu":
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
        for file in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
            try:
                sizes.append(int(pathlib.Path("/sys/fs/cgroup", file).read_text()))
            except (OSError, ValueError):  # no such file, or "max"
                continue
        return min(sizes)
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit")


def kind() -> str:
    """Returns the platform, the kind of device, and how many there are, where that is several."""
    devices = jax.local_devices()
    name = _cpu_name() if jax.default_backend() == "cpu" else devices[0].device_kind
    count = f" x{len(devices)}" if len(devices) > 1 else ""
    return f"{jax.default_backend()}: {name}{count}"


def describe() -> str:
    """Returns one line: device, count, default dtype, memory, jax version."""
    memory = memory_bytes()
    parts = [
        kind(),
        f"{default_dtype()}",
        f"memory {memory / GIB:.1f} GiB" if memory else "memory unknown",
        f"jax {jax.__version__}",
    ]
    return ", ".join(parts)


def check_accelerator() -> None:
    """Raises if the machine has an accelerator that jax can't see.

    Decoding on the CPU of a GPU machine "works", 50 times too slowly, and nothing says why.
    Asking for the CPU (`JAX_PLATFORMS=cpu`), or hiding the GPUs (`CUDA_VISIBLE_DEVICES=`), is fine.

    Raises:
        RuntimeError: It has. The message names the fix.
    """
    try:
        backend = jax.default_backend()
    except AssertionError as error:  # jax, of a platform it has no plugin for
        raise RuntimeError(
            f"JAX_PLATFORMS={_setting('jax_platforms')}, but jax {jax.__version__} has no support "
            "for it installed: install it, such as `pip install "
            f"'jax[cuda13]=={jax.__version__}'`, or set JAX_PLATFORMS=cpu"
        ) from error
    if backend != "cpu" or "cpu" in (_setting("jax_platforms") or "").split(","):
        return
    found = machine.find_accelerator()
    if found is None:
        return
    if found.jax_extra != "tpu" and os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    raise RuntimeError(
        f"this machine has an accelerator ({found.name}), but jax {jax.__version__} sees only the "
        f"CPU: install its support with `pip install 'jax[{found.jax_extra}]=={jax.__version__}'`, "
        "or set JAX_PLATFORMS=cpu to use the CPU on purpose"
    )


def preflight(items: Mapping[str, int], memory: int | None = None) -> str:
    """Checks, before anything is loaded, that it will fit on one device.

    Args:
        items: Bytes of each part, such as weights, KV cache, drafter, logits.
        memory: Bytes there are; by default `memory_bytes()`.

    Returns:
        A table of the parts, their sum and the memory, to print.

    Raises:
        ValueError: A size is negative, or the sum exceeds the memory.
    """
    for name, size in items.items():
        if size < 0:
            raise ValueError(f"the size of {name!r} is {size} bytes; it must be 0 or more")
    memory = memory_bytes() if memory is None else memory
    total = sum(items.values())
    rows = [*items.items(), ("sum", total)]
    if memory is not None:
        rows.append(("device memory", memory))
    width = max(len(name) for name, _ in rows)
    table = "\n".join(f"{name:<{width}}  {size / GIB:8.2f} GiB" for name, size in rows)
    if memory is not None and total > memory:
        raise ValueError(
            f"this needs {total / GIB:.2f} GiB, but the device has {memory / GIB:.2f} GiB: take a "
            f"smaller model, batch or length, or a smaller dtype\n{table}"
        )
    return table


def memory_bandwidth(size: int | None = None) -> float:
    """Measures how fast the default device reads its memory, in bytes a second (best of several).

    A decoding pass reads every weight once, so `weight bytes / memory_bandwidth()` is the least
    time it can take.

    Args:
        size: Bytes to read, far more than any cache holds; by default 256 MiB on CPU, 1 GiB on
            accelerators (which would otherwise be done within a launch's overhead).
    """
    if size is None:
        size = (256 if jax.default_backend() == "cpu" else 1024) * 2**20
    array = jnp.ones(size // 4, jnp.float32)
    read = _reader()
    read(array).block_until_ready()
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        read(array).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return array.nbytes / best


def _setting(name: str) -> str | None:
    # jax makes these attributes at run time, where a type checker can't see them.
    value: str | None = getattr(jax.config, name)
    return value


@functools.cache
def _reader() -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jnp.sum)


def _cpu_name() -> str:
    """Returns the processor's model and core count."""
    name = platform.processor() or platform.machine()
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} core{'s' if cores != 1 else ''}"
