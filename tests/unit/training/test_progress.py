import json
import re
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import manyheads.training.run_log as progress
import manyheads.training.session as session
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import train
from manyheads.training.record import write_result
from tests.support.toy import ToyTask, toy_route

CONFIG = TrainingConfig(steps=40, width=16, warmup=10, log_every=10, validate_every=20)


def test_progress_goes_to_the_callback_and_the_rest_to_the_log(tmp_path, capsys, log, monkeypatch):
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    reports: list[progress.Progress] = []
    train(ToyTask(), CONFIG, tmp_path, compute=toy_route(), progress=reports.append)
    assert capsys.readouterr() == ("", "")
    pattern = r" *75%  step 30  loss \d\.\d{4}  [\d,]+ items/s  (\d+% waiting for data  )?\d+:\d\d left"
    assert any(re.fullmatch(pattern, str(report)) for report in reports)
    lines = log.messages
    assert any(line.startswith("step 20  validation  loss 0.") for line in lines)
    assert lines[-2].startswith("finished (40 steps); last weights, validation: loss 0.")
    assert lines[-1] == f"saved in {tmp_path} (transformers opens it as toy)"


def test_data_wait_time_is_reported(tmp_path, monkeypatch):
    class Slow(ToyTask):
        def batches(self, epoch):
            return Lazy(super().batches(epoch), late)

    def late(batch):
        time.sleep(0.03)
        return batch

    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    reports: list[progress.Progress] = []
    train(Slow(), replace(CONFIG, steps=20, log_every=10), tmp_path, compute=toy_route(), progress=reports.append)
    waiting = [entry["waiting"] for entry in progress.read_metrics(tmp_path / "metrics.jsonl") if "loss" in entry]
    assert len(waiting) == 2
    assert all(0.3 < share <= 1 for share in waiting)
    assert any(re.search(r"step 11 .* items/s  \d\d+% waiting for data  \d", str(report)) for report in reports)


@pytest.mark.parametrize(("budget", "reason"), [({"steps": 1}, "1 step"), ({"minutes": 1}, "1 minute")])
def test_singular_units_are_spelled_correctly(tmp_path, budget, reason, monkeypatch):
    clock = iter(range(0, 10**6, 20))  # seconds; it advances at every look
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    config = TrainingConfig(**budget, schedule="constant", warmup=0)
    assert train(ToyTask(), config, tmp_path, compute=toy_route()).reason == reason


def reports_of(durations, steps, monkeypatch):
    """Return the reports of the first steps, which take the given seconds, of a run with `steps` steps."""
    now = 0.0
    reports: list[progress.Progress] = []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    meter = progress.ProgressMeter(reports.append, "images")
    for step, seconds in enumerate(durations, 1):
        now += seconds
        meter.step(step, 64, step / steps)
    return reports


def test_the_estimate_of_remaining_time_ignores_the_first_step(monkeypatch):
    """The first step takes 100 s, all others 2 s."""
    reports = reports_of([100, 2, 2, 2, 2], 100, monkeypatch)
    assert str(reports[-1]) == "  5%  step 5  32 images/s  3:10 left"


def test_the_end_of_a_run_is_reported(monkeypatch):
    reports = reports_of([0.2] * 10, 10, monkeypatch)
    assert [report.fraction for report in reports] == [0.3, 0.6, 0.9, 1.0]


def test_utilization_counts_steps_only(monkeypatch):
    """64 images in 2 s, where products alone would allow 64 in one; measuring those takes 7 s, once."""
    now, measured = 0.0, 0

    def peak():
        nonlocal now, measured
        now, measured = now + 7, measured + 1
        return 64.0

    reports: list[progress.Progress] = []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    meter = progress.ProgressMeter(reports.append, "images", peak)
    for step in range(1, 6):
        now += 2
        meter.step(step, 64, step / 100)
    assert measured == 1
    assert str(reports[-1]) == "  5%  step 5  32 images/s  50% of this machine's peak  3:10 left"


def test_the_peak_is_measured_for_the_same_products(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    reports: list[progress.Progress] = []
    monkeypatch.setattr(ComputeConfig, "products_per_second", lambda compute: 6e5)
    train(
        ToyTask(), CONFIG, tmp_path, compute=toy_route(), flops=30.0, progress=reports.append
    )  # so 20,000 items a second
    shown = re.findall(r"([\d,]+) items/s  (\d+)% of this machine's peak", "\n".join(map(str, reports)))
    assert shown
    for rate, share in shown:
        assert int(share) == pytest.approx(100 * int(rate.replace(",", "")) / 20_000, abs=0.51)


def test_accuracy_is_drawn_next_to_the_loss(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    lines = [
        {"step": 5, "loss": 1.0, "accuracy": 0.25},
        {"step": 9, "validation": {"loss": 1.2, "top1": 0.5, "top5": 0.9}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    progress.draw_losses(tmp_path, by_epoch=False)
    losses, shares = figures[0].axes
    assert [axes.get_ylabel() for axes in (losses, shares)] == ["loss", "top1"]
    assert losses.get_xlabel() == "step"
    assert [line.get_xydata().tolist() for line in losses.lines] == [[[5, 1.0]], [[9, 1.2]]]
    assert [line.get_xydata().tolist() for line in shares.lines] == [[[5, 0.25]], [[9, 0.5]]]
    assert [text.get_text() for text in shares.get_legend().get_texts()] == ["training", "validation"]


def test_a_single_point_and_the_final_weights_are_marked(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    lines = [{"step": 5, "loss": 1.0}, *({"step": s, "validation": {"loss": s / 10}} for s in (4, 8))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for chosen, marked in ((4, [[[4, 0.4]]]), (None, [])):
        progress.draw_losses(tmp_path, by_epoch=False, chosen=chosen)
        training, validation, *rings = figures.pop().axes[0].lines
        assert (training.get_marker(), validation.get_marker()) == ("o", "o")
        assert [ring.get_xydata().tolist() for ring in rings] == marked
        assert all(ring.get_label() == "final weights" for ring in rings)


def test_curves_have_one_point_per_validation(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    lines: list[dict[str, Any]] = [{"step": step, "epoch": (step - 1) // 4, "loss": 1.0} for step in (2, 6)]
    lines += [{"step": 4 * epoch, "epoch": epoch, "validation": {"loss": 1.2}} for epoch in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for by_epoch, places in ((True, [[0.5, 1.5], [1, 2]]), (False, [[2, 6], [4, 8]])):
        progress.draw_losses(tmp_path, by_epoch=by_epoch)
        (losses,) = figures.pop().axes
        assert losses.get_xlabel() == ("epoch" if by_epoch else "step")
        assert [line.get_xydata()[:, 0].tolist() for line in losses.lines] == places


class Telling(ToyTask):
    """Task whose model classifies one item of each batch correctly."""

    def loss(self, batch):
        return super().loss(batch)._replace(correct=torch.tensor(1))


def test_training_accuracy_is_logged(tmp_path):
    train(Telling(), CONFIG, tmp_path, compute=toy_route())
    entries = [entry for entry in progress.read_metrics(tmp_path / "metrics.jsonl") if "loss" in entry]
    seen = [0, *(entry["items"] for entry in entries)]
    assert all(entry["items_per_second"] > 0 and "tokens" not in entry for entry in entries)
    shares = [10 / (after - before) for before, after in pairwise(seen)]  # ten batches in every window
    assert [entry["accuracy"] for entry in entries] == pytest.approx(shares)


def test_a_line_truncated_by_a_kill_is_ignored(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"a": 1}\n[]\n"x"\n{"step": 2, "lo')
    assert progress.read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 2.0}]


def test_lines_after_a_truncated_line_are_complete(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "lo')
    with closing(progress.Metrics(tmp_path, 0, 0)) as metrics:
        metrics.log(5, {"loss": 1.0})
    assert progress.read_metrics(tmp_path / "metrics.jsonl") == [{"step": 5, "loss": 1.0}]


def test_a_result_identifies_run_machine_and_source(tmp_path):
    metrics = {"bleu_13a": {"value": 39.5, "signature": "nrefs:1"}}
    write_result(
        tmp_path, recipe="translation", overrides={"seed": 2}, data={}, metrics=metrics, wall_seconds=12.34,
        flops=None, parameters=7, seed=2,
    )  # fmt: skip
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result) == {
        "recipe", "overrides", "data", "metrics", "wall_seconds", "hardware", "flops", "parameters", "seed", "commit",
    }  # fmt: skip
    assert result["metrics"] == metrics
    assert {"cpu", "cores", "threads", "torch"} <= set(result["hardware"])
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|\d+\..*", result["commit"])
