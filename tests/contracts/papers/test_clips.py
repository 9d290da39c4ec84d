"""Training run on clips whose label depends on the order of frames: learning, recording, evaluation."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyheads import cli
from manyheads.data.sources.recorded import recorded_data
from manyheads.models.nonlocal_net import NonLocalNet
from manyheads.models.presets import build, preset
from manyheads.runs.options import Run
from manyheads.runs.overrides import apply, from_arguments
from manyheads.tasks import train as training
from manyheads.tasks.comparison import compare
from manyheads.tasks.evaluation import evaluate
from manyheads.training.distributed import distributed_context
from manyheads.training.step import BatchTooLargeError, reraise_oom
from papers.command import run as run_command
from papers.nonlocal_net.__main__ import main
from papers.nonlocal_net.moving_digits import Clips, ClipSource
from papers.nonlocal_net.recipes import RECIPES, ClipConfig
from papers.nonlocal_net.run import MovingDigits
from papers.nonlocal_net.task import Batch, load

pytest.importorskip("sklearn")
train = partial(training.train, recipes=RECIPES)
SMALL: dict[str, Any] = {
    "size": 64, "tested": 40, "frames": 4, "side": 10, "slit": 4, "threads": 1, "batch_items": 16,
    "training.steps": 40, "training.warmup": 5, "training.validate_every": 20, "training.log_every": 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "clips"
    train("moving-digits", SMALL, out=out)
    return out


def test_a_run_is_recorded_and_reevaluated(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((run / "result.json").read_text())
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    assert losses[-1] < losses[0], "the training clips are being learnt"
    assert result["data"]["items"] == {"train": 64, "validation": 40, "test": 40}
    model = load(run)
    assert evaluate(model) == {name: result["metrics"][name] for name in ("loss", "accuracy")}
    assert compare(model, model)["most_changed"] == []
    assert sum(row["items"] for row in model.outcome().by_label()) == 40
    assert run_command(main, ["evaluate", str(run)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["loss", "accuracy"]
    assert cli.main(["evaluate", str(run)]) == 2
    assert "found no result.json that names its test data" in capsys.readouterr().err


def test_a_run_continues_where_it_stopped(run: Path, tmp_path: Path) -> None:
    assert not train("moving-digits", SMALL, out=tmp_path / "run", max_minutes=1e-6)
    result = train("moving-digits", SMALL, out=tmp_path / "run", resume=True)
    expected = json.loads((run / "result.json").read_text())["metrics"]
    assert result["metrics"]["loss"]["value"] == pytest.approx(expected["loss"]["value"], abs=1e-6)


def test_out_of_memory_describes_a_batch_of_clips() -> None:
    batch = Batch(torch.zeros(2, 1, 4, 10, 10), torch.zeros(2, dtype=torch.int64))
    told = r"a batch of clips \(2, 1, 4, 10, 10\), labels \(2,\): start again"
    with (
        pytest.raises(BatchTooLargeError, match=told),
        reraise_oom(1, batch, torch.nn.Linear(1, 1), distributed_context()),
    ):
        raise MemoryError


def test_without_blocks_the_frames_of_a_clip_are_independent() -> None:
    """The mean over a clip is that over its frames, each a clip by itself; a block, once it does something, is not."""
    sizes = vars(RECIPES["moving-digits"].config)["model"]
    clips = torch.randn(2, 1, 4, 16, 16)
    for stages, alike in (((), True), ((2,), False)):
        settings = {**sizes, "stages": stages, "labels": ("a", "b"), "channels": 1, "image_size": 16}
        model: NonLocalNet = build(preset("nonlocal/20-small", "nonlocal", **settings)).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                torch.nn.init.ones_(parameter)
            elif any(part in name for part in ("theta", "phi", "g.weight", "output")):
                torch.nn.init.normal_(parameter)
        with torch.no_grad():
            apart = torch.stack([model(clips[:, :, i]) for i in range(4)]).mean(0)
            assert torch.allclose(model(clips), apart, atol=1e-5) == alike


def test_the_baseline_has_no_blocks_and_the_command_says_so() -> None:
    config = RECIPES["moving-digits"].config
    assert isinstance(config, ClipConfig)
    run = Run("moving-digits", Path())
    assert MovingDigits(config, run).planned_model().config.stages == (2,)
    rival = MovingDigits(apply(config, from_arguments(["model.stages=[]"])), run).planned_model()
    assert rival.config.stages == ()
    assert not [name for name, _ in rival.named_modules() if name.endswith("theta")]


def test_impossible_clips_are_refused(run: Path, tmp_path: Path) -> None:
    record = {"data": {"kind": "clips", "size": 10_000_000, "frames": 1000, "side": 1000}}
    with pytest.raises(ValueError, match="in all clips together, found 10,"):
        recorded_data(record, ClipSource)
    with pytest.raises(ValueError, match="cannot start from another model"):
        train("moving-digits", {}, out=tmp_path / "x", init=str(run))


def test_clips_are_described() -> None:
    source = ClipSource(size=3, tested=2)
    splits = source.read()
    described = source.describe(splits)
    assert described["kind"] == "clips"
    assert isinstance(splits.train, Clips)
    assert splits.train.pixels.dtype == np.uint8
