"""Faults in training: a bad loss or gradient is reported by step and tensor, or skipped; failed writes are reported."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import manyheads.training.checkpoints as checkpoints_module
from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.layers import FeedForward
from manyheads.files import WriteError
from manyheads.training.checkpoints import Checkpoints
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import Summary, train
from manyheads.training.objective import Loss
from manyheads.training.run_log import read_metrics
from manyheads.training.step import BatchTooLargeError, NonFiniteError
from tests.contracts.training.test_resume import SETTINGS, Crash, outcome, run
from tests.support.toy import ToyBatch, ToyTask, toy_route

NAN = float("nan")


class _BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * NAN


class Faulty(ToyTask):
    """At some steps, by epoch and place in it, something is not finite: they are so again in a resumed run."""

    def __init__(self, fault: str, at: tuple[int, ...] = (11,), **options: Any) -> None:
        super().__init__(**options)
        self.fault, self.at = fault, at
        self.norm = self.model.norm = nn.BatchNorm1d(4)

    def batches(self, epoch: int) -> list[ToyBatch]:
        made = [*super().batches(epoch)]
        for number, batch in enumerate(made, epoch * len(made)):
            batch.__dict__["bad"] = number in self.at
            if self.fault == "input" and batch.__dict__["bad"]:
                batch.inputs[-1, 2] = NAN
        return made

    def loss(self, batch: ToyBatch) -> Loss:
        bad = batch.__dict__["bad"]
        if self.fault == "gradient" and bad:
            with torch.no_grad():
                self.norm(batch.inputs)
            self.before_loss(self.calls)
            self.calls += 1
            hidden = torch.tanh(self.model.first(batch.inputs))
            logits = self.model.third(torch.tanh(_BadGradient.apply(self.model.second(hidden))))
            return Loss(nn.functional.cross_entropy(logits, batch.targets, reduction="sum"), batch.items)
        if len(batch.inputs) > 1:
            self.norm(batch.inputs)  # batch normalization updates its running statistics
        loss = super().loss(batch)
        return loss._replace(total=loss.total * (NAN if self.fault == "loss" and bad else 1.0))


@pytest.mark.parametrize(
    ("fault", "told"),
    [("input", "input inputs of micro-batch 2 of 3"), ("loss", "the loss of micro-batch 2 of 3"),
     ("gradient", "gradient of first.weight")],
)  # fmt: skip
def test_the_first_non_finite_tensor_is_named(tmp_path: Path, fault: str, told: str) -> None:
    with pytest.raises(NonFiniteError, match=rf"^step 5: not finite .*first bad tensor: {told}; .*skip_nonfinite=10"):
        run(tmp_path, task=Faulty(fault))


@pytest.mark.parametrize("fault", ["input", "loss", "gradient"])
def test_non_finite_steps_are_skipped_within_a_budget_and_after_a_resume(tmp_path: Path, fault: str) -> None:
    config = TrainingConfig(**{**SETTINGS, "skip_nonfinite": 2, "log_every": 5, "average": 1, "ema": 0.9})
    faults = (10, 66)
    run(tmp_path / "whole", task=Faulty(fault, faults), config=config)
    for crash in (20, 60):
        with pytest.raises(Crash):
            run(tmp_path / "run", crash, task=Faulty(fault, faults), config=config, resume=crash > 20)
    task = run(tmp_path / "run", task=Faulty(fault, faults), config=config, resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert Summary.read(tmp_path / "run" / "state" / "finished.json").skipped == 2
    entries = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [(e["step"], e["skipped"]) for e in entries if "skipped" in e] == [(5, 1), (27, 2)]
    assert all(tensor.isfinite().all() for tensor in task.model.state_dict().values())


def test_a_skipped_step_only_advances_the_data(tmp_path: Path) -> None:
    flat: dict[str, Any] = {"schedule": "constant", "learning_rate": 0.1, "optimizer": "sgd", "betas": (0, 0)}
    task = Faulty("loss", at=(3,), dropout=0.0)
    train(task, TrainingConfig(steps=4, skip_nonfinite=1, **flat), tmp_path / "four", compute=toy_route())
    other = Faulty("loss", at=(), dropout=0.0)
    train(other, TrainingConfig(steps=3, **flat), tmp_path / "three", compute=toy_route())
    for name, tensor in other.model.state_dict().items():
        assert torch.equal(task.model.state_dict()[name], tensor), name


def test_an_exhausted_budget_stops_the_run_and_a_larger_one_resumes_it(tmp_path: Path) -> None:
    smaller, larger = (TrainingConfig(**{**SETTINGS, "skip_nonfinite": budget}) for budget in (1, 5))
    faults = (4, 50, 90)
    with pytest.raises(NonFiniteError, match="the limit of 1 skipped steps is reached"):
        run(tmp_path / "run", task=Faulty("loss", faults), config=smaller)
    run(tmp_path / "run", task=Faulty("loss", faults), config=larger, resume=True)
    run(tmp_path / "whole", task=Faulty("loss", faults), config=larger)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("blocks", ["none", "frozen", "whole", "checkpointed"])
def test_out_of_memory_describes_a_batch(tmp_path: Path, blocks: str) -> None:
    """Computing blocks twice is advised where it would spare something."""

    def fill(call: int) -> None:
        if call == 20:
            torch.empty(1 << 50)

    def task() -> ToyTask:
        task = ToyTask()
        if blocks != "none":
            block = Block(Attention(4, 2), FeedForward(4, 4))
            task.model.stack = Stack([block]).requires_grad_(blocks != "frozen")
        return task

    failing = task()
    failing.before_loss = fill
    config = TrainingConfig(**SETTINGS, checkpointing=blocks == "checkpointed")
    shapes = r"inputs \(\d, 4\), targets \(\d,\)"
    advice = "use --resume with training.checkpointing=true, or start again" if blocks == "whole" else "start again"
    told = rf"^step 8: out of memory with a batch of {shapes}: {advice} with smaller batches "
    with pytest.raises(BatchTooLargeError, match=told):
        train(failing, config, tmp_path, compute=toy_route())
    run(tmp_path, task=task(), config=config, resume=True)


class Pair(NamedTuple):
    """The worked example of the architecture page has such batches."""

    inputs: Tensor
    targets: Tensor

    @property
    def items(self) -> int:
        return len(self.targets)


@dataclass(slots=True)
class Slotted:
    inputs: Tensor
    targets: Tensor

    @property
    def items(self) -> int:
        return len(self.targets)


@pytest.mark.parametrize("kind", [Pair, Slotted])
def test_errors_describe_batches_of_any_class(tmp_path: Path, kind: Any) -> None:
    class Other(ToyTask):
        bad = False

        def batches(self, epoch: int) -> list[Any]:
            made = [kind(batch.inputs, batch.targets) for batch in super().batches(epoch)]
            made[3].inputs[0, 0] = NAN if self.bad else 0.0
            return made

    failing, bad = Other(), Other()
    failing.before_loss = lambda call: call == 3 and torch.empty(1 << 50)
    config = TrainingConfig(**{**SETTINGS, "accumulate": 1})
    with pytest.raises(BatchTooLargeError, match=r"a batch of inputs \(\d, 4\), targets \(\d,\): "):
        train(failing, config, tmp_path / "large", compute=toy_route())
    bad.bad = True
    with pytest.raises(NonFiniteError, match=r"^step 4: .*first bad tensor: input inputs; "):
        train(bad, config, tmp_path / "bad", compute=toy_route())


class Slow:
    """Writing takes until `go` is set; how many threads wait to write is seen in `began`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.began = threading.Event(), list[str]()
        write = checkpoints_module._write

        def slow(path: Path, tensors: Any) -> str:
            self.began.append(path.name)
            assert self.go.wait(60)
            return write(path, tensors)

        monkeypatch.setattr(checkpoints_module, "_write", slow)


def test_a_background_checkpoint_holds_the_weights_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    weights, counters = torch.zeros(5), {"best": {"value": 1}}
    with Checkpoints(tmp_path) as checkpoints:
        best = checkpoints.snapshot(1, {"w": weights})
        weights += 1
        checkpoints.save(1, {"w": weights}, {"counters": counters["best"]}, [best])
        weights += 1
        assert slow.began in ([], ["weights-00000001.safetensors"])
        assert not [*tmp_path.glob("checkpoint*")]
        slow.go.set()
        checkpoints.wait()
        assert torch.equal(load_file(tmp_path / "weights-00000001.safetensors")["w"], torch.zeros(5))
        found = Checkpoints(tmp_path).latest()
        assert found is not None
        assert torch.equal(found[1]["w"], torch.ones(5))
        assert [*found[0]["files"]] == ["weights-00000001.safetensors", "checkpoint-00000001.safetensors"]


def test_saving_waits_for_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": torch.zeros(3)}, {}, [])
        second = threading.Thread(target=checkpoints.save, args=(2, {"w": torch.ones(3)}, {}, []))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        slow.go.set()
        second.join(60)
    for step, value in ((1, 0.0), (2, 1.0)):
        assert load_file(tmp_path / f"checkpoint-0000000{step}.safetensors")["w"][0] == value


def test_a_failed_background_write_is_reported_and_nothing_is_committed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": torch.zeros(3)}, {}, [])
        checkpoints.wait()
        with monkeypatch.context() as patched:
            patched.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            best = checkpoints.snapshot(2, {"w": torch.ones(3)})
            with pytest.raises(WriteError):
                checkpoints.wait()
        with pytest.raises(WriteError, match="No space left on device; the previous content is intact"):
            checkpoints.check()
        checkpoints.save(2, {"w": torch.ones(3)}, {}, [best])
        with pytest.raises(WriteError):
            checkpoints.check()
    found = Checkpoints(tmp_path).latest()
    assert found is not None
    assert found[0]["step"] == 1


def test_the_best_and_latest_checkpoints_are_never_removed(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        best = checkpoints.snapshot(1, {"w": torch.zeros(1)})
        for step in range(1, 6):
            checkpoints.save(step, {"w": torch.full((1,), float(step))}, {}, [best])
    (tmp_path / "checkpoint-00000005.json").write_text("torn")
    again = Checkpoints(tmp_path)
    found = again.latest()
    assert found is not None
    assert found[0]["step"] == 4
    with again:
        again.save(6, {"w": torch.ones(1)}, {}, [best])
    kept = {path.name for path in tmp_path.glob("*.json")}
    assert {"checkpoint-00000004.json", "checkpoint-00000006.json"} <= kept
    assert (tmp_path / "weights-00000001.safetensors").exists()
