"""Recipes that pretrain BERT on running text; those that fine-tune it are the recipes of the tasks, with --init."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from manyheads.core.config import Config, Count, Vocabulary
from manyheads.runs.recipe import FINE_TUNING, Recipe, Threads
from manyheads.training.config import TrainingConfig

if TYPE_CHECKING:
    from manyheads.data.text.pretraining import Rules

RUN = "manyheads.tasks.masked_words.run"


def _paper(**settings: Any) -> TrainingConfig:
    """Devlin 2018, appendix A.2, and the original code's optimiser."""
    paper: dict[str, Any] = {
        "optimiser": "bert_adam", "schedule": "linear", "learning_rate": 1e-4, "betas": (0.9, 0.999), "eps": 1e-6,
        "weight_decay": 0.01, "clip": 1.0, "validate_every": 10_000,
    }  # fmt: skip
    return TrainingConfig(**{**paper, **settings})


@dataclass(frozen=True)
class PretrainingConfig(Config):
    """What a pretraining is made of.

    data           a text file with blank lines between documents, a table with a text in the `column` of every row, or
                   a directory of such files (`data/documents.py`); None: the documentation in Python's standard library
    validation     the same, for validation; None: 5% of the documents
    preset         of BERT, such as mini; `model` overrides its fields
    vocabulary     ids of the WordPiece vocabulary, trained on the text; `lowercase` also strips accents
    next_sentence  predict, too, whether a text follows another; without, examples are one span of text
    length         tokens of an example
    share          of the tokens that are to be predicted: 15% in the paper; Wettig 2022 finds 40% better
    predictions    how many they are at most; None: no limit. (The paper's, 20 of 128 tokens, never binds.)
    whole_words    mask all pieces of a word together
    copies         None: new examples in every epoch. The paper: 10, and then they come again
    batch_tokens   padded tokens of a micro-batch
    """

    data: str | None = None
    validation: str | None = None
    column: str = "text"
    preset: str = "tiny"
    model: dict[str, Any] = field(default_factory=dict)
    vocabulary: Vocabulary = 4000
    lowercase: bool = True
    next_sentence: bool = True
    length: int = 128
    share: float = 0.15
    predictions: int | None = None
    whole_words: bool = False
    copies: int | None = None
    batch_tokens: Count = 2048
    threads: Threads | None = None
    training: TrainingConfig = field(default_factory=lambda: _paper(steps=1_000_000, warmup=10_000))

    @property
    def rules(self) -> Rules:
        from manyheads.data.text.pretraining import Rules

        return Rules(
            length=self.length, next_sentence=self.next_sentence, share=self.share, predictions=self.predictions,
            whole_words=self.whole_words, copies=self.copies,
        )  # fmt: skip


EMBEDDED = PretrainingConfig(
    model={"dropout": 0.0, "attention_dropout": 0.0},
    training=_paper(steps=1200, warmup=120, learning_rate=1e-3, validate_every=400, checkpoint_every=400, log_every=20),
)

# 33 million tokens, not quite an hour on one core: no pairs, so that every token is context, no dropout, as a
# review comes twice, masked anew, and Adam with its bias correction (without, the loss stayed at word frequencies).
IMDB = PretrainingConfig(
    model={"max_positions": 128, "dropout": 0.0, "attention_dropout": 0.0},
    vocabulary=8000,
    next_sentence=False,
    length=128,
    training=_paper(
        optimiser="adamw", betas=(0.9, 0.98), steps=16_000, warmup=200, learning_rate=2e-3, validate_every=2000,
        checkpoint_every=1000, log_every=50,
    ),
)  # fmt: skip

RECIPES = {
    "bert/pretraining": Recipe(
        "a tiny BERT on the standard library's documentation, or any BERT on your text", "Devlin et al. 2018",
        EMBEDDED, RUN,
        """Masked words and the next sentence (section 3.1); the documentation takes about three minutes on two cores.
        The paper: preset=base-uncased vocabulary=30522, batches of 256 examples, a million steps, of which 900,000 with
        length=128 and the rest with length=512 and --init.""",
        options="[data=TEXT] [next_sentence=false] [preset=base-uncased]", init="may",
        with_init=replace(EMBEDDED, training=FINE_TUNING),
    ),
    "bert/imdb": Recipe(
        "a small BERT on film reviews, to start classifiers from", "Devlin et al. 2018", IMDB, RUN,
        "The 50,000 reviews that nobody has labelled, to start `bert/imdb-1000` from; almost an hour.",
        requires={"data": "PATH of IMDB's unsupervised.parquet"}, init="may",
    ),
}  # fmt: skip
