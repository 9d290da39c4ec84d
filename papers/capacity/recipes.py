"""Recipe that compares three kinds of language models over their size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from manyheads.core.config import Count, Distinct, Range, Rate
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.recipe import DataConfig, Recipe
from manyheads.tasks.language.recipes import EMBEDDED_TRAINING, LanguageModelingConfig
from manyheads.training.config import TrainingConfig

Architecture = Literal["lstm", "convolution", "transformer"]

SIZES = ("0.1", "0.25", "0.7", "2", "5")  # millions of parameters without embeddings, rounded
# The widths at which the three models have nearly equal numbers of parameters, for each size.
WIDTHS: dict[Architecture, tuple[int, ...]] = {
    "lstm": (84, 126, 208, 360, 556),  # two layers
    "convolution": (56, 84, 140, 240, 368),  # six layers
    "transformer": (48, 72, 120, 208, 320),  # four layers of four heads
}
# of each size, from short trainings of each model with 0.25 and 2 million parameters at three or four learning rates
LEARNING_RATES: dict[Architecture, tuple[float, ...]] = {
    "lstm": (8e-3, 8e-3, 8e-3, 8e-3, 8e-3),
    "convolution": (14e-3, 12e-3, 8e-3, 6e-3, 4.5e-3),
    "transformer": (10e-3, 6e-3, 3e-3, 1.5e-3, 0.9e-3),
}
# settings of each row
ROWS: dict[str, JsonObject] = {
    f"{architecture}-{size}": {
        "row": f"{architecture}-{size}",
        "model.width": WIDTHS[architecture][i],
        "training.learning_rate": LEARNING_RATES[architecture][i],
    }
    for architecture in WIDTHS
    for i, size in enumerate(SIZES)
}


TRAINING = replace(EMBEDDED_TRAINING, steps=2000, checkpoint_every=250)


@dataclass(frozen=True)
class CapacityConfig(DataConfig):
    """Settings of a comparison of language models over their size. Each row has its own model and learning rate.

    data     path of a text file. With none, the source code of Python's standard library is used
    share    fraction of the text that is used for validation: its end
    block    number of characters that a model reads at once
    blocks   number of blocks in a batch
    dropout  dropout of all models
    rows     names of the models, such as lstm-0.1: an LSTM with 0.1 million parameters
    """

    scored: Literal["test", "validation"] = "validation"
    share: Annotated[float, Range(0, 1, above=True, below=True)] = 0.1
    block: Annotated[int, Range(2, 1024)] = 128
    blocks: Count = 6
    dropout: Rate = 0.0
    rows: Annotated[tuple[str, ...], Distinct(1)] = tuple(ROWS)
    training: TrainingConfig = TRAINING

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := [name for name in self.rows if name not in ROWS]:
            raise UserError(f"rows: no model {', '.join(unknown)}: expected some of {', '.join(ROWS)}")


@dataclass(frozen=True)
class RowConfig(LanguageModelingConfig):
    """Settings of the training of one model.

    row  name of the model, which begins with its architecture; `model` sets its width
    """

    row: str = "transformer"

    @property
    def architecture(self) -> str:
        return self.row.partition("-")[0]


RECIPES = {
    "language-modeling/capacity": Recipe(
        "LSTMs, convolutions and Transformers of 0.1 to 5 M parameters, which predict characters", "Kaplan et al. 2020",
        CapacityConfig(), "papers.capacity.run:train",
        """It trains every model on the same batches in the same order and writes a table of the loss on the last tenth
        of the text. Each run has its own directory below --out and can be resumed. The entry "curve" of its result.json
        has all validations. training.learning_rate replaces the learning rates of the rows. All rows take about 45
        minutes on one core.""",
        options="[data=FILE] [rows=[lstm-0.1,transformer-0.1]] [training.seed=2]", program="python -m papers.capacity",
    ),
}  # fmt: skip
