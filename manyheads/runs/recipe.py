"""A recipe: a run that the project vouches for, as a value. The recipes of a task stand in its room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, Literal

from manyheads.core.config import Config, Range
from manyheads.errors import UserError
from manyheads.training.config import TrainingConfig

Threads = Annotated[int, Range(1, 1024)]
Tuned = Literal["all", "last", "last-four"]  # of a model to start from: which layers are trained, or read by a BiLSTM

# Devlin 2018, appendix A.3: 2 to 4 epochs at 2e-5 to 5e-5
FINE_TUNING = TrainingConfig(
    epochs=3, optimiser="adamw", schedule="linear", learning_rate=3e-5, warmup=100, betas=(0.9, 0.999), eps=1e-6,
    weight_decay=0.01, clip=1.0, log_every=20,
)  # fmt: skip


@dataclass(frozen=True)
class DataConfig(Config):
    """Settings of all runs on data that are split for training, validation and test.

    validation, test  data that take precedence over those found beside the training data
    scored            which data are scored at the end
    threads           of the processor; None: as many as PyTorch takes
    """

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    scored: Literal["test", "validation"] = "test"
    threads: Threads | None = None


@dataclass(frozen=True)
class Recipe:
    """What is trained, from which paper, and what the user has to bring.

    summary    what it trains, in a line
    config     every setting and its value; its docstring says what they mean
    module     has `train(config, run)`, which gives a report, and, where one model is trained, `planned_model(config)`;
               it is named and not imported, as it needs PyTorch
    about      what the summary leaves out: what comes out, how long it takes, what was published
    options    of the command, beside what has to be given
    requires   settings that have to be given, such as {"data": "DIR with train and test of IMDB"}; the first word
               stands for the value
    init       whether it starts from another model (`--init`): it may, it must, or it never does
    with_init  the config of a run that does, where other settings suit it
    spreads    whether several processes may train it; else there is nothing to train, and one does it
    """

    summary: str
    paper: str
    config: Any
    module: str
    about: str = ""
    options: str = ""
    requires: Mapping[str, str] = field(default_factory=dict)
    init: Literal["may", "must", "never"] = "never"
    with_init: Any = None
    spreads: bool = True

    def command(self, name: str) -> str:
        """How it is run under that name."""
        given = [f"{setting}={value.split()[0].rstrip(',')}" for setting, value in self.requires.items()]
        model = ["--init MODEL"] if self.init == "must" else []
        return " ".join(["manyheads train", name, *given, *model, self.options]).rstrip()

    @property
    def needs(self) -> str:
        """What the user has to bring, in words."""
        needs = [f"{key}={value}" for key, value in self.requires.items()]
        return "; ".join([*needs, *(["--init MODEL"] if self.init == "must" else [])]) or "nothing"

    def starting_config(self, init: str | None) -> Any:
        return self.config if init is None or self.with_init is None else self.with_init

    def train(self, config: Any, run: Any) -> Any:
        return import_module(self.module).train(config, run)

    def planned_model(self) -> Any:
        """The model that it trains, without memory. Raises UserError where that is not one model of its own."""
        planned = getattr(import_module(self.module), "planned_model", None)
        if planned is None:
            raise UserError("this recipe trains several models or none: name a model")
        return planned(self.config)
