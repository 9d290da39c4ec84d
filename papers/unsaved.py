"""Objective of a model that no model directory can represent, such as a model that only an experiment needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from manyheads.training.objective import Better, Loss, Objective


@dataclass(frozen=True)
class Unsaved:
    """Objective that trains as the given one, but saves no model directory. A resumed run needs only its checkpoints.

    Without a config.json, no command can load the run as a model of another architecture.
    """

    objective: Objective

    @property
    def model(self) -> nn.Module:
        return self.objective.model

    @property
    def unit(self) -> str:
        return self.objective.unit

    @property
    def metrics(self) -> Mapping[str, Better]:
        return self.objective.metrics

    def batches(self, epoch: int) -> Sequence[Any]:
        return self.objective.batches(epoch)

    def loss(self, batch: Any) -> Loss:
        return self.objective.loss(batch)

    def validate(self) -> dict[str, float]:
        return self.objective.validate()

    def save(self, directory: Path) -> str:
        """Save nothing."""
        return ""
