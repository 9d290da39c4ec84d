"""The end of a run: its reason, its counters and the metrics of the final weights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, Self

from manyheads.errors import UserError
from manyheads.files import read_json
from manyheads.training.run_directory import GO_ON
from manyheads.training.state import Counters


@dataclass(frozen=True)
class Summary:
    """The end of a run, or of a session of it. `metrics`: of `Task.validate` on the final weights."""

    status: Literal["finished", "stopped"]
    reason: str
    step: int
    epoch: int
    tokens: int  # target tokens seen, in all sessions
    seconds: float  # wall time, in all sessions
    weights: str  # which weights the model directory holds
    metrics: dict[str, float]
    skipped: int = 0  # steps that were left out, as they were not finite

    @classmethod
    def stopped(cls, reason: str, counters: Counters) -> Self:
        """Return the summary of a session that ended before the run did."""
        c = counters
        return cls("stopped", reason, c.step, c.epoch, c.tokens, c.seconds, "last", {}, c.skipped)

    @classmethod
    def finished(cls, reason: str, counters: Counters, weights: str, metrics: dict[str, float]) -> Self:
        c = counters
        return cls("finished", reason, c.step, c.epoch, c.tokens, c.seconds, weights, metrics, c.skipped)

    @classmethod
    def read(cls, path: Path) -> Self:
        values = read_json(path, GO_ON)
        if not isinstance(values, dict) or {"skipped", *values} != {f.name for f in fields(cls)}:
            raise UserError(f"{path}: not how a run ended; {GO_ON}")
        return cls(**values)
