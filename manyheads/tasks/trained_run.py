"""Result of `manyheads.train`: the record of a run, with its model, metrics and training log."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from torch import nn

from manyheads.files import JsonObject
from manyheads.runs.result import RunResult
from manyheads.tasks.evaluation import values
from manyheads.tasks.loading import LoadedModel, load
from manyheads.training.run_log import read_metrics


class History(list[JsonObject]):
    """Training log: the entries of metrics.jsonl, as a list of dictionaries.

    The names of validation metrics begin with `validation_`, to distinguish them from metrics of training batches. If
    pandas is installed, notebooks show the list as a frame.
    """

    def __init__(self, entries: Iterable[JsonObject]) -> None:
        for entry in entries:
            validation = entry.pop("validation", {})
            self.append(entry | {f"validation_{name}": value for name, value in validation.items()})

    def _repr_html_(self) -> str | None:
        try:
            import pandas as pd
        except ModuleNotFoundError:
            return None
        html: str = pd.DataFrame(self).to_html(na_rep="")
        return html


class TrainedRun(RunResult):
    """Run that has trained a model: the content of result.json as a dictionary, which is empty for a stopped run.

    directory  directory of the run
    """

    def __init__(self, result: RunResult | None, directory: Path) -> None:
        super().__init__(result or {})
        self.directory = directory
        self.next_command = "" if result is None else result.next_command

    @cached_property
    def predictor(self) -> LoadedModel:
        """The trained model, as `manyheads.load` returns it. If the run was stopped, it has the best weights so far."""
        return load(self.directory)

    @property
    def model(self) -> nn.Module:
        module: nn.Module = self.predictor.model
        return module

    @property
    def metrics(self) -> dict[str, float]:
        """Value of each metric on the test data. If there are no test scores, on the validation data."""
        return values(next(iter(self.scores.values()), {}))

    @property
    def validation(self) -> dict[str, float]:
        """Value of each metric of the final weights on the validation data, for comparing settings."""
        return values(self.scores.get("validation", {}))

    @property
    def history(self) -> History:
        """Entries of the training log: losses, learning rates and validations."""
        return History(read_metrics(self.directory / "metrics.jsonl"))

    def _repr_html_(self) -> str:
        return super()._repr_html_() if self else f"{self.directory}: stopped"
