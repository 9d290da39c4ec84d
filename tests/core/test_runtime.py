"""The route a run takes can be stated, saved, and refused."""

import json
from collections.abc import Iterator

import pytest
import torch

from manyheads.core import runtime


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """`prepare` sets the process up; the other tests should not notice."""
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)


def test_description_survives_json() -> None:
    route = runtime.prepare(threads=1, device="cpu")
    described = route.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["threads"] == torch.get_num_threads() == 1
    assert described["matmul"] == torch.get_float32_matmul_precision()
    assert described["torch"] == torch.__version__
    assert described["processor"]


def test_unknown_precision_names_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'fp16'.*float32, bf16"):
        runtime.prepare("fp16")  # type: ignore[arg-type]


@pytest.mark.parametrize("supported", [True, False])
def test_bf16_warns_where_it_is_slow(
    supported: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    runtime.prepare("bf16", device="cpu")
    assert ("warning" in capsys.readouterr().err) is not supported
    runtime.prepare("float32", device="cpu")
    assert capsys.readouterr().err == ""


def test_autocast_is_what_precision_says() -> None:
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    for precision, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        route = runtime.Route("cpu", precision, 1, "highest", False)  # type: ignore[arg-type]
        with route.autocast():
            assert layer(x).dtype == dtype
    assert layer.weight.dtype == torch.float32


def test_bf16_products_are_never_taken_for_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """With AMX, "medium" would compute float32 products in bf16."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert runtime.prepare(device="cpu").matmul == "highest"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(runtime, "_seconds", lambda a, b: 1.0)  # no clear winner
    assert runtime.prepare(device="cpu").matmul == "highest"


def test_compile_is_applied_where_asked_and_only_there() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert runtime.Route("cpu", "float32", 1, "highest", compiled=False).compile(double) is double
    assert runtime.Route("cpu", "float32", 1, "highest", compiled=True).compile(double) is not double


def test_the_float32_route_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for avx512, amx, expected in ((True, False, "medium"), (False, False, "highest"), (True, True, "highest")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda has=avx512: has)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has=amx: has)
        assert runtime.prepare(device="cpu").matmul == expected == torch.get_float32_matmul_precision()
