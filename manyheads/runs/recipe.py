"""Recipes: tested training configurations. The package of each task contains its recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal, Protocol

from manyheads.core.config import Config, DataclassInstance, Range, Rate, TargetKind, values
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.training.config import TrainingConfig
from manyheads.training.run_directory import TRAIN

MAX_HELD_OUT = 0.5  # A larger fraction leaves too few items for training.
Threads = Annotated[int, Range(1, 1024)]
# Layers of the loaded model that are used: either the layers that are trained, or the layers whose states a BiLSTM
# reads.
Tuned = Literal["all", "last", "last-four"]

# Fine-tuning settings from Devlin 2018, appendix A.3: 2 to 4 epochs at learning rates from 2e-5 to 5e-5.
FINE_TUNING = TrainingConfig(
    epochs=3, optimizer="adamw", schedule="linear", learning_rate=3e-5, warmup=100, betas=(0.9, 0.999), eps=1e-6,
    weight_decay=0.01, clip=1.0, log_every=20,
)  # fmt: skip


class RunConfig(DataclassInstance, Protocol):
    """Settings that every recipe has. The class is a dataclass.

    threads   number of CPU threads; None: PyTorch's default
    training  settings of the training loop
    """

    @property
    def threads(self) -> int | None: ...

    @property
    def training(self) -> TrainingConfig: ...


@dataclass(frozen=True)
class DataConfig(Config):
    """Data settings of all runs whose data have training, validation and test splits.

    data              the user's data; None: the built-in corpus
    validation, test  data that are used instead of the splits found with the training data
    held_out          fraction of the training data that becomes validation data if there are none. None: 5%, but at
                      least 50 items if these are not more than 20%. The maximum is one half
    scored            split on which the final model is evaluated
    threads           number of CPU threads; None: PyTorch's default
    """

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    held_out: Annotated[float, Range(0, MAX_HELD_OUT, above=True)] | None = None
    scored: Literal["test", "validation"] = "test"
    threads: Threads | None = None


@dataclass(frozen=True)
class TargetConfig(DataConfig):
    """Settings of a training run whose items have labels or numbers.

    target         form of the labels. "classes": one label per item; "regression": a number, with the squared error
                   as the loss; "multi-label": any number of labels, as a list or separated by "|", with a sigmoid each
    names          names of the labels in order, for data that give labels as numbers 0, 1, ...
    threshold      minimum probability of a predicted label, for target=multi-label
    positive       label that counts as positive in the F1 score of two classes; None: the second label
    class_weights  "balanced": the loss of an item is divided by the frequency of its class; None: all items count alike
    sampling       "balanced": each epoch draws its items at random, so that all classes are equally frequent; None:
                   each epoch has every item once
    """

    target: TargetKind = "classes"
    names: tuple[str, ...] = ()
    threshold: Rate = 0.5
    positive: str | None = None
    class_weights: Literal["balanced"] | None = None
    sampling: Literal["balanced"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        classes, given = ("positive", "class_weights", "sampling"), values(self)
        unused = {"classes": ("threshold",), "regression": (*classes, "names", "threshold"), "multi-label": classes}
        defaults = {f.name: f.default for f in fields(self)}
        if idle := [name for name in unused[self.target] if given[name] != defaults[name]]:
            raise UserError(f"{', '.join(idle)}: no effect with target={self.target}; leave it out")
        if self.class_weights and self.sampling:
            raise UserError("class_weights and sampling: expected one of them, because both balance the classes")
        if self.positive is not None and self.names and self.positive not in self.names:
            raise UserError(f"positive is {self.positive!r}: expected one of the names {', '.join(self.names)}")

    @property
    def target_record(self) -> JsonObject:
        """Return the settings that the trained model needs for its predictions and scores, for result.json."""
        if self.target == "multi-label":
            return {"threshold": self.threshold}
        return {} if self.positive is None else {"positive": self.positive}


@dataclass(frozen=True)
class Recipe:
    """Recipe: a tested training configuration, with its source paper and its required input.

    summary    one-line description
    config     all settings with values; its docstring explains them
    task       "MODULE:NAME" of a `Task` class, or of a function of configuration and `Run` that returns a report. The
               module is imported late, because it requires PyTorch
    about      further description: output, duration, published results
    options    further options of the command
    requires   required settings with a description, such as {"data": "DIR with train and test of IMDB"}. The first word
               of a description is the placeholder in the command
    init       says if the run may, must or never starts from another model (`--init`)
    with_init  configuration for a run with `--init`, if it differs
    spreads    True if several processes may train the model; False: nothing is trained, and one process runs
    program    command that runs the recipe, if its name and settings follow
    """

    summary: str
    paper: str
    config: RunConfig
    task: str
    about: str = ""
    options: str = ""
    requires: Mapping[str, str] = field(default_factory=dict)
    init: Literal["may", "must", "never"] = "never"
    with_init: RunConfig | None = None
    spreads: bool = True
    program: str = TRAIN

    def command(self, name: str) -> str:
        """Return the command that runs the recipe, where `name` is the name of the recipe."""
        given = [f"{setting}={value.split()[0].rstrip(',')}" for setting, value in self.requires.items()]
        model = ["--init MODEL"] if self.init == "must" else []
        return " ".join([self.program, name, *given, *model, self.options]).rstrip()

    @property
    def text(self) -> str:
        """Return the further description as one paragraph."""
        return " ".join(self.about.split())

    @property
    def needs(self) -> str:
        """Return the required settings and options as text."""
        needs = [f"{key}={value}" for key, value in self.requires.items()]
        return "; ".join([*needs, *(["--init MODEL"] if self.init == "must" else [])]) or "nothing"

    def starting_config(self, init: str | None) -> RunConfig:
        return self.config if init is None or self.with_init is None else self.with_init
