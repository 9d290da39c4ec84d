"""Recipes for copying, reversing and adding strings of digits (Dehghani 2018, section 4.4).

The test strings are longer than the training strings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from manyheads.core.config import Config, Count, Length
from manyheads.errors import UserError
from manyheads.runs.recipe import Recipe, Threads
from manyheads.training.config import TrainingConfig


@dataclass(frozen=True)
class DigitsConfig(Config):
    """Settings of a training run on strings of digits.

    algorithm     operation to learn. It is to copy or reverse a string of digits, or add two numbers
    model         architecture to train; `network` overrides fields of its config
    network       overrides fields of the architecture, such as network.layers=2
    longest       maximum length of a training input in characters; lengths are distributed uniformly
    size          number of training inputs
    lengths       lengths of the test inputs
    tested        number of test inputs of each length
    offsets       true: the position indices of each training text start at a random number, so that training covers all
                  positions of the longest test text. An LSTM has no positions and ignores this setting
    batch_tokens  maximum number of tokens in a micro-batch. Padding is included. Source and target texts are counted
                  separately
    threads       number of CPU threads; None: PyTorch's default
    """

    algorithm: Literal["copy", "reverse", "addition"] = "copy"
    model: Literal["universal", "transformer", "lstm"] = "universal"
    network: dict[str, Any] = field(default_factory=dict)
    longest: Length = 40
    size: Count = 40_000
    lengths: tuple[Length, ...] = (20, 40, 60, 80, 120, 160, 240, 400)
    tested: Count = 100
    offsets: bool = True
    batch_tokens: Count = 1024
    threads: Threads | None = None
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            steps=4000, schedule="cosine", learning_rate=2e-3, warmup=300, clip=1.0, validate_every=500,
            checkpoint_every=500, log_every=50,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengths or list(self.lengths) != sorted({*self.lengths}):
            raise UserError(f"lengths is {list(self.lengths)}: expected increasing lengths, such as 40,80,400")


def _recipe(algorithm: Literal["copy", "reverse", "addition"], summary: str, about: str) -> Recipe:
    return Recipe(
        summary, "Dehghani et al. 2018", DigitsConfig(algorithm), "papers.universal.run:Digits", about,
        options="[model=universal|transformer|lstm] [offsets=false]", program="python -m papers.universal",
    )  # fmt: skip


RECIPES = {
    "universal/copy": _recipe(
        "copy", "a model that copies digits, tested on strings ten times as long as in training",
        """It trains on up to 40 digits and tests on up to 400. Published accuracy at 400 digits (table 4),
        characters / whole strings: LSTM .45 / .09, Transformer .53 / .03, Universal Transformer .91 / .35.""",
    ),
    "universal/reverse": _recipe(
        "reverse", "a model that reverses digits, tested on strings ten times as long as in training",
        "Published results at 400 digits: LSTM .66 / .11, Transformer .13 / .06, Universal Transformer .96 / .46.",
    ),
    "universal/addition": _recipe(
        "addition", "a model that adds two numbers, least significant digit first, "
                    "tested on strings ten times as long as in training",
        "Published results at 400 digits: LSTM .08 / .00, Transformer .07 / .00, Universal Transformer .34 / .02.",
    ),
}  # fmt: skip
