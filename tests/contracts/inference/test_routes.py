"""Routes of a loaded model: each computes the same, and the fastest is chosen by measured times."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from manyheads.cli import main
from manyheads.core.block import Stack
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.errors import UserError
from manyheads.inference import CompiledModel, compile_model
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.vit import ViT, ViTConfig

if importlib.util.find_spec("numba") is None:
    pytest.skip("the kernels are compiled by Numba (extra `fast`)", allow_module_level=True)

from manyheads.inference import compilation, measuring, onednn, routes, stack
from manyheads.inference.kernels import processor
from manyheads.inference.routes import ROUTES, Routes
from manyheads.inference.stack import FusedStack

PRECISIONS = ["float32", *(["bf16"] if processor.HAS_BF16 else [])]
TOLERANCE = {"float32": 1e-5, "bf16": 2e-2, "int8": 5e-2}
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")


def bert(**settings: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab": 101, "width": 64, "layers": 2, "heads": 4, "feed_forward": 128, "head": "none", **settings}
    return Bert(BertConfig(**sizes)).eval()


def gpt(**settings: Any) -> Any:
    torch.manual_seed(0)
    return GPT(
        GPTConfig(**{"vocab": 131, "width": 64, "layers": 2, "heads": 4, "max_positions": 128, **settings})
    ).eval()


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, 90, (rows, length), generator=torch.Generator().manual_seed(1))


def off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_route_computes_the_same(route: str, precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHEADS_ROUTE", route)
    lengths = torch.tensor([70, 1, 13, 64, 7])
    image = ViT(ViTConfig(image_size=32, patch=4, width=32, layers=1, heads=2, feed_forward=64)).eval()
    with torch.inference_mode():
        for activation in ACTIVATIONS:
            model = gpt(activation=activation, norm="post" if activation == "relu" else "pre")
            fast = compile_model(model, prepare(precision, 2, device="cpu"))
            with fast.compute.autocast():
                assert off(fast(tokens(5, 70)), model(tokens(5, 70))) < TOLERANCE[precision]
        model = gpt(window=5)  # The kernels have one mask for all blocks, so PyTorch computes this model.
        fast = compile_model(model, prepare(precision, 2, device="cpu"))
        with fast.compute.autocast():
            assert off(fast(tokens(5, 70)), model(tokens(5, 70))) < TOLERANCE[precision]
        model = bert()
        fast = compile_model(model, prepare(precision, 2, device="cpu"))
        real = torch.arange(70) < lengths[:, None]
        with fast.compute.autocast():
            got = fast(tokens(5, 70), lengths)
        assert off(got[real], model(tokens(5, 70), lengths)[real]) < TOLERANCE[precision]
        fast = compile_model(image, prepare(precision, 2, device="cpu"))
        x = torch.randn(4, 3, 32, 32)
        with fast.compute.autocast():
            assert off(fast(x), image(x)) < TOLERANCE[precision]
    assert (fast.precision is None) == (route == "plain")


@pytest.mark.parametrize("threads", [1, 3])
def test_onednn_divides_sequences_of_any_length(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long sequences, pieces with a limit of rows, and a number of threads that does not divide the batch."""
    monkeypatch.setenv("MANYHEADS_ROUTE", "onednn")
    monkeypatch.setattr(stack, "ONEDNN_ROWS", 150)
    model, lengths = bert(), torch.tensor([100, 100, 3, 60, 100, 128, 1])
    fast = compile_model(model, prepare("float32", threads, device="cpu"))
    real = torch.arange(128) < lengths[:, None]
    with torch.inference_mode(), fast.compute.autocast():
        got, before = fast(tokens(7, 128), lengths), torch.get_num_threads()
        assert off(got[real], model(tokens(7, 128), lengths)[real]) < TOLERANCE["float32"]
        assert not got[~real].any()
        assert off(fast(tokens(1, 20)), model(tokens(1, 20))) < TOLERANCE["float32"]  # few rows: the kernels
    assert before == 1


def test_a_generating_model_may_keep_pytorchs_modules_for_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole sequences run in the kernels, and steps in PyTorch with its own cache."""
    monkeypatch.setattr(compilation, "measured_routes", lambda *_, steps: Routes({"kernels": 1.0}, {"plain": 1.0}))
    model, given = gpt(), tokens(3, 20)
    fast = compile_model(model, prepare("float32", 2, device="cpu"))
    with torch.inference_mode(), fast.compute.autocast():
        cache = fast.start(3, 20)
        parts = [fast.step(part, cache) for part in given.split([17, 1, 2], dim=1)]
        assert off(torch.cat(parts, 1), model(given)) < TOLERANCE["float32"]
        assert off(fast(given), model(given)) < TOLERANCE["float32"]


def test_a_measurement_leaves_the_random_numbers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "stored", lambda *_: None)
    monkeypatch.setattr(measuring, "store", lambda *_: None)
    model, compute = gpt(), prepare("float32", 1, device="cpu")
    before = torch.random.get_rng_state()
    found = measuring.measured_routes(Stack([model.decoder.blocks[0]]), compute, steps=True)
    assert found.sequences.keys() >= {"plain", "kernels"}
    assert measuring.stack_speeds(model, compute, ["float32"])
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("seconds", "route"),
    [
        ({"plain": 1.0, "onednn": 1.1, "kernels": 1.02}, "kernels"),  # within noise
        ({"plain": 0.9, "onednn": 1.1, "kernels": 1.0}, "plain"),
        ({"plain": 0.9, "onednn": 0.5, "kernels": 3.5}, "onednn"),
    ],
)
def test_the_fastest_route_is_chosen(seconds: dict[Any, float], route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "measured_routes", lambda *_, steps: Routes(seconds, {}))
    model = bert()
    fast = compile_model(model, prepare("float32", 2, device="cpu"))
    if route == "plain":
        assert fast.module is model
        assert fast.precision is None
    else:
        stack: Any = next(module for module in fast.module.modules() if isinstance(module, FusedStack))
        assert (stack.sequences, fast.precision) == (route, "float32")


@pytest.mark.parametrize(("encoder", "decoder"), [("bf16", "int8")])
def test_auto_takes_the_fastest_precision_of_the_work(encoder: str, decoder: str, monkeypatch: Any) -> None:
    """With AMX, bf16 is fastest for whole sequences, and int8 for the steps of a model that generates."""
    sequences = {"float32": 4.0, "bf16": 1.0, "int8": 2.0}
    steps = {"float32": 4.0, "bf16": 2.0, "int8": 1.0}

    def times(stack: Stack, compute: ComputeConfig, *, steps: Any, steps_by: Any = steps) -> Routes:
        precision = compute.precision
        return Routes({"kernels": sequences[precision]}, {"kernels": steps_by[precision]} if steps else {})

    monkeypatch.setattr(compilation, "measured_routes", times)
    monkeypatch.setattr(compilation, "_available", lambda: ("int8", "bf16", "float32"))
    monkeypatch.setattr(compilation, "relative_error", lambda *_: 0.0)
    monkeypatch.setattr(compilation, "_compiled", lambda model, plan: CompiledModel(model, plan.compute))
    monkeypatch.setattr(processor, "HAS_BF16", True)
    assert compile_model(bert(), prepare("auto", device="cpu")).compute.precision == encoder
    assert compile_model(gpt(), prepare("auto", device="cpu")).compute.precision == decoder


def test_auto_does_not_report_8_bits_for_pytorchs_modules(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MANYHEADS_ROUTE", "plain")
    fast = compile_model(bert(), prepare("auto", device="cpu"))
    assert fast.compute.precision in PRECISIONS
    assert f"precision auto: {fast.compute.precision}" in log.text


def test_times_are_measured_once_for_each_shape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MANYHEADS_ROUTE", raising=False)
    monkeypatch.setattr(measuring, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(measuring, "STEADY", 1e9)  # this machine may do other work
    compile_model(gpt(), prepare("float32", 2, device="cpu"))
    entries = json.loads(next(tmp_path.iterdir()).read_text())
    (entry,) = entries.values()
    assert set(entry["sequences"]) == {"plain", "kernels", *(["onednn"] if onednn.is_available(torch.float32) else [])}
    assert set(entry["steps"]) == {"plain", "kernels"}
    monkeypatch.setattr(measuring, "_seconds", None)  # it is not called again
    compile_model(gpt(), prepare("float32", 2, device="cpu"))
    with pytest.raises(TypeError):
        compile_model(gpt(width=32), prepare("float32", 2, device="cpu"))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}', None])
def test_a_damaged_file_of_times_is_replaced(content: str | None, monkeypatch: Any, tmp_path: Path) -> None:
    file = tmp_path / "routes.json"
    file.write_text(content or "")
    model = bert()
    name = routes.key(model.encoder, "float32", 2, steps=False)
    if content is None:
        file.write_text(json.dumps({name: {"sequences": {"kernels": "fast"}, "steps": []}}))
    assert routes.stored(file, name) is None
    routes.store(file, name, Routes({"kernels": 1.0}, {}), 0)
    assert routes.stored(file, name) == (Routes({"kernels": 1.0}, {}), 0)


def test_a_disturbed_measurement_is_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three processes at most repeat it; the shortest times count."""
    monkeypatch.delenv("MANYHEADS_ROUTE", raising=False)
    monkeypatch.setattr(measuring, "cache_directory", lambda: tmp_path)
    results = iter([({"plain": 2.0, "kernels": 3.0}, False), ({"plain": 2.0, "kernels": 1.0}, False),
                    ({"plain": 2.0, "kernels": 4.0}, False)])  # fmt: skip
    monkeypatch.setattr(measuring, "_seconds", lambda *_: next(results))
    compute = prepare("float32", 2, device="cpu")
    assert [compile_model(bert(), compute).precision for _ in range(5)] == [None, *["float32"] * 4]
    assert next(results, None) is None


@pytest.mark.skipif(not processor.HAS_INT8, reason="no 8-bit products")
def test_onednn_has_no_route_for_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHEADS_ROUTE", "onednn")
    fast = compile_model(bert(), prepare("int8", device="cpu"))
    assert [module.sequences for module in fast.module.modules() if isinstance(module, FusedStack)] == ["kernels"]


def test_an_unknown_route_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHEADS_ROUTE", "fastest")
    with pytest.raises(UserError, match="MANYHEADS_ROUTE is 'fastest': expected plain, onednn, kernels"):
        compile_model(bert(), prepare("float32", device="cpu"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("bert/tiny", [r"encoder +float32 +sequences +4\.00 +2\.00 +onednn"]),
        ("gpt2/nano", [r"decoder +float32 +sequences", r"decoder +float32 +steps +3\.00 +1\.00 +kernels"]),
        ("text-classifier/textbook", [r"encoder +float32 .*plain: attention has a bias"]),
        ("resnet/18", [r"resnet/18 runs in PyTorch: it has no stack of Transformer blocks"]),
    ],
)
def test_summary_shows_the_speed_of_each_route(
    name: str, shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def times(*_: Any, steps: bool) -> Routes:
        return Routes({"plain": 4e-3, "onednn": 2e-3}, {"plain": 3e-3, "kernels": 1e-3} if steps else {})

    monkeypatch.setattr(measuring, "measured_routes", times)
    assert main(["summary", name, "--speed"]) == 0
    out = capsys.readouterr().out
    for pattern in shown:
        assert re.search(pattern, out), out
    assert main(["summary", name, "--speed", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["seconds"]
    assert all("reason" in row or row["route"] in ROUTES for row in rows)


def test_the_speed_of_no_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "--speed"]) == 2
    assert "--speed needs a MODEL" in capsys.readouterr().err
