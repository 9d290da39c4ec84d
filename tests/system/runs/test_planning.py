"""Predicted cost of training: compared with PyTorch's tracker and counts, and with a measured run."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from manyheads import cli
from manyheads.analysis import costs
from manyheads.models.presets import build, preset
from manyheads.runs.planning import Hardware, plan
from manyheads.runs.simulation import Machine, simulate, step_loss

MACHINE = Machine({"float32": 1e12, "bf16": 2e12}, 1e11)
MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "gpt2/nano": ({}, (48,)),
    "bert/tiny": ({"head": "none"}, (40,)),
    "transformer/tiny": ({"source_vocab": 100, "target_vocab": 100, "pad": 0, "start": 1, "end": 2}, (20, 24)),
}


def made(name: str, **settings: Any) -> Any:
    with torch.device("meta"):
        return build(preset(name, **settings))


@pytest.mark.parametrize("name", MODELS)
def test_products_of_a_step_equal_the_count_on_the_modules(name: str) -> None:
    settings, lengths = MODELS[name]
    step = simulate(made(name, **settings), 3, lengths, MACHINE, precision="float32", fused=False)
    counted = 3 * costs.flops(made(name, **settings), *lengths)["training"]
    assert counted <= step.flops < 1.02 * counted  # a fused kernel computes its scores again to go backward
    assert step.products <= step.forward + step.backward
    assert step.forward + step.backward >= step.flops / 1e12


def test_live_tensors_equal_pytorchs_tracker() -> None:
    step = simulate(made("gpt2/nano"), 4, (64,), MACHINE, precision="float32", fused=False)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = made("gpt2/nano").train()
        model.to_empty(device="cpu")
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            step_loss(model, costs.example(model, 64, rows=4)).backward()
    found = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert step.peak == pytest.approx(found["Total"] - weights, rel=0.02)


def test_gradients_are_distinguished_from_activations() -> None:
    """A text of one token needs less than its gradients."""
    model = made("gpt2/nano")
    weights = 4 * sum(p.numel() for p in model.parameters())
    step = simulate(model, 1, (1,), MACHINE, precision="float32", fused=False)
    assert step.activations < weights
    assert step.peak >= weights


def test_recomputed_blocks_need_less_memory() -> None:
    kept, again = (
        simulate(made("gpt2/nano"), 8, (64,), MACHINE, precision="float32", fused=True, checkpointing=twice)
        for twice in (False, True)
    )
    assert again.activations < kept.activations
    assert again.flops > kept.flops


def test_sharding_divides_storage_and_gathers_for_computation() -> None:
    """16 bytes a parameter (Rajbhandari 2020), and DDP's buckets."""
    model = made("gpt2/nano")
    parameters = sum(p.numel() for p in model.parameters())
    block = sum(p.numel() for p in model.decoder.blocks[0].parameters())
    found = plan(model, 1, (8,), Hardware(4, MACHINE, 2.0**30, 1e9))
    for name in ("weights", "moments"):
        assert found["ddp"]["bytes"][name] == pytest.approx(4 * found["fsdp"]["bytes"][name], abs=4)
    assert found["ddp"]["bytes"]["buckets"] == 4 * parameters
    outside = parameters - len(model.decoder.blocks) * block
    assert found["fsdp"]["bytes"]["gathered"] == 4 * (outside + 2 * block)
    # a ring hands every gradient round twice, three quarters of it over each connection
    compute = simulate(model, 1, (8,), MACHINE, precision="float32", fused=True)
    waits = max(0.0, 2 * 0.75 * 4 * parameters / 1e9 - compute.backward)
    assert found["ddp"]["seconds"]["waiting for others"] == pytest.approx(waits)
    assert found["ddp"]["bound by"] == "interconnect"


@pytest.mark.slow
def test_gpt3_175b_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """Its count is Brown 2020's, table 2.1; its products are within a tenth of that paper's appendix D, which leaves
    those of attention out: 3.14e23 FLOPs for 300 billion tokens."""
    command = ["plan", "gpt3/175b", "--devices", "1024", "--memory", "80", "--tflops", "312", "--bandwidth", "2000",
               "--batch", "1024", "--length", "64", "--precision", "bf16", "--json"]  # fmt: skip
    assert cli.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == pytest.approx(175e9, rel=0.005)
    assert found["flops"] / (1024 * 64) == pytest.approx(3.14e23 / 300e9, rel=0.1)
    assert not found["ddp"]["fits"]
    assert found["fsdp"]["fits"]


def test_a_plan_uses_the_batch_and_settings_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = ["--devices", "8", "--memory", "16", "--tflops", "9.5", "--bandwidth", "732", "--json"]
    assert cli.main(["plan", "translation/wmt14-base", *gpu]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["rows"] * 8 * 32 == pytest.approx(25_000, rel=0.01)
    assert cli.main(["plan", "translation/wmt14-base", "batch_tokens=12500", *gpu]) == 0
    half = json.loads(capsys.readouterr().out)
    assert half["flops"] == pytest.approx(whole["flops"] / 2, rel=0.01)
    assert half["ddp"]["bytes"]["activations"] < 0.65 * whole["ddp"]["bytes"]["activations"]
    for settings, rows in (((), 32), (("batch_items=16",), 16), (("batch_tokens=640",), 20)):
        assert cli.main(["plan", "imdb/corrected", *settings, *gpu[2:]]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == rows


def test_this_machine_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "gpt2/nano", "--batch", "2", "--length", "16"]) == 0
    shown = capsys.readouterr().out
    assert "one process" in shown
    assert "seconds per step" in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gpt2/nano"], "--batch"),
        (["gpt2/nano", "--batch", "2", "--length", "100000"], "maximum length"),
        (["gpt2/nano", "--batch", "2", "--tflops", "9"], "--bandwidth"),
        (["gpt2/nano", "--batch", "2", "--interconnect", "9"], "--devices"),
        (["vit/ti16", "--batch", "2", "--length", "9"], "reads images"),
        (["gpt2/nano", "--batch", "2", "--tflops", "9", "--bandwidth", "9"], "--memory"),
        (["gpt2/nano", "x=1", "--batch", "2"], "recipe"),
        (["gpt2/nan", "--batch", "2"], "did you mean"),
    ],
)
def test_impossible_plans_are_reported(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *arguments]) == 2
    assert told in capsys.readouterr().err


MEASURE = """
from manyheads.core.runtime import resident_memory
from manyheads.models.presets import build, preset
from manyheads.runs.simulation import step_loss
from manyheads.analysis import costs
import torch
before = resident_memory()
model = build(preset("gpt2/124m", layers=2)).train()
inputs = costs.example(model, 64, rows=8)
for _ in range(2):
    step_loss(model, inputs).backward()
    model.zero_grad()
status = open("/proc/self/status").read()  # getrusage would tell of the process that started this one, too
print(before, 1024 * int(status.split("VmHWM:")[1].split()[0]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not report the memory of a process")
def test_the_predicted_memory_of_a_step_equals_a_process() -> None:
    answer = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    before, held = map(int, answer.stdout.split())
    found = plan(made("gpt2/124m", layers=2), 8, (64,), Hardware(1, MACHINE, math.inf, taken=before, gpu=False))
    needed = found["alone"]["needed"] - found["alone"]["bytes"]["moments"]
    assert needed == pytest.approx(held, rel=0.15)
