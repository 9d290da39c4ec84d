"""Session of a training run: the state of the run in this process, from its start or a checkpoint until it stops."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Self

import torch
from safetensors.torch import load_file
from torch import nn

from manyheads.core.block import trainable_stacks
from manyheads.core.config import as_dict
from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.training.checkpoints import Checkpoints, mean_tensors
from manyheads.training.config import TrainingConfig
from manyheads.training.distributed import distributed_context
from manyheads.training.distributed_map import divide_batches
from manyheads.training.objective import Objective
from manyheads.training.optimizers import optimizer_for
from manyheads.training.parallel import parallelize
from manyheads.training.schedules import schedule, steps_per_epoch
from manyheads.training.state import Counters, capture, load_weights, weights
from manyheads.training.tuning import select_trained


class Interrupted(KeyboardInterrupt):
    """Exception for a run that was interrupted and has written a checkpoint. The command line exits with status 130."""


class Signals:
    """Context manager that stores the first SIGINT, SIGTERM or SIGHUP, so that the training loop can stop after a step.

    The number of the signal is stored in `received`. A second signal ends the process at once. This is safe because
    files are only replaced atomically. Signals that the process ignores (as with nohup) remain ignored. A signal
    handler that was not installed from Python remains, because Python could not restore it afterwards.
    """

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python handles signals only in the main thread.
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


class TrainingSession:
    """State of a training run in this process, from its start or a checkpoint until it ends or stops.

    identity        settings, number of batches and environment of the run. Each checkpoint contains them, and a resumed
                    run compares them with its own
    resume_command  command shown to the user if the run stops early
    max_minutes     wall time after which this session stops
    learning_rate   function from the step, which begins at 1, to the learning rate
    parameters      trained parameters
    ema_weights     exponential moving average of the weights by name; empty without `config.ema`
    seconds_before  wall time of earlier sessions
    data_ranks      ranks among which the rows of a batch are divided
    stopped         True if a callback of rank 0 stops the session

    A new session is at step 0, on the device of the model. All ranks get the weights of rank 0.
    """

    def __init__(
        self,
        objective: Objective,
        config: TrainingConfig,
        out: Path,
        compute: ComputeConfig,
        *,
        batches: int,
        settings: JsonMapping,
        resume_command: str,
        max_minutes: float | None,
    ) -> None:
        self.objective, self.config, self.out, self.compute = objective, config, out, compute
        self.batches_per_epoch, self.resume_command, self.max_minutes = batches, resume_command, max_minutes
        self.model, self.ranks = objective.model, distributed_context()
        degree = {"tensor_parallel": config.tensor_parallel} if config.tensor_parallel > 1 else {}
        self.identity: JsonObject = {
            "config": as_dict(config), "settings": json.loads(json.dumps(dict(settings))), "batches": batches,
            "environment": {**compute.describe(), **self.ranks.shown, **degree},
        }  # fmt: skip
        select_trained(self.model, config)
        _set_checkpointing(self.model, config.checkpointing)
        self.strategy = parallelize(
            self.model, self.ranks, compute, shard=config.shard, tensor_parallel=config.tensor_parallel
        )
        self.data_ranks = self.strategy.data_ranks
        self.optimizer = optimizer_for(self.model, config)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.learning_rate = schedule(config, steps_per_epoch(config, batches))
        averaged = {} if config.ema is None else weights(self.model)
        self.ema_weights = {name: tensor.clone() for name, tensor in averaged.items()}
        self.checkpoints = Checkpoints(out / "state")
        self.counters = Counters()
        self.stopped = False
        self.start_clock()

    def start_clock(self) -> None:
        self.started, self.seconds_before = time.monotonic(), self.counters.seconds

    def elapsed(self) -> float:
        """Return the number of seconds since this session began training."""
        return time.monotonic() - self.started

    def save(self, sync_log: Callable[[], None], *, wait: bool = False) -> None:
        """Write a checkpoint of the current step in the background.

        sync_log  function that returns when the log of the run is on disk; it is called before the checkpoint becomes
                  valid
        wait      if True, return only after the checkpoint is on disk, on all ranks
        """
        tensors, content = capture(self.model, self.optimizer, self.counters, self.ema_weights)
        tensors = self.strategy.full_tensors(tensors)
        if self.ranks.first:
            needed = self.counters.needed_files()
            self.checkpoints.save(self.counters.step, tensors, {**self.identity, **content}, needed, sync_log)
        if wait:
            self.checkpoints.wait()
            self.ranks.wait()

    def snapshot(self) -> JsonObject:
        """Write the current weights into a separate file in the checkpoint directory. Return its step and its name."""
        tensors = self.strategy.full_tensors(weights(self.model))
        return self.ranks.broadcast(lambda: self.checkpoints.snapshot(self.counters.step, tensors))

    def measure(self) -> dict[str, float]:
        """Return the metrics of the current weights on the validation split.

        The ranks divide the batches among them, and all ranks get the same values.
        """
        self.model.eval()
        with torch.no_grad(), divide_batches(self.data_ranks, same_calls=self.config.shard):
            values = self.strategy.compute(self.objective.validate)
        self.model.train()
        assert values.keys() == self.objective.metrics.keys(), (
            "the metrics of the validation must match those that the objective declares"
        )
        return self.ranks.broadcast(lambda: values)

    def validate(self) -> dict[str, float]:
        """Measure the current weights, save them if they are the best so far, and return their metrics."""
        counters, metric = self.counters, self.config.metric
        values = counters.metrics = self.measure()
        counters.validated = counters.step
        if metric is not None and (counters.best is None or self._is_better(values[metric], counters.best["value"])):
            counters.best = {"value": values[metric], "metrics": values, **self.snapshot()}
            counters.without_best = 0
        elif metric is not None:
            counters.without_best += 1
        return values

    def _is_better(self, value: float, than: float) -> bool:
        """Return True if a value of the metric `config.metric` is better than another value.

        The objective declares for each metric whether higher or lower values are better.
        """
        if math.isnan(than):  # A model whose training diverged has the metric NaN. Any number is better.
            return not math.isnan(value)
        assert self.config.metric is not None
        return value < than if self.objective.metrics[self.config.metric] == "lower" else value > than

    def load_final_weights(self) -> tuple[str, int | None, dict[str, float]]:
        """Load the final weights into the model: the last weights, an average, or the best weights by validation.

        Return a description of the final weights, their step (None for an average), and their validation metrics.
        """
        config, counters, model, state = self.config, self.counters, self.model, self.out / "state"
        step: int | None = counters.step
        values, best, description = {}, counters.best, "last"
        earlier = [s for s in counters.snapshots if s["step"] < counters.step][-(config.average - 1) :]
        if config.average > 1 and earlier:
            last = self.strategy.full_tensors(weights(model), on_all_ranks=True)
            load_weights(model, mean_tensors([state / s["file"] for s in earlier], last))
            description, step = f"mean of {len(earlier) + 1}", None
        elif self.ema_weights:
            load_weights(model, self.ema_weights)
            description, step = "averaged", None
        elif counters.validated == counters.step:
            values = counters.metrics
        values = values or self.measure()
        if config.metric and best and self._is_better(best["value"], values[config.metric]):
            load_weights(model, load_file(state / best["file"]))
            description, step = f"best (step {best['step']:,})", best["step"]
            values = best.get("metrics") or self.measure()
        model.eval()
        return description, step, values


def _set_checkpointing(model: nn.Module, checkpointing: bool) -> None:
    stacks = trainable_stacks(model)
    if checkpointing and not stacks:
        raise UserError(
            f"checkpointing=true, but {type(model).__name__} has no trainable stack of blocks to recompute (blocks "
            "with batch normalization cannot be recomputed): remove the setting"
        )
    for stack in stacks:
        stack.checkpointing = checkpointing
