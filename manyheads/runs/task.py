"""Interface between runs and tasks. A task reads its data, builds its model and scores it; `run.py` does the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeAlias, TypeVar

from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.splits import Data as Items
from manyheads.data.readers.splits import SplitData
from manyheads.files import JsonMapping, JsonObject
from manyheads.runs.estimate import Plan
from manyheads.runs.options import Run
from manyheads.runs.recipe import RunConfig
from manyheads.training.config import TrainingConfig
from manyheads.training.objective import Objective
from manyheads.training.record import Metrics

C = TypeVar("C", bound=RunConfig)
D = TypeVar("D", bound=Items)
# Result of a run: the content of result.json, the estimate of a dry run, or a table; None if the run was stopped.
Report: TypeAlias = JsonObject | str | None


class Data(Protocol[D]):
    """Interface of the data of a run. The class `Source` (`data/sources/source.py`) implements it."""

    unit: ClassVar[str]

    def read(self) -> SplitData[D]: ...

    def summary_lines(self, splits: SplitData[D]) -> list[str]: ...

    def report(self, splits: SplitData[D]) -> str: ...

    def describe(self, splits: SplitData[D]) -> JsonObject: ...


@dataclass
class Job:
    """Model of a run with its objective and its training settings, built from the data.

    model      model to train
    training   settings with which the training loop trains the objective
    objective  batches, loss and validation of the model
    flops      training FLOPs per unit of the objective (token, image, ...)
    identity   further values that identify the run, in addition to settings and data
    record     further entries of result.json; `Task.score` may add entries
    """

    model: Model[Config]
    training: TrainingConfig
    objective: Objective
    flops: float | None = None
    identity: JsonMapping = field(default_factory=dict)
    record: JsonObject = field(default_factory=dict)


class Task(Generic[C, D]):
    """Base class of the tasks of recipes. An object carries out one run.

    C is the class of the recipe's configuration, D the class of the data of a split. A run calls the methods in the
    order in which they are defined here. A method of a subclass may store values for later methods in attributes.

    may_change  settings that only affect the use of the trained model, and may change when a run is resumed
    """

    may_change: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: C, run: Run) -> None:
        self.config, self.run = config, run

    def check(self) -> None:
        """Raise UserError for options that have no effect in this run, before any data are read."""

    def planned_model(self) -> Model[Config]:
        """Return the model that a run without `--init` trains, on the meta device."""
        raise NotImplementedError

    def plan(self) -> Plan:
        """Return the model and batch whose cost is estimated: the planned model, or the model of `--init`."""
        raise NotImplementedError

    def data(self) -> Data[D]:
        """Return the data of the run, which are not read yet."""
        raise NotImplementedError

    def build(self, splits: SplitData[D], compute: ComputeConfig) -> Job:
        """Build the model and its training from the data. Called after seeding."""
        raise NotImplementedError

    def calibrate(self, validation: D, compute: ComputeConfig) -> JsonObject:
        """Return entries of result.json that the saved model's predictions on the validation data determine."""
        return {}

    def score(self, held: D, compute: ComputeConfig) -> Metrics:
        """Return the metrics of the saved model on the test data, or on the validation data if `scored=validation`.

        The file result.json contains these metrics in addition to the metrics of the last validation.
        """
        return {}

    def example(self, held: D) -> list[str]:
        """Return the words of a command that applies the trained model to an item of the data.

        The words are a verb such as "translate" and its arguments. The list is empty if no command applies the model.
        """
        return []

    def close(self) -> None:
        """Release the resources of the run. Called at the end, even after an error."""


class DataTask(Task[C, D]):
    """Task whose data the user may give: `data` and `validation`, and perhaps other settings of `DataConfig`."""

    @property
    def located(self) -> JsonObject:
        """Return the arguments of `Source` that describe the user's data: files, seed and treatment of faulty items."""
        given = vars(self.config)
        return {
            "data": given["data"], "validation": given["validation"], "test": given.get("test"),
            "fraction": given.get("held_out"), "skip_bad_lines": self.run.skip_bad_lines,
            "seed": self.config.training.seed, "memory": self.run.memory,
        }  # fmt: skip
