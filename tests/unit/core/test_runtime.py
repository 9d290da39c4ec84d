"""Compute configuration: device and precision are validated, saved and applied, and global settings are restored."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from manyheads.core import runtime


def test_descriptions_survive_json() -> None:
    compute = runtime.prepare(threads=1, device="cpu")
    described = compute.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["threads"] == 1
    assert runtime.prepare(device="cpu").describe()["threads"] == torch.get_num_threads()
    assert described["torch"] == torch.__version__
    assert described["processor"]


def test_unknown_precision_names_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'fp16'.*float32, bf16"):
        runtime.prepare("fp16")  # type: ignore[arg-type]


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool, float], None]]:
    """Gives this machine bf16 products, or none, and that rate of them, where float32's is 1."""

    def set_to(supported: bool, rate: float) -> None:
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
        monkeypatch.setattr(
            runtime.ComputeConfig, "products_per_second", lambda compute: rate if compute.precision == "bf16" else 1.0
        )
        runtime.is_bf16_faster.cache_clear()

    yield set_to
    runtime.is_bf16_faster.cache_clear()


@pytest.mark.parametrize(
    ("supported", "rate", "warning"),
    [(True, 2.0, ""), (True, 0.6, "is not faster in bf16"), (False, 2.0, "has no bf16 instructions")],
)
def test_bf16_warns_if_it_is_slow(
    rates: Callable[[bool, float], None], supported: bool, rate: float, warning: str,
    log: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    rates(supported, rate)
    runtime.prepare("bf16", device="cpu")
    said = log.text
    assert warning in said
    assert bool(said) == bool(warning)
    log.clear()
    runtime.prepare("float32", device="cpu")
    assert log.text == ""


def test_results_follow_the_precision() -> None:
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    for precision, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        compute = runtime.ComputeConfig("cpu", precision, 1, "highest", False)  # type: ignore[arg-type]
        with compute.autocast():
            assert layer(x).dtype == dtype
    assert layer.weight.dtype == torch.float32


def test_autocast_settings_are_restored() -> None:
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    compute = runtime.ComputeConfig("cpu", "bf16", before[0] + 1, "medium", compiled=False)
    with compute.autocast():
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (before[0] + 1, "medium")
        assert torch.is_autocast_enabled("cpu")
        with runtime.ComputeConfig("cpu", "float32", None, "highest", compiled=False).autocast():
            assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (before[0] + 1, "highest")
            assert not torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium"
    runtime.prepare(threads=before[0] + 1, device="cpu").products_per_second()
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


def test_denormal_numbers_are_rounded_to_zero_with_settings_only() -> None:
    def halved() -> float:
        return float(torch.tensor([torch.finfo(torch.float32).tiny]) / 2)

    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot round denormal numbers to zero")
    compute = runtime.prepare(device="cpu")
    assert halved() > 0
    with compute.settings():
        assert halved() == 0
        with compute.settings():
            assert halved() == 0
        assert halved() == 0
    assert halved() > 0
    torch.set_flush_denormal(True)  # by the user
    try:
        with compute.settings():
            assert halved() == 0
        assert halved() == 0
    finally:
        torch.set_flush_denormal(False)


def test_overlapping_settings_are_restored() -> None:
    """As in two threads: the first that comes is the first that leaves."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    first, second = (runtime.ComputeConfig("cpu", "float32", threads, "medium", compiled=False) for threads in (2, 3))
    entered = [compute.settings() for compute in (first, second)]
    for settings in entered:
        settings.__enter__()
    for settings in entered:
        settings.__exit__(None, None, None)
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_impossible_thread_counts_are_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads is {threads}: expected 1 to "):
        runtime.prepare(threads=threads)


WIDTH = 768
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda a, b: a @ b,
    "vector": lambda a, b: a[:1] @ b,
    "batched": lambda a, b: torch.stack([a, a.flip(0)]) @ torch.stack([b, b]),
    "linear": lambda a, b: torch.nn.functional.linear(a, b, b[0]),
    "added": lambda a, b: torch.addmm(a[:, :WIDTH], a, b),
    "convolution": lambda a, b: torch.nn.functional.conv1d(a[None], b[:, :, None]),
    "attention": lambda a, b: torch.nn.functional.scaled_dot_product_attention(a[None], b[None], b[None], scale=0.01),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_float32_is_exact_on_this_machine(name: str) -> None:
    """bf16 keeps 8 bits and is off by 0.1 here, TF32 keeps 11 and is off by 0.01."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, WIDTH, WIDTH, generator=generator)
    exact = PRODUCTS[name](a.double(), b.double())
    with runtime.prepare(device="cpu").autocast():
        assert (PRODUCTS[name](a, b) - exact).abs().max() < 1e-3


def test_short_products_are_timed_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a device that takes 0.1 ms to begin and then does 1e14 FLOP/s: one product of 1024 seems a sixth of that."""
    now, done = 0.0, 0

    def product(a: Tensor, other: Tensor) -> Tensor:
        nonlocal now
        now += 2 * a.shape[0] ** 3 / 1e14
        return torch.ones(1, 1)

    def clock() -> float:
        nonlocal now, done
        done += 1
        now += 1e-4 if done % 2 == 0 else 0.0  # it waits before the second look
        return now

    monkeypatch.setattr(runtime, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(Tensor, "__matmul__", product)
    assert runtime.prepare(device="cpu").products_per_second() == pytest.approx(1e14, rel=0.05)


@pytest.mark.compiles
def test_compile_is_applied_only_on_request() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert runtime.ComputeConfig("cpu", "float32", 1, "highest", compiled=False).compile(double) is double
    assert runtime.ComputeConfig("cpu", "float32", 1, "highest", compiled=True).compile(double) is not double


def test_uncompilable_models_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(ValueError, match=f"but {compiler} was not found: install it, or do not"):
        runtime.prepare(compile=True, device="cpu")
    runtime.prepare(device="cpu")
    runtime.prepare(compile=True, device="cuda")
    compiler.touch(0o755)
    monkeypatch.setattr(runtime.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match="Python's headers, but .*Python.h does not exist: install them, or do not"):
        runtime.prepare(compile=True, device="cpu")
    (tmp_path / "Python.h").touch()
    assert runtime.prepare(compile=True, device="cpu").compiled


@pytest.mark.parametrize(
    ("device", "precision", "processor", "avx512", "amx", "expected"),
    [
        ("cpu", "float32", "AMD EPYC", True, False, "medium"),
        ("cpu", "float32", "AMD EPYC", False, False, "highest"),
        ("cpu", "float32", "Intel(R) Xeon(R) Processor", True, False, "highest"),
        ("cpu", "float32", "AMD EPYC", True, True, "highest"),  # "medium" would compute in bf16
        ("cuda", "float32", "AMD EPYC", True, False, "highest"),  # "high" would compute in TF32
        ("cuda", "bf16", "AMD EPYC", True, False, "high"),
    ],
)
def test_the_compute_config_follows_the_processor(
    device: str, precision: runtime.Precision, processor: str, avx512: bool, amx: bool, expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(runtime, "processor", lambda: processor)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert runtime.prepare(precision, device=device).matmul == expected


def test_products_are_measured_in_the_precision_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[torch.dtype] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.mm.default:
                seen.add(args[0].dtype)
            return func(*args, **(kwargs or {}))

    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *_, **options: ones(64, 64, **options))  # of any size: seen is the type
    monkeypatch.setattr(runtime, "BUSY_SECONDS", 0)
    monkeypatch.setattr(runtime, "is_bf16_faster", lambda precision: True)  # or it would time both
    for precision, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        compute = runtime.prepare(precision, device="cpu")  # type: ignore[arg-type]
        seen.clear()
        with Watch():
            assert compute.products_per_second() > 0
        assert seen == {dtype}


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "cpu:0"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=f"device is '{device}': expected cpu"):
        runtime.check_device(device)


def test_the_type_of_a_device_has_no_number() -> None:
    assert runtime.ComputeConfig("cuda:1", "float32", 1, "highest", False).device_type == "cuda"
