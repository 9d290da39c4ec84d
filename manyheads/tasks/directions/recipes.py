"""The recipe that compares three directions of reading (Devlin 2018, figure 3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from manyheads.core.config import Config, Count, Vocabulary
from manyheads.runs.recipe import Recipe, Threads
from manyheads.training.config import TrainingConfig


@dataclass(frozen=True)
class DirectionsConfig(Config):
    """What the comparison is made of.

    data          a directory of CoNLL columns (see `data/conll.py`): the encoders are trained on its words and probed
                  on its tags; None: the embedded phrases of dates, amounts and names in `locale`, `size` of them
    model         overrides fields of the encoders
    batch_tokens  padded tokens of a micro-batch: in small ones too few words are masked to learn from
    training      of each encoder
    """

    data: str | None = None
    locale: str = "en"
    size: Count = 8000
    model: dict[str, Any] = field(default_factory=dict)
    vocabulary: Vocabulary = 1000
    batch_tokens: Count = 1024
    threads: Threads | None = None
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            steps=2000, optimiser="adamw", schedule="cosine", learning_rate=2e-3, warmup=150, betas=(0.9, 0.99),
            eps=1e-8, weight_decay=0.01, clip=1.0, validate_every=1000, checkpoint_every=500, log_every=50,
        )
    )  # fmt: skip


RECIPES = {
    "reading": Recipe(
        "the paper's figure 3: both directions at once, left to right, two LSTMs, compared by their features",
        "Devlin et al. 2018", DirectionsConfig(), "manyheads.tasks.directions.run",
        """Three encoders learn from the same texts: one predicts masked words, one the next word, one both neighbours
        of a word with two LSTMs; then a linear classifier tags each word from their frozen features. Each encoder is
        resumable in a directory of its own below --out. About eight minutes on one core.""",
        options="[data=DIR] [training.steps=N]",
    ),
}  # fmt: skip
