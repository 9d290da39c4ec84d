import errno
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel

from manyheads.training.config import TrainingConfig
from manyheads.training.loop import train
from manyheads.training.objective import Better
from manyheads.training.optimizers import optimizer_for
from manyheads.training.run_directory import describe_unfinished, run_status
from manyheads.training.state import weights
from manyheads.training.step import NonFiniteError
from tests.support.toy import ToyBatches, ToyModel, ToyTask, toy_route

FLAT: dict[str, Any] = {"schedule": "constant", "warmup": 0, "learning_rate": 0.01}


def trained(task: ToyTask, out, **settings) -> dict[str, torch.Tensor]:
    train(task, TrainingConfig(**{**FLAT, **settings}), out, compute=toy_route())
    return {name: tensor.clone() for name, tensor in weights(task.model).items()}


@pytest.mark.parametrize("accumulate", [2, 4])  # 10 micro-batches an epoch: 4 leaves an incomplete last group
def test_accumulation_equals_a_large_batch(tmp_path, accumulate):
    exact: dict[str, Any] = {"dropout": 0.0, "dtype": torch.float64}
    sizes = {batch.items for batch in ToyBatches(10, 0, torch.float64)}
    assert len(sizes) > 3
    small = trained(ToyTask(**exact), tmp_path / "small", epochs=2, accumulate=accumulate, clip=0.1)
    big = trained(ToyTask(**exact, joined=accumulate), tmp_path / "big", epochs=2, clip=0.1)
    for name in big:
        torch.testing.assert_close(small[name], big[name], rtol=0, atol=1e-12)


def test_the_last_incomplete_group_of_an_epoch_is_a_step(tmp_path):
    task = ToyTask()
    summary = train(task, TrainingConfig(epochs=2, accumulate=4, **FLAT), tmp_path, compute=toy_route())
    assert (summary.step, summary.epoch, task.calls) == (6, 2, 20)
    assert summary.tokens == sum(batch.items for epoch in (0, 1) for batch in task.batches(epoch))


def test_adam_equals_the_paper(tmp_path):
    """Kingma and Ba 2015, algorithm 1, written out; betas and epsilon of Vaswani 2017, the schedule Noam's."""
    task = ToyTask(dropout=0.0, dtype=torch.float64)
    model = ToyTask(dropout=0.0, dtype=torch.float64).model
    parameters = list(model.parameters())
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    step = 0
    for epoch in range(3):
        for batch in task.batches(epoch):
            step += 1
            loss = torch.nn.functional.cross_entropy(model(batch.inputs), batch.targets)
            gradients = torch.autograd.grad(loss, parameters)
            alpha = 16**-0.5 * min(step**-0.5, step * 10**-1.5)
            with torch.no_grad():
                for theta, m, v, g in zip(parameters, first, second, gradients, strict=True):
                    m.copy_(0.9 * m + 0.1 * g)
                    v.copy_(0.98 * v + 0.02 * g * g)
                    theta.sub_(alpha * (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)).sqrt() + 1e-9))
    train(task, TrainingConfig(epochs=3, width=16, warmup=10), tmp_path, compute=toy_route())
    for name, expected in weights(model).items():
        torch.testing.assert_close(weights(task.model)[name], expected, rtol=0, atol=1e-11)


def test_adamw_decays_matrices_only():
    groups = optimizer_for(
        ToyModel(0.0, 1), TrainingConfig(steps=1, optimizer="adamw", weight_decay=0.1, **FLAT)
    ).param_groups
    decayed = {group["weight_decay"]: {p.ndim for p in group["params"]} for group in groups}
    assert decayed == {0.1: {2}, 0.0: {1}}


def test_clipping_bounds_the_global_norm(tmp_path):
    """The length of an SGD step is the gradient norm times the learning rate, so it shows whether the gradient was
    clipped.
    """
    lengths = {}
    for clip in (None, 1e-3):
        before = torch.cat([p.detach().flatten() for p in ToyTask().model.parameters()])
        task = ToyTask()
        trained(
            task, tmp_path / str(clip), steps=1, clip=clip, optimizer="sgd", betas=(0, 0), learning_rate=1, log_every=1
        )
        lengths[clip] = (torch.cat([p.detach().flatten() for p in task.model.parameters()]) - before).norm().item()
    norm = json.loads((tmp_path / "None" / "metrics.jsonl").read_text().splitlines()[0])["gradient_norm"]
    assert norm > 1e-2
    assert lengths[1e-3] / lengths[None] == pytest.approx(1e-3 / norm, rel=1e-2)


def test_a_non_finite_loss_names_step_and_tensor(tmp_path):
    class Diverging(ToyTask):
        def loss(self, batch):
            loss = super().loss(batch)
            return loss._replace(total=loss.total * (float("nan") if self.calls == 27 else 1.0))

    with pytest.raises(NonFiniteError, match=r"^step 27: .*first bad tensor: the loss; start again"):
        train(Diverging(), TrainingConfig(steps=60, checkpoint_every=20, **FLAT), tmp_path, compute=toy_route())
    assert (tmp_path / "state" / "checkpoint-00000020.json").exists()
    saved = load_file(tmp_path / "state" / "checkpoint-00000020.safetensors")
    assert all(tensor.isfinite().all() for tensor in saved.values())


def test_an_invalid_parameter_is_named(tmp_path):
    task = ToyTask()
    task.before_loss = lambda call: call == 5 and task.model.second.bias.data.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"^step 5: .*first bad tensor: parameter second.bias"):
        train(task, TrainingConfig(steps=60, **FLAT), tmp_path, compute=toy_route())


def test_the_final_weights_average_the_last_snapshots(tmp_path):
    final = trained(ToyTask(), tmp_path, steps=25, average=3, average_every=8, checkpoint_every=5)
    state = tmp_path / "state"
    last = load_file(state / "checkpoint-00000025.safetensors")
    for name, tensor in final.items():
        parts = [load_file(state / f"weights-000000{step}.safetensors")[name] for step in (16, 24)]
        expected = (parts[0].double() + parts[1].double() + last[f"model.{name}"].double()) / 3
        torch.testing.assert_close(tensor, expected.float(), rtol=0, atol=1e-7)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["first.weight"], final["first.weight"])


def test_ema_weights_equal_torch(tmp_path):
    task = ToyTask()

    def follow(moving: Any, latest: Any, updates: Any) -> Any:
        decay = min(0.6, float(updates) / (float(updates) + 9))  # binds from the 14th on; the first one copies
        return decay * moving + (1 - decay) * latest

    reference = AveragedModel(task.model, avg_fn=follow)
    task.before_loss = lambda call: reference.update_parameters(task.model)
    final = trained(task, tmp_path, steps=25, ema=0.6)
    last = load_file(tmp_path / "state" / "checkpoint-00000025.safetensors")
    for name, tensor in final.items():
        before = reference.module.state_dict()[name]
        torch.testing.assert_close(tensor, 0.6 * before + 0.4 * last[f"model.{name}"], rtol=0, atol=1e-6)
    assert not torch.allclose(final["third.weight"], last["model.third.weight"], atol=1e-3)
    summary = json.loads((tmp_path / "state" / "finished.json").read_text())
    assert summary["weights"] == "averaged"


class Watched(ToyTask):
    """Validation values come from a list, by the number of steps done."""

    def __init__(self, values: Sequence[float], metric: str = "bleu", better: Better = "higher") -> None:
        super().__init__()
        self.values, self.metric, self.metrics = values, metric, {metric: better}

    def validate(self) -> dict[str, float]:
        return {self.metric: self.values[min(self.calls // 5, len(self.values) - 1)]}


EARLY: dict[str, Any] = {
    "validate_every": 5,
    "metric": "bleu",
    "patience": 3,
    "checkpoint_every": 7,
}


def test_models_of_selected_epochs_are_saved(tmp_path):
    """Those of a run of two epochs are, where the rate is constant, those that longer runs have after two."""
    start = {name: tensor.clone() for name, tensor in weights(ToyTask().model).items()}
    last = trained(ToyTask(), tmp_path / "long", epochs=5, keep_every=2)
    short = trained(ToyTask(), tmp_path / "short", epochs=2)
    assert sorted(path.name for path in (tmp_path / "long" / "kept").iterdir()) == ["epoch-0", "epoch-2", "epoch-4"]
    for epoch, expected in (("epoch-0", start), ("epoch-2", short)):
        kept = load_file(tmp_path / "long" / "kept" / epoch / "model.safetensors")
        assert all(torch.equal(tensor, expected[name]) for name, tensor in kept.items())
    kept = load_file(tmp_path / "long" / "kept" / "epoch-4" / "model.safetensors")
    assert any(not torch.equal(tensor, last[name]) for name, tensor in kept.items())
    assert not (tmp_path / "short" / "kept").exists()


@pytest.mark.parametrize(
    ("metric", "sign"),
    [("bleu", 1), ("accuracy", 1), ("top1", 1), ("loss", -1), ("perplexity", -1), ("bits_per_byte", -1), ("mse", -1)],
)
def test_early_stopping_keeps_the_best_weights(tmp_path, metric, sign):
    values = [0, 1, 3, 2, 3, 2.5, 9, 9]  # best after 10 steps; 15, 20, 25 are no better
    task = Watched([sign * value for value in values], metric, "higher" if sign > 0 else "lower")
    config = TrainingConfig(steps=100, **{**EARLY, "metric": metric}, **FLAT)
    summary = train(task, config, tmp_path, compute=toy_route())
    assert (summary.step, summary.weights) == (25, "best (step 10)")
    assert f"no better {metric}" in summary.reason
    reference = ToyTask()
    at_ten = trained(reference, tmp_path / "ten", steps=10)
    assert all(torch.equal(at_ten[name], tensor) for name, tensor in weights(task.model).items())


@pytest.mark.parametrize(
    ("values", "end"),
    [([0, math.nan, 1, 3, 2], (20, "best (step 15)")), ([0, 1, 3, 2, math.nan], (20, "best (step 10)")),
     ([0, math.nan], (15, "last"))],
)  # fmt: skip
def test_nan_is_never_the_best(tmp_path, values, end):
    settings = {**EARLY, "patience": 2}
    summary = train(Watched(values), TrainingConfig(steps=20, **settings, **FLAT), tmp_path, compute=toy_route())
    assert (summary.step, summary.weights) == end


def test_averaged_weights_win_if_they_validate_better(tmp_path):
    task = Watched([0, 1, 3, 2])
    settings = {**EARLY, "patience": None, "average": 2, "average_every": 5}
    task.values = [0, 1, 3, 2, 5]  # the final value is better than the best previous one
    summary = train(task, TrainingConfig(steps=20, **settings, **FLAT), tmp_path, compute=toy_route())
    assert summary.weights == "mean of 2"


def test_an_unknown_metric_is_refused_before_validation(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyTask, "validate", lambda task: pytest.fail("validated"))
    with pytest.raises(ValueError, match="the validation has no metric 'bleu': expected one of loss"):
        trained(ToyTask(), tmp_path, steps=10, metric="bleu")
    assert run_status(tmp_path) == "none"  # told before the first step


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    task = ToyTask()
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if task.calls >= 20:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    config = TrainingConfig(steps=40, checkpoint_every=10, **FLAT)
    with pytest.raises(
        ValueError, match=r"cannot write: No space left on device; .* intact: free disk space and use --resume"
    ):
        train(task, config, tmp_path / "out", compute=toy_route())
    assert not list((tmp_path / "out" / "state").glob(".tmp-*"))
    monkeypatch.undo()
    resumed = ToyTask()
    train(resumed, config, tmp_path / "out", compute=toy_route(), resume=True)
    whole = trained(ToyTask(), tmp_path / "whole", steps=40)
    assert all(torch.equal(whole[name], tensor) for name, tensor in weights(resumed.model).items())


def test_unreadable_data_are_reported_with_their_file(tmp_path):
    def broken(call: int) -> None:
        raise OSError(errno.EIO, "Input/output error", "/images/cat.png")

    task = ToyTask()
    task.before_loss = broken
    with pytest.raises(OSError, match="cat.png"):
        trained(task, tmp_path, steps=10)


def test_the_directory_of_another_run_is_safe(tmp_path):
    config = TrainingConfig(steps=10, **FLAT)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="foreign is not empty and contains no run"):
        train(ToyTask(), config, tmp_path / "foreign", compute=toy_route(), resume=True)
    assert [p.name for p in (tmp_path / "foreign").iterdir()] == ["thesis.tex"]

    run = tmp_path / "run"
    command = "manyheads train toy --resume"
    stopped = train(ToyTask(), config, run, compute=toy_route(), max_minutes=0, resume_command=command)
    assert stopped.status == "stopped"
    assert run_status(run) == "unfinished"
    with pytest.raises(
        ValueError, match="unfinished run; replace it .* or resume it with: manyheads train toy --resume"
    ):
        train(
            ToyTask(), config, run, compute=toy_route(), resume_command="manyheads train toy training.steps=3 --resume"
        )
    other = replace(config, accumulate=5)
    told = "its command is: manyheads train toy --resume; differences: accumulate: 1 -> 5"
    with pytest.raises(ValueError, match=told):
        train(ToyTask(), other, run, compute=toy_route(), resume=True, resume_command="manyheads train other --resume")
    assert (describe_unfinished(run) or "").endswith("resume with: manyheads train toy --resume")
    train(ToyTask(), config, run, compute=toy_route(), resume=True)
    assert run_status(run) == "finished"
    with pytest.raises(ValueError, match="contains a finished run"):
        train(ToyTask(), config, run, compute=toy_route())


def test_empty_batches_are_reported(tmp_path):
    with pytest.raises(ValueError, match="training data is empty"):
        trained(ToyTask(batches=0), tmp_path, steps=3)


@pytest.mark.parametrize("schedule", ["noam", "constant", "linear"])
def test_a_warmup_beyond_the_run_is_reported(tmp_path, log, schedule):
    told = r"the warm-up of 31 steps is longer than the run of 30 steps: the learning rate never reaches its peak"
    for warmup in (30, 31):  # 10 batches an epoch
        trained(ToyTask(), tmp_path / str(warmup), epochs=3, schedule=schedule, width=8, warmup=warmup)
        assert (told in " ".join(log.text.split())) == (warmup == 31)


def test_checkpointing_requires_blocks(tmp_path):
    with pytest.raises(ValueError, match="checkpointing=true, but ToyModel has no trainable stack of blocks"):
        trained(ToyTask(), tmp_path, steps=1, checkpointing=True)
