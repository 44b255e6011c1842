"""The device's description and its checks; accelerators are made up."""

import os
import subprocess

import jax
import jax.numpy as jnp
import pytest

from specjax import device, machine

GPU = machine.Accelerator("NVIDIA H200", "cuda13")
TPU = machine.Accelerator("TPU", "tpu")


@pytest.fixture
def computer(monkeypatch):
    """Sets what the machine has, what jax sees, and what the user asked for."""

    def set_up(found, backend="cpu", platforms=None, visible=None):
        monkeypatch.setattr(machine, "find_accelerator", lambda: found)
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        monkeypatch.setattr(device, "_setting", lambda name: platforms)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return set_up


@pytest.mark.parametrize("found, extra", [(GPU, "cuda13"), (TPU, "tpu")])
def test_an_idle_accelerator_is_an_error_that_names_the_fix(computer, found, extra):
    computer(found)
    fix = rf"{found.name}.*pip install 'jax\[{extra}\]=={jax.__version__}'.*JAX_PLATFORMS=cpu"
    with pytest.raises(RuntimeError, match=fix):
        device.check_accelerator()


@pytest.mark.parametrize(
    "options",
    [
        {"found": None},
        {"found": GPU, "backend": "gpu"},
        {"found": TPU, "backend": "tpu"},
        {"found": GPU, "platforms": "cpu"},
        {"found": GPU, "visible": ""},
        {"found": GPU, "visible": "-1"},
    ],
)
def test_no_accelerator_or_one_in_use_or_not_wanted_is_fine(computer, options):
    computer(**options)
    device.check_accelerator()


def test_a_platform_without_its_plugin_is_a_sentence(computer, monkeypatch):
    def fail():
        raise AssertionError  # as jax does for JAX_PLATFORMS=cuda

    computer(None, platforms="cuda")
    monkeypatch.setattr(jax, "default_backend", fail)
    with pytest.raises(RuntimeError, match=r"JAX_PLATFORMS=cuda, but jax .* has no support for it"):
        device.check_accelerator()


def test_hiding_gpus_does_not_hide_a_tpu(computer):
    computer(TPU, visible="")
    with pytest.raises(RuntimeError, match="TPU"):
        device.check_accelerator()


@pytest.mark.parametrize(
    "output, code, expected",
    [
        ("NVIDIA H200, 580.95.05, 9.0\n", 0, GPU),
        ("Tesla T4, 570.1, 7.5\n", 0, machine.Accelerator("Tesla T4", "cuda12")),
        ("Tesla V100, 580.1, 7.0\n", 0, machine.Accelerator("Tesla V100", "cuda12")),
        ("NVIDIA H200, 580.1, 9.0\nTesla V100, 580.1, 7.0\n", 0, GPU._replace(jax_extra="cuda12")),
        ("Orin (nvgpu), 540.4.0, [N/A]\n", 0, machine.Accelerator("Orin (nvgpu)", "cuda12")),
        ("No devices were found\n", 0, None),
        ("NVIDIA-SMI has failed because it couldn't talk to the driver\n", 9, None),
    ],
)
def test_nvidia_smi(monkeypatch, output, code, expected):
    done = subprocess.CompletedProcess([], code, stdout=output.encode())
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    assert machine._find_nvidia() == expected


def test_no_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._find_nvidia() is None


@pytest.mark.parametrize(
    "vendor, product, nodes, environment, expected",
    [
        ("0x1ae0", "0x0063", [], {}, TPU),
        ("0x1ae0", "0x0042", [], {}, None),  # Google's network card
        ("0x10de", "0x0063", [], {}, None),
        (None, None, ["/dev/accel0"], {}, TPU),
        (None, None, ["/dev/vfio/0"], {}, None),  # some device passed through to a guest
        (None, None, ["/dev/vfio/0"], {"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, TPU),
    ],
)
def test_tpu(monkeypatch, tmp_path, vendor, product, nodes, environment, expected):
    if vendor:
        (tmp_path / "vendor").write_text(vendor + "\n")
        (tmp_path / "device").write_text(product + "\n")

    def glob(pattern):
        if pattern.startswith("/sys"):
            return [str(tmp_path / "vendor")] if vendor else []
        return [node for node in nodes if node.startswith(pattern.split("[")[0])]

    monkeypatch.setattr(machine.glob, "glob", glob)
    for name in ("TPU_NAME", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert machine._find_tpu() == expected


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: sse2 avx avx2 fma\nbugs\t:\n", True),
        ("flags\t\t: sse2 avx avx2 fma avx512f avx512dq\n", False),
        ("flags\t\t: sse2 avx\n", False),  # neither: nothing was measured there
        ("Features\t: asimd fp\n", False),  # ARM
        ("", False),  # no Linux
    ],
)
def test_lacks_avx512(monkeypatch, cpuinfo, expected):
    monkeypatch.setattr(machine, "_read", {"/proc/cpuinfo": cpuinfo}.__getitem__)
    assert machine.lacks_avx512.__wrapped__() == expected


def test_describe_is_one_line_with_everything():
    line = device.describe()
    assert "\n" not in line
    for part in (jax.default_backend(), str(device.default_dtype()), "memory", jax.__version__):
        assert part in line


@pytest.mark.parametrize(
    "backend, dtype", [("cpu", jnp.float32), ("gpu", jnp.bfloat16), ("tpu", jnp.bfloat16)]
)
def test_default_dtype(monkeypatch, backend, dtype):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert device.default_dtype() == dtype


def test_memory_of_this_machine():
    assert 2**28 < device.memory_bytes() < 2**50


def test_preflight_lists_every_part():
    table = device.preflight({"weights": 3 * 2**30, "KV cache": 2**30}, memory=8 * 2**30)
    assert table.splitlines() == [
        "weights            3.00 GiB",
        "KV cache           1.00 GiB",
        "sum                4.00 GiB",
        "device memory      8.00 GiB",
    ]


def test_preflight_refuses_what_does_not_fit():
    match = r"needs 16\.00 GiB, but the device has 8\.00 GiB: take a smaller model(.|\n)*weights"
    with pytest.raises(ValueError, match=match):
        device.preflight({"weights": 15 * 2**30, "logits": 2**30}, memory=8 * 2**30)


def test_preflight_of_a_negative_size():
    with pytest.raises(ValueError, match="size of 'weights' is -1 bytes; it must be 0 or more"):
        device.preflight({"weights": -1})


def test_bandwidth_is_plausible():
    assert 1e8 < device.memory_bandwidth(2**24) < 1e14


@pytest.fixture
def compilation_cache():
    """Puts the setting back afterwards."""
    before = device._setting("jax_compilation_cache_dir")
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def test_compilation_cache_folder(compilation_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
    jax.config.update("jax_compilation_cache_dir", None)
    assert device.enable_compilation_cache() == tmp_path / "cache" / "xla"
    assert device._setting("jax_compilation_cache_dir") == os.fspath(tmp_path / "cache" / "xla")
    # What jax was told (as JAX_COMPILATION_CACHE_DIR does) is kept, an argument comes first.
    assert device.enable_compilation_cache(tmp_path) == tmp_path
    assert device.enable_compilation_cache() == tmp_path
