"""Recipes: tested training configurations. The package of each task contains its recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal, Protocol

from manyheads.core.config import Config, DataclassInstance, Positive, Range, Rate, TargetKind, values
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.training.config import TrainingConfig
from manyheads.training.run_directory import TRAIN

MAX_HELD_OUT = 0.5  # A larger fraction leaves too few items for training.
Threads = Annotated[int, Range(1, 1024)]
# "all": train all layers of the loaded model. "last" and "last-four": freeze the model, and train a BiLSTM on the
# states of its last layer or its last four layers.
Tuned = Literal["all", "last", "last-four"]

# Fine-tuning settings from Devlin 2018, appendix A.3: 2 to 4 epochs at learning rates from 2e-5 to 5e-5.
FINE_TUNING = TrainingConfig(
    epochs=3, optimizer="adamw", schedule="linear", learning_rate=3e-5, warmup=100, betas=(0.9, 0.999), eps=1e-6,
    weight_decay=0.01, clip=1.0, log_every=20,
)  # fmt: skip


class RunConfig(DataclassInstance, Protocol):
    """Protocol of the settings of a recipe, a dataclass.

    threads   number of CPU threads; None for PyTorch's default
    training  settings of the training loop
    """

    @property
    def threads(self) -> int | None: ...

    @property
    def training(self) -> TrainingConfig: ...


@dataclass(frozen=True)
class DataConfig(Config):
    """Data settings of all runs whose data have training, validation and test splits.

    data              path of the user's data. With none, the built-in corpus is used
    validation, test  path of validation or test data, which replace the data found next to the training data
    held_out          fraction of the training data that becomes validation data if there are no validation data, at
                      most 0.5. With none, it is 5%, but at least 50 items if these are not more than 20% of the items
    scored            split on which the final model is evaluated
    threads           number of CPU threads. With none, PyTorch chooses it
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

    target         kind of label. "classes" means one label per item. "regression" means a number, and the loss is the
                   squared error. "multi-label" means any number of labels, as a list or separated by "|", each with a
                   sigmoid
    names          names of the labels in order, for data that give labels as numbers 0, 1, ...
    threshold      minimum probability of a predicted label, for target=multi-label: a number, or "validation" for the
                   threshold of each label with the best F1 on the validation data
    positive       label that counts as positive in the F1 score of two classes. With none, it is the second label
    class_weights  factors of the loss of each class: "balanced", or a mapping from labels to numbers, such as
                   class_weights.dog=2. Labels that are not in the mapping have the factor 1. With "balanced", the loss
                   of an item is divided by the frequency of its class. For target=multi-label, the factor of a label
                   applies to the items with the label; "balanced" is the ratio of items without and with the label
    sampling       choice of the items of an epoch. With "balanced", items are drawn at random, so that all classes are
                   equally frequent. With none, each epoch has every item once
    teacher        directory of a run or model that is the teacher in distillation (Touvron 2021, section 4), with the
                   same labels
    distillation   kind of distillation. With "hard", the student learns the teacher's label; with "soft", it learns the
                   teacher's probabilities at a `temperature`
    temperature    divisor of the logits in soft distillation
    share          weight of the distillation loss. With model.distilled=true, this loss applies to a separate token.
                   With none, it is the paper's weight, 0.5 for hard and 0.1 for soft distillation
    """

    target: TargetKind = "classes"
    names: tuple[str, ...] = ()
    threshold: Rate | Literal["validation"] = 0.5
    positive: str | None = None
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Range(0, 10**6)]] | None = None
    sampling: Literal["balanced"] | None = None
    teacher: str | None = None
    distillation: Literal["hard", "soft"] = "hard"
    share: Rate | None = None
    temperature: Positive = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        classes, given = ("positive", "class_weights", "sampling"), values(self)
        unused = {
            "classes": ("threshold",), "regression": (*classes, "names", "threshold", "teacher"),
            "multi-label": ("positive", "sampling", "teacher"),
        }  # fmt: skip
        defaults = {f.name: f.default for f in fields(self)}
        if idle := [name for name in unused[self.target] if given[name] != defaults[name]]:
            raise UserError(f"{', '.join(idle)}: no effect with target={self.target}; leave it out")
        if self.class_weights and self.sampling:
            raise UserError("class_weights and sampling: expected one of them, because both balance the classes")
        if self.class_weights and self.teacher:
            raise UserError("class_weights: no effect with a teacher; use sampling=balanced")
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
    config     all settings with their values; the docstring of its class explains them
    task       "MODULE:NAME" of a `Task` class, or of a function of configuration and `Run` that returns a report. The
               module is imported late, because it requires PyTorch
    about      longer description: output, duration, published results
    options    further options that the command of the recipe needs
    requires   required settings with a description, such as {"data": "DIR with train and test of IMDB"}. The first word
               of a description is the placeholder in the command
    init       "may", "must" or "never": whether the run starts from another model (`--init`)
    with_init  configuration for a run with `--init`, if it differs from `config`
    spreads    True if several processes may train the model; False if the recipe trains nothing
    program    beginning of the command that runs the recipe; the recipe's name and settings follow
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
        """Return the command that runs the recipe with the given name."""
        given = [f"{setting}={value.split()[0].rstrip(',')}" for setting, value in self.requires.items()]
        model = ["--init MODEL"] if self.init == "must" else []
        return " ".join([self.program, name, *given, *model, self.options]).rstrip()

    @property
    def text(self) -> str:
        """Return the longer description (`about`) as one paragraph."""
        return " ".join(self.about.split())

    @property
    def needs(self) -> str:
        """Return the required settings and options as text."""
        needs = [f"{key}={value}" for key, value in self.requires.items()]
        return "; ".join([*needs, *(["--init MODEL"] if self.init == "must" else [])]) or "nothing"

    def starting_config(self, init: str | None) -> RunConfig:
        return self.config if init is None or self.with_init is None else self.with_init
