"""Recipes of strings of digits copied, reversed and added, longer ones than trained on (Dehghani 2018, section 4.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from manyheads.core.config import Config, Count, Length
from manyheads.errors import UserError
from manyheads.runs.recipe import Recipe, Threads
from manyheads.training.config import TrainingConfig


@dataclass(frozen=True)
class DigitsConfig(Config):
    """What a run on digits is made of.

    algorithm     what becomes of a string of digits
    model         what is trained; `network` overrides fields of its configuration
    longest       characters of an input that is trained on, at most; `size` inputs, of all lengths alike
    lengths       of the inputs that are tested, `tested` of each
    offsets       while training a text begins at any position that the longest tested one has, so that none is new;
                  an LSTM has no positions
    batch_tokens  padded tokens of a micro-batch, on each side
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
            raise UserError(f"lengths is {list(self.lengths)}: expected rising lengths to test, such as 40,80,400")


def _on(algorithm: Literal["copy", "reverse", "addition"], summary: str, about: str) -> Recipe:
    return Recipe(
        summary, "Dehghani et al. 2018", DigitsConfig(algorithm), "manyheads.tasks.digits.run", about,
        options="[model=universal|transformer|lstm] [offsets=false]",
    )  # fmt: skip


RECIPES = {
    "universal/copy": _on(
        "copy", "digits copied, ten times as many as in training; or by a Transformer, an LSTM",
        """Trained on up to 40 digits, tested on up to 400. Published at 400 (table 4), characters / strings: LSTM .45 /
        .09, Transformer .53 / .03, Universal Transformer .91 / .35.""",
    ),
    "universal/reverse": _on(
        "reverse", "digits reversed, likewise",
        "Published at 400: LSTM .66 / .11, Transformer .13 / .06, Universal Transformer .96 / .46.",
    ),
    "universal/addition": _on(
        "addition", "two numbers added, the least significant digit first, likewise",
        "Published at 400: LSTM .08 / .00, Transformer .07 / .00, Universal Transformer .34 / .02.",
    ),
}  # fmt: skip
