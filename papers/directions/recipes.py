"""Recipes for comparing encoders by the direction in which they read a text (Devlin 2018, figure 3).

The encoders are bidirectional (as BERT), left-to-right (as GPT), and two LSTMs with opposite directions (as ELMo). The
recipe `elmo` pretrains ELMo itself, which reads characters (Peters 2018).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from manyheads.core.config import Config, Count, Range, Vocabulary
from manyheads.runs.recipe import Recipe, Threads
from manyheads.training.config import TrainingConfig


@dataclass(frozen=True)
class DirectionsConfig(Config):
    """Settings of the comparison between a bidirectional encoder, a left-to-right encoder and two opposite LSTMs.

    data          directory of files in CoNLL's column format. The encoders are trained on
                  its words, and linear classifiers on the frozen encoders predict its tags. None: `size` embedded
                  phrases of dates, amounts and names in `locale`
    locale        locale of the embedded corpus, such as en or de
    size          number of training phrases of the embedded corpus
    model         overrides fields of the encoders' config
    vocabulary    size of the subword vocabulary
    batch_tokens  maximum number of tokens in a micro-batch, padding included; a small batch has too few masked words to
                  learn from
    threads       number of CPU threads; None: PyTorch's default
    training      training settings of each encoder
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
            steps=2000, optimizer="adamw", schedule="cosine", learning_rate=2e-3, warmup=150, betas=(0.9, 0.99),
            eps=1e-8, weight_decay=0.01, clip=1.0, validate_every=1000, checkpoint_every=500, log_every=50,
        )
    )  # fmt: skip


@dataclass(frozen=True)
class ElmoPretrainingConfig(Config):
    """Settings of a pretraining run for ELMo.

    data          path of a text file with blank lines between documents, of a table with a text in the `column` of
                  every row, or of a directory of such files. None: the documentation in Python's standard library
    validation    validation data in the same format. None: 5% of the training documents are held out
    column        name of the column that holds the text, for tables
    preset        name of the ELMo preset, such as small; `model` overrides its fields
    model         overrides fields of the preset, such as model.hidden=512
    words         number of words that the model can predict, including three special ones: the most frequent words
    length        maximum number of words in a training example
    batch_tokens  maximum number of bytes in a micro-batch, padding included
    threads       number of CPU threads; None: PyTorch's default
    """

    data: str | None = None
    validation: str | None = None
    column: str = "text"
    preset: str = "small"
    model: dict[str, Any] = field(default_factory=dict)
    words: Annotated[int, Range(4, 10**7)] = 4000
    length: Count = 64
    batch_tokens: Count = 8192
    threads: Threads | None = None
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            steps=1000, optimizer="adamw", schedule="cosine", learning_rate=3e-3, warmup=100, betas=(0.9, 0.99),
            eps=1e-8, weight_decay=0.01, clip=1.0, validate_every=250, checkpoint_every=250, log_every=20,
        )
    )  # fmt: skip


RECIPES = {
    "reading": Recipe(
        "the encoders of the paper's figure 3, bidirectional, left to right and two LSTMs, and compares their features",
        "Devlin et al. 2018", DirectionsConfig(), "papers.directions.run:train",
        """Three encoders learn from the same texts. The first predicts masked words, the second the next word,
        and the third both neighbors of a word with two LSTMs. Then a linear classifier tags each word from
        their frozen features. Each encoder has its own directory below --out and can be resumed. It takes about
        eight minutes on one core.""",
        options="[data=DIR] [training.steps=N]", program="python -m papers.directions",
    ),
    "elmo": Recipe(
        "a small ELMo on the standard library's documentation, or any ELMo on your text", "Peters et al. 2018",
        ElmoPretrainingConfig(), "papers.directions.elmo:ElmoPretraining",
        """Each direction predicts the following word of its reading. The trained model is a start for classifiers
        (`manyheads train single-sentence --init RUN`). The paper's model is preset=original words=793471, trained for
        10 epochs on 30 million sentences.""",
        options="[data=TEXT] [preset=original]", program="python -m papers.directions",
    ),
}  # fmt: skip
