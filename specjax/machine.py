"""What this machine has, asked of the machine and not of jax: its accelerator, its cache folder.

Only the standard library, and syntax that Python 3.6 can read: set-up runs this file before jax,
or even a recent Python, is there.
"""

import functools
import glob
import os
import pathlib
import subprocess
from typing import List, NamedTuple, Optional


class Accelerator(NamedTuple):
    """An accelerator and the jax extra that drives it.

    Attributes:
        name: What to call it in a message, such as "NVIDIA H200".
        jax_extra: "cuda12", "cuda13" or "tpu", for `pip install jax[EXTRA]`.
    """

    name: str
    jax_extra: str


# CUDA 13 needs a driver of the 580 series, and dropped GPUs below compute capability 7.5.
_CUDA13_DRIVER = 580.0
_CUDA13_CAPABILITY = 7.5

# PCI vendor 0x1ae0 is Google's, which makes network cards too; these devices are TPUs
# (v2/v3, v4 lite, v4, v5p, v5e, v6e, 7x).
_GOOGLE = "0x1ae0"
_TPUS = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")


def cache_folder() -> pathlib.Path:
    """Returns the folder specjax keeps downloads and compiled programs in.

    `$SPECJAX_CACHE`, else `$XDG_CACHE_HOME/specjax`, else `~/.cache/specjax`.
    """
    own, shared = os.environ.get("SPECJAX_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return pathlib.Path(own).expanduser()
    if shared:
        return pathlib.Path(shared).expanduser() / "specjax"
    return pathlib.Path.home() / ".cache" / "specjax"


@functools.lru_cache(maxsize=None)
def lacks_avx512() -> bool:
    """Returns whether the processor says that it has AVX2 and doesn't say that it has AVX-512.

    False where it says nothing: no x86 processor, or no Linux.
    """
    flags = next((x for x in _read("/proc/cpuinfo").splitlines() if x.startswith("flags")), "")
    names = flags.split()
    return "avx2" in names and "avx512f" not in names


def find_accelerator() -> Optional[Accelerator]:
    """Returns this machine's GPU or TPU, or None."""
    return _find_nvidia() or _find_tpu()


def _find_nvidia() -> Optional[Accelerator]:
    gpus = _nvidia_smi()
    if not gpus:
        return None
    name = gpus[0][0]
    try:
        driver = min(float(gpu[1].split(".")[0]) for gpu in gpus)
        capability = min(float(gpu[2]) for gpu in gpus)
    except ValueError:  # "[N/A]": some drivers don't say; CUDA 12 runs on all of them
        return Accelerator(name, "cuda12")
    newest = driver >= _CUDA13_DRIVER and capability >= _CUDA13_CAPABILITY
    return Accelerator(name, "cuda13" if newest else "cuda12")


def _nvidia_smi() -> List[List[str]]:
    """Returns [name, driver version, compute capability] of each GPU; none if it can't be asked."""
    query = "--query-gpu=name,driver_version,compute_cap"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    # Without a GPU the command prints a sentence, and may still exit with 0.
    lines = done.stdout.decode("utf-8", "replace").splitlines() if done.returncode == 0 else []
    fields = [[field.strip() for field in line.split(",")] for line in lines]
    return [gpu for gpu in fields if len(gpu) == 3]


def _find_tpu() -> Optional[Accelerator]:
    for vendor in glob.glob("/sys/bus/pci/devices/*/vendor"):
        device = os.path.join(os.path.dirname(vendor), "device")
        if _read(vendor) == _GOOGLE and _read(device) in _TPUS:
            return Accelerator("TPU", "tpu")
    # A container may hide /sys but pass the device nodes on. (/dev/accel/ without a number is
    # Linux's folder for neural engines of any make, and /dev/vfio/N may be any device.)
    nodes = glob.glob("/dev/accel[0-9]*")
    if os.environ.get("TPU_ACCELERATOR_TYPE") or os.environ.get("TPU_NAME"):
        nodes += glob.glob("/dev/vfio/[0-9]*")
    return Accelerator("TPU", "tpu") if nodes else None


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
