"""Recipe that trains a translator without each part of the Transformer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from manyheads.core.config import Distinct
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.ablation import Rows
from manyheads.runs.recipe import Recipe
from manyheads.tasks.translation.recipes import TranslationConfig
from manyheads.training.config import TrainingConfig

RATE = "training.learning_rate"
# Norms after the sublayers, as published. With the learning rate of the other rows, such a model does not learn.
POST: JsonObject = {"model.norm": "post", "model.final_norm": False, RATE: 3e-3}
# A normalization of each kind before the sublayers is a row; without normalization, "pre" and "post" are one model.
ROWS: Rows = {
    "full": {},
    "no-residual": {"without": "residual"},
    "no-scale": {"without": "scale"},
    "no-feed-forward": {"without": "feed_forward"},
    "no-positions": {"without": "positions"},
    "one-head": {"model.encoder_heads": 1, "model.decoder_heads": 1},
    "batch": {"model.normalization": "batch"},
    "none": {"model.normalization": "none"},
    "post": POST,
    "post-batch": {**POST, "model.normalization": "batch"},
}


@dataclass(frozen=True)
class RowConfig(TranslationConfig):
    """Settings of the translator of a row.

    without  part that the model lacks. "scale" is the division of the attention scores by the square root of the key
             width
    """

    without: Literal["nothing", "residual", "scale", "feed_forward", "positions"] = "nothing"


@dataclass(frozen=True)
class PartsConfig(TranslationConfig):
    """Settings of a comparison of translators that lack a part.

    rows  names of the models
    """

    rows: Annotated[tuple[str, ...], Distinct(1)] = tuple(ROWS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := [name for name in self.rows if name not in ROWS]:
            raise UserError(f"rows: no model {', '.join(unknown)}: expected some of {', '.join(ROWS)}")

    @property
    def base(self) -> RowConfig:
        """Settings of the row that lacks nothing."""
        return RowConfig(**{f.name: getattr(self, f.name) for f in fields(TranslationConfig)})


PARTS = PartsConfig(
    model={
        "norm": "pre", "final_norm": True, "dropout": 0.1, "width": 64, "encoder_layers": 3, "decoder_layers": 3,
        "encoder_heads": 4, "decoder_heads": 4, "encoder_feed_forward": 256, "decoder_feed_forward": 256,
    },
    vocabulary=2000,
    batch_tokens=2048,
    beam=1,
    # Without a part, a step may overflow. Such a step is skipped and counted, so that the other rows still train.
    training=TrainingConfig(
        steps=300, schedule="inverse_sqrt", learning_rate=1.2e-2, warmup=60, clip=1.0, validate_every=50,
        checkpoint_every=100, skip_nonfinite=10_000,
    ),
)  # fmt: skip

RECIPES = {
    "translation/parts": Recipe(
        "translators without residual connections, normalization and other parts, in small", "Vaswani et al. 2017",
        PARTS, "papers.ablations.run:train",
        """It trains a small translator without each part on the same batches, and writes a table of BLEU and loss.
        Each run has its own directory below --out and can be resumed. A model that lacks a part has no model
        directory: its weights are in the file ablated.safetensors.""",
        options="[rows=[full,no-residual]] [model.encoder_layers=12 model.decoder_layers=12] [training.seed=2]",
        program="python -m papers.ablations",
        requires={"data": "DIR with train, val and test_2016_flickr of Multi30k"},
    ),
}  # fmt: skip
