"""Summary of a training run: the reason for its end, its counters and the metrics of the final weights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, Self

from manyheads.errors import UserError
from manyheads.files import read_json
from manyheads.training.run_directory import CONTINUE_HINT
from manyheads.training.state import Counters


@dataclass(frozen=True)
class Summary:
    """Summary of a finished run or a stopped session.

    metrics  validation metrics of the final weights, as returned by `Objective.validate`
    """

    status: Literal["finished", "stopped"]
    reason: str
    step: int
    epoch: int
    tokens: int  # number of target tokens in all sessions
    seconds: float  # wall time of all sessions in seconds
    weights: str  # description of the saved weights, such as "last"
    metrics: dict[str, float]
    skipped: int = 0  # number of skipped steps, whose loss or gradient was not finite

    @classmethod
    def stopped(cls, reason: str, counters: Counters) -> Self:
        """Return the summary of a session that stopped before the end of the run."""
        c = counters
        return cls("stopped", reason, c.step, c.epoch, c.tokens, c.seconds, "last", {}, c.skipped)

    @classmethod
    def finished(cls, reason: str, counters: Counters, weights: str, metrics: dict[str, float]) -> Self:
        c = counters
        return cls("finished", reason, c.step, c.epoch, c.tokens, c.seconds, weights, metrics, c.skipped)

    @classmethod
    def read(cls, path: Path) -> Self:
        values = read_json(path, CONTINUE_HINT)
        if not isinstance(values, dict) or {"skipped", *values} != {f.name for f in fields(cls)}:
            raise UserError(f"{path}: not a valid summary of a run; {CONTINUE_HINT}")
        return cls(**values)
