"""Recipes for pretraining BERT on running text.

The recipes for fine-tuning BERT are in the packages of the fine-tuning tasks, such as tagging.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from manyheads.core.config import Config, Count, Vocabulary
from manyheads.files import JsonObject
from manyheads.runs.recipe import FINE_TUNING, Recipe, Threads
from manyheads.training.config import TrainingConfig

if TYPE_CHECKING:
    from manyheads.data.text.pretraining import Rules

TASK = "manyheads.tasks.masked_words.task:Pretraining"


def _paper_config(**settings: Any) -> TrainingConfig:
    """Return the training settings of Devlin 2018, appendix A.2, with the original code's optimizer."""
    paper: JsonObject = {
        "optimizer": "bert_adam", "schedule": "linear", "learning_rate": 1e-4, "betas": (0.9, 0.999), "eps": 1e-6,
        "weight_decay": 0.01, "clip": 1.0, "validate_every": 10_000,
    }  # fmt: skip
    return TrainingConfig(**{**paper, **settings})


@dataclass(frozen=True)
class PretrainingConfig(Config):
    """Settings of a pretraining run for BERT.

    data            path of a text file with blank lines between documents, of a table with a text in the `column` of
                    every row, or of a directory of such files. With none, the documentation in Python's standard
                    library is used
    validation      validation data in the same format. With none, 5% of the training documents are held out
    column          name of the column that holds the text, for tables
    preset          name of the BERT or RoBERTa preset, such as mini; `model` overrides its fields
    model           overrides fields of the preset, such as model.layers=4
    tokenizer       kind of vocabulary: "wordpiece" (BERT) or "byte-bpe" (RoBERTa)
    vocabulary      size of the vocabulary, which is trained on the text
    lowercase       if true, all text is converted to lower case. WordPiece also strips accents then
    next_sentence   if true, the model is also trained on next-sentence prediction. If false, a training example is a
                    single span of text
    full_sentences  if true, a training example is filled with consecutive sentences up to `length`, across the ends of
                    documents (RoBERTa). It requires next_sentence=false
    length          maximum number of tokens in a training example
    share           fraction of tokens to predict: 15% in the paper; 40% is better according to Wettig 2022
    predictions     maximum number of tokens to predict in a training example. With none, there is no limit. The paper's
                    limit, 20 of 128 tokens, is never reached
    whole_words     if true, all subwords of a word are masked together
    copies          number of differently masked copies of the data, after which the copies repeat (10 in the paper).
                    With none, every epoch has new masks
    batch_tokens    maximum number of tokens in a micro-batch, including padding
    threads         number of CPU threads. With none, PyTorch chooses it
    """

    data: str | None = None
    validation: str | None = None
    column: str = "text"
    preset: str = "tiny"
    model: JsonObject = field(default_factory=dict)
    tokenizer: Literal["wordpiece", "byte-bpe"] = "wordpiece"
    vocabulary: Vocabulary = 4000
    lowercase: bool = True
    next_sentence: bool = True
    full_sentences: bool = False
    length: int = 128
    share: float = 0.15
    predictions: int | None = None
    whole_words: bool = False
    copies: int | None = None
    batch_tokens: Count = 2048
    threads: Threads | None = None
    training: TrainingConfig = field(default_factory=lambda: _paper_config(steps=1_000_000, warmup=10_000))

    @property
    def rules(self) -> Rules:
        from manyheads.data.text.pretraining import Rules

        return Rules(
            length=self.length, next_sentence=self.next_sentence, share=self.share, predictions=self.predictions,
            whole_words=self.whole_words, copies=self.copies, full_sentences=self.full_sentences,
        )  # fmt: skip


EMBEDDED = PretrainingConfig(
    model={"dropout": 0.0, "attention_dropout": 0.0},
    training=_paper_config(
        steps=1200, warmup=120, learning_rate=1e-3, validate_every=400, checkpoint_every=400, log_every=20
    ),
)

# The optimizer is that of Liu 2019, table 9. In 600 steps, this model reads as many tokens as EMBEDDED in 1,200.
ROBERTA = replace(
    EMBEDDED,
    preset="roberta/tiny",
    tokenizer="byte-bpe",
    lowercase=False,
    next_sentence=False,
    full_sentences=True,
    training=replace(
        EMBEDDED.training, optimizer="adamw", betas=(0.9, 0.98), clip=None, accumulate=2, steps=600, warmup=36,
        learning_rate=2e-3, validate_every=200, checkpoint_every=200,
    ),
)  # fmt: skip

# With these settings, a run reads 33 million tokens in slightly less than an hour on one core. Training examples are
# single spans, so that every token is context. Each review is seen twice with different masks, so no dropout is needed.
# Adam uses bias correction; without it, the model learned only word frequencies.
IMDB = PretrainingConfig(
    model={"max_positions": 128, "dropout": 0.0, "attention_dropout": 0.0},
    vocabulary=8000,
    next_sentence=False,
    length=128,
    training=_paper_config(
        optimizer="adamw", betas=(0.9, 0.98), steps=16_000, warmup=200, learning_rate=2e-3, validate_every=2000,
        checkpoint_every=1000, log_every=50,
    ),
)  # fmt: skip

RECIPES = {
    "bert/pretraining": Recipe(
        "a tiny BERT on the standard library's documentation, or any BERT on your text", "Devlin et al. 2018",
        EMBEDDED, TASK,
        """It predicts masked words and the next sentence (section 3.1). On the documentation, it takes about
        three minutes on two cores. The paper uses preset=base-uncased vocabulary=30522, batches of 256 examples
        and a million steps: 900,000 with length=128, and the rest with length=512 and --init.""",
        options="[data=TEXT] [next_sentence=false] [preset=base-uncased]", init="may",
        with_init=replace(EMBEDDED, training=FINE_TUNING),
    ),
    "bert/roberta": Recipe(
        "a tiny RoBERTa on the standard library's documentation, or any RoBERTa on your text", "Liu et al. 2019",
        ROBERTA, TASK,
        """In contrast to BERT, it predicts no next sentence, fills examples with full sentences, masks other words in
        each epoch, and uses larger batches and byte-level BPE. It takes about three minutes on two cores. The paper
        uses preset=roberta/base vocabulary=50265 length=512, batches of 8,192 examples and training.steps=500000.""",
        options="[data=TEXT] [preset=roberta/base]", init="may", with_init=replace(ROBERTA, training=FINE_TUNING),
    ),
    "bert/imdb": Recipe(
        "a small BERT on film reviews, as a start for classifiers", "Devlin et al. 2018", IMDB, TASK,
        "It trains on the 50,000 unlabeled reviews, as a start for `bert/imdb-1000`. It takes almost an hour.",
        requires={"data": "PATH of IMDB's unsupervised.parquet"}, init="may",
    ),
}  # fmt: skip
