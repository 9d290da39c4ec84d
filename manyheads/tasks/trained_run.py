"""Result of `manyheads.train`: the record of a run, with its model, metrics and training log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from html import escape
from logging import WARNING, LogRecord
from pathlib import Path

from torch import nn

from manyheads.displays import Table
from manyheads.files import JsonObject
from manyheads.runs.result import RunResult
from manyheads.tasks.evaluation import values
from manyheads.tasks.loading import LoadedModel, load
from manyheads.training.run_log import read_metrics

MAX_VALIDATIONS = 12  # number of the last validations that a notebook shows below a run


class History(Table):
    """Training log: the entries of metrics.jsonl, as a list of dictionaries, which notebooks show as a table.

    The names of validation metrics begin with `validation_`, to distinguish them from metrics of training batches.
    """

    def __init__(self, entries: Iterable[JsonObject]) -> None:
        for entry in entries:
            validation = entry.pop("validation", {})
            self.append(entry | {f"validation_{name}": value for name, value in validation.items()})

    def validations(self) -> Table:
        """Return a table with one row for each validation: epoch, step, last training loss and validation metrics."""
        rows, loss = Table(), None
        for entry in self:
            loss = entry.get("loss", loss)
            metrics = {name: value for name, value in entry.items() if name.startswith("validation_")}
            if metrics:
                rows.append({"epoch": entry["epoch"], "step": entry["step"], "loss": loss, **metrics})
        return rows


class TrainedRun(RunResult):
    """Run that has trained a model: the content of result.json as a dictionary, which is empty for a stopped run.

    directory  directory of the run
    warnings   warnings that were logged during the run
    messages   all messages that were logged during the run, including the warnings
    """

    def __init__(self, result: RunResult | None, directory: Path, log: Sequence[LogRecord] = ()) -> None:
        super().__init__(result or {})
        self.directory = directory
        self.warnings = [record.getMessage() for record in log if record.levelno >= WARNING]
        self.messages = [record.getMessage() for record in log]
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
        scores = super()._repr_html_() if self else f"{escape(str(self.directory))}: stopped"
        rows = self.history.validations()
        epochs = f"validations{Table(rows[-MAX_VALIDATIONS:])._repr_html_()}" if rows else ""
        warnings = "".join(f"<p>warning: {escape(warning)}</p>" for warning in self.warnings)
        messages = f"<details><summary>messages</summary><pre>{escape(chr(10).join(self.messages))}</pre></details>"
        return f"{scores}{epochs}{warnings}{messages if self.messages else ''}"
