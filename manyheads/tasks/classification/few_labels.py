"""What pretraining is worth where few texts have labels (Devlin 2018, section 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from manyheads.recipes.run import Run
from manyheads.tasks.classification.run import ANY, FINE_TUNING, ClassificationConfig, single_sentence

IMDB_1000 = replace(
    ANY,
    names=("negative", "positive"),
    items=1000,
    max_length=128,
    truncate=True,
    batch_items=16,
    model={"dropout": 0.1},  # pretraining repeated nothing, here everything is repeated
    training=replace(FINE_TUNING, epochs=10, learning_rate=5e-4, warmup=60, metric="accuracy"),
)


def imdb_1000(config: ClassificationConfig = IMDB_1000, *, run: Run) -> dict[str, Any] | None:
    """manyheads train bert/imdb-1000 data=DIR --init RUN [scratch=true]

    The model of `bert/imdb` fine-tuned on 1,000 labelled reviews, the epoch with the best validation accuracy kept;
    with scratch=true the same model with new weights, on the same reviews. Some minutes each on one core.
    """
    return single_sentence(config, run=run)
