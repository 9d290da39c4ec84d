"""Training: one straight-line loop over a `Task`. Knows no model."""

from manyheads.training.config import TrainingConfig
from manyheads.training.interrupt import Interrupted
from manyheads.training.loop import NonFiniteError, Summary, claim, run_status, train
from manyheads.training.record import write_result
from manyheads.training.task import Batch, Route, Task

__all__ = [
    "Batch",
    "Interrupted",
    "NonFiniteError",
    "Route",
    "Summary",
    "Task",
    "TrainingConfig",
    "claim",
    "run_status",
    "train",
    "write_result",
]
