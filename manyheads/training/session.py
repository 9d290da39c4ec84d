"""Session of a training run: model, optimizer, schedule, counters, averages, checkpoints and received signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from manyheads.core.block import trainable_stacks
from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError
from manyheads.files import JsonMapping
from manyheads.training.checkpoints import Checkpoints
from manyheads.training.config import TrainingConfig
from manyheads.training.distributed import DistributedContext
from manyheads.training.objective import Objective
from manyheads.training.optimizers import optimizer_for as make_optimizer
from manyheads.training.parallel import ParallelStrategy, parallelize
from manyheads.training.run_directory import Summary
from manyheads.training.schedules import schedule, steps_per_epoch
from manyheads.training.state import WINDOW, Counters, capture, weights
from manyheads.training.tuning import select_trained


class Interrupted(KeyboardInterrupt):
    """Error raised when a run was interrupted after writing a checkpoint. The command line exits with status 130."""


class Signals:
    """Context manager that handles the first interrupting signal by storing it in `received`. The training loop then
    stops.

    A second signal aborts the process at once. This is safe because files are only replaced atomically. Signals that
    the process ignores (as with nohup) stay ignored. A signal handler that was not installed from Python stays in
    place, because Python could not restore it afterwards.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python handles signals only in the main thread
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                if handler is not None and handler != signal.SIG_IGN:
                    self._previous[number] = handler
                    signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number


@dataclass(kw_only=True)
class TrainingSession:
    """State of a training run in this process, from its start or a checkpoint until it ends or stops.

    identity        description of the run, saved with each checkpoint and compared on resume
    resume_command  command shown to the user if the run stops early
    record          content of state/run.json, from which the run can be resumed and used; None: not written
    max_minutes     wall time after which this session stops
    signals         received Ctrl-C or other signals that stop the session
    release_memory  function called after each step, to return unused memory to the system (`retain_memory`)
    learning_rate   function from the step, which begins at 1, to the learning rate
    window          sums since the last log entry: the loss, and the number of correct predictions
    ema_weights     exponential moving average of the weights by name; empty without `config.ema`
    validations     metrics by step: the last validation of this session, and the best one
    seconds_before  wall time of earlier sessions
    stopped         True if a callback of rank 0 stops the session
    """

    objective: Objective
    config: TrainingConfig
    out: Path
    compute: ComputeConfig
    ranks: DistributedContext
    identity: JsonMapping
    resume_command: str
    record: JsonMapping | None
    max_minutes: float | None
    signals: Signals
    release_memory: Callable[[], None]
    strategy: ParallelStrategy
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    parameters: list[nn.Parameter]
    window: Tensor
    ema_weights: dict[str, Tensor]
    checkpoints: Checkpoints
    counters: Counters = field(default_factory=Counters)
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    seconds_before: float = 0.0
    started: float = field(default_factory=time.monotonic)
    stopped: bool = False

    @property
    def model(self) -> nn.Module:
        return self.objective.model

    @property
    def batches_per_epoch(self) -> int:
        batches: int = self.identity["batches"]
        return batches

    def summary(
        self, status: Literal["finished", "stopped"], reason: str, weights: str, metrics: dict[str, float]
    ) -> Summary:
        """Return the summary of the run at the current step."""
        c = self.counters
        return Summary(status, reason, c.step, c.epoch, c.tokens, c.seconds, weights, metrics, c.skipped)

    def start_clock(self) -> None:
        self.started, self.seconds_before = time.monotonic(), self.counters.seconds

    def elapsed(self) -> float:
        """Return the number of seconds since this session began training."""
        return time.monotonic() - self.started

    def save(self, sync_log: Callable[[], None], *, wait: bool = False) -> None:
        """Write a checkpoint of the current step in the background.

        sync_log  function that returns when the log of the run is on disk; it is called before the checkpoint becomes
                  valid
        wait      True: return only after the checkpoint is on disk, on all ranks
        """
        tensors, content = capture(self.model, self.optimizer, self.counters, self.window, self.ema_weights)
        tensors = self.strategy.full_tensors(tensors)
        if self.ranks.first:
            needed = self.counters.needed_files()
            self.checkpoints.save(self.counters.step, tensors, {**self.identity, **content}, needed, sync_log)
        if wait:
            self.checkpoints.wait()
            self.ranks.wait()


def new_session(
    objective: Objective,
    config: TrainingConfig,
    out: Path,
    *,
    compute: ComputeConfig,
    ranks: DistributedContext,
    identity: JsonMapping,
    resume_command: str,
    record: JsonMapping | None,
    max_minutes: float | None,
    signals: Signals,
    release_memory: Callable[[], None],
) -> TrainingSession:
    """Create the session of a new run at step 0 on the device of the model. All ranks get the weights of rank 0."""
    model = objective.model
    select_trained(model, config)
    _set_checkpointing(model, config.checkpointing)
    strategy = parallelize(model, ranks, compute, shard=config.shard)
    optimizer = make_optimizer(model, config)
    parameters = [p for p in model.parameters() if p.requires_grad]
    device = parameters[0].device
    accumulation_dtype = torch.float32 if device.type == "mps" else torch.float64
    return TrainingSession(
        objective=objective, config=config, out=out, compute=compute, ranks=ranks, identity=identity,
        resume_command=resume_command, record=record, max_minutes=max_minutes, signals=signals,
        release_memory=release_memory, strategy=strategy, optimizer=optimizer, parameters=parameters,
        learning_rate=schedule(config, steps_per_epoch(config, identity["batches"])),
        window=torch.zeros(len(WINDOW), dtype=accumulation_dtype, device=device),
        ema_weights={} if config.ema is None else {name: tensor.clone() for name, tensor in weights(model).items()},
        checkpoints=Checkpoints(out / "state"),
    )  # fmt: skip


def _set_checkpointing(model: nn.Module, checkpointing: bool) -> None:
    stacks = trainable_stacks(model)
    if checkpointing and not stacks:
        raise UserError(
            f"checkpointing=true, but {type(model).__name__} has no trainable stack of blocks to recompute: remove the "
            "setting"
        )
    for stack in stacks:
        stack.checkpointing = checkpointing
