"""Recipes for classifying texts and pairs of texts.

They train a text classifier from Vaswani's encoder and simpler baselines from random weights, and fine-tune BERT and
GPT.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from manyheads.core.config import Count, Range, Vocabulary
from manyheads.data.readers.labeled import Columns
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.recipe import FINE_TUNING, Recipe, TargetConfig, Tuned
from manyheads.training.config import TrainingConfig

TASK = "manyheads.tasks.classification.task:Classification"


@dataclass(frozen=True)
class ClassificationConfig(TargetConfig):
    """Settings of a training run for text classification.

    data          a directory with train, val and test files; or one file (.tsv, .csv, .jsonl or .parquet) with the
                  columns text and label, or sentence1, sentence2 and label (other names: `columns`); or
                  a directory with train, val and test folders, each with a folder of .txt files for every label; None:
                  the embedded corpus with about `size` training phrases
    columns       names of the columns of a table: columns.text, columns.pair, columns.label and columns.weight. For
                  target=multi-label, columns.label may be a list of columns with a zero or one for each label
    size          approximate number of training phrases of the embedded corpus
    items         number of training texts or pairs, sampled with the seed; None: all
    preset        name of the model preset; `model` overrides single fields of it. None: the user must give an initial
                  model to fine-tune
    model         overrides fields of the preset or of the initial model, such as model.dropout=0.1
    tokens        words or pieces. "words": lowercase words without punctuation, as in Keras; "pieces": subwords (BPE)
    vocabulary    size of the vocabulary, which is built from the training texts
    max_length    maximum number of tokens in a training text; longer texts are an error, or are cut with truncate=true
    truncate      true: cut texts that are longer than max_length
    tuned         part of the initial model to train. "all": the whole model; "last" or "last-four": the model is
                  frozen, and a new BiLSTM reads its last one or last four layers
    scratch       true: replace the pretrained weights by random ones before training, to measure the effect of
                  pretraining
    auxiliary     weight of the language-modeling loss next to the classification loss, for a GPT; lambda in Radford
                  2018, section 3.2 (0.5 in the paper, where it helped on large data sets but not on small ones)
    batch_tokens  maximum number of tokens in a micro-batch, padding included
    batch_items   maximum number of texts in a micro-batch; None: no limit
    scored        name of the split ("test", for example) that is classified and scored at the end
    """

    columns: Columns = field(default_factory=Columns)
    size: Count = 48_000
    items: Count | None = None
    preset: str | None = None
    model: JsonObject = field(default_factory=dict)
    tokens: Literal["words", "pieces"] = "words"
    vocabulary: Vocabulary = 20_000
    max_length: Annotated[int, Range(2, 10**6)] | None = None
    truncate: bool = False
    tuned: Tuned = "all"
    scratch: bool = False
    auxiliary: Annotated[float, Range(0, 1000)] = 0.0
    batch_tokens: Count = 4096
    batch_items: Count | None = None
    training: TrainingConfig = field(default=FINE_TUNING)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.columns.label, tuple):
            if self.target != "multi-label":
                raise UserError("columns.label has several columns: expected target=multi-label")
            object.__setattr__(self, "names", self.names or self.columns.label)
        if self.max_length is not None and self.max_length > self.batch_tokens:
            raise UserError(f"max_length is {self.max_length}: expected at most {self.batch_tokens}, the batch_tokens")


EMBEDDED = ClassificationConfig(
    preset="text-classifier/corrected",
    tokens="pieces",
    vocabulary=12_000,
    model={
        "width": 64, "head_width": 32, "feed_forward": 128, "max_positions": 256, "dropout": 0.2, "pooling": "mean",
    },
    training=TrainingConfig(
        epochs=4, schedule="cosine", learning_rate=3e-3, warmup=100, betas=(0.9, 0.999), eps=1e-8, clip=1.0,
        log_every=20,
    ),
)  # fmt: skip
IMDB = ClassificationConfig(
    preset="text-classifier/textbook",
    names=("negative", "positive"),
    max_length=600,
    truncate=True,
    batch_tokens=32 * 600,
    batch_items=32,
    training=TrainingConfig(
        epochs=6, schedule="constant", learning_rate=1e-3, warmup=0, betas=(0.9, 0.999), eps=1e-7, metric="loss",
        patience=2,
    ),
)  # fmt: skip
RECURRENT = replace(IMDB.training, clip=1.0)
SST2 = ClassificationConfig(names=("negative", "positive"), max_length=128, batch_tokens=2048, batch_items=32)
MRPC = replace(
    SST2,
    names=("not_equivalent", "equivalent"),
    batch_items=16,
    training=replace(FINE_TUNING, learning_rate=5e-5, warmup=70),
)
YOURS = ClassificationConfig(max_length=256, batch_items=32)
IMDB_1000 = replace(
    YOURS,
    names=("negative", "positive"),
    items=1000,
    max_length=128,
    truncate=True,
    batch_items=16,
    # Pretraining reads each text once. Fine-tuning repeats a small data set many times, so only fine-tuning needs
    # dropout.
    model={"dropout": 0.1},
    training=replace(FINE_TUNING, epochs=10, learning_rate=2e-4, warmup=60, metric="accuracy"),
)


GPT_ABOUT = """A GPT reads a text between two new tokens, start and extract, and a pair with a delimiter token between
its texts. The head reads the last token. Published settings for GPT (section 4.1): training.learning_rate=6.25e-5
auxiliary=0.5."""
IMDB_DATA = {"data": "DIR of IMDB: aclImdb, or train.parquet and test.parquet with the columns text and label"}


def _on_imdb(summary: str, preset: str, about: str = "", **settings: Any) -> Recipe:
    config = replace(IMDB, preset=preset, **settings)
    return Recipe(summary, "Chollet 2021", config, TASK, about, requires=IMDB_DATA)


RECIPES = {
    "bert/imdb-1000": Recipe(
        "a classifier of 1,000 reviews from a pretrained BERT, to show the effect of bert/imdb",
        "Devlin et al. 2018", IMDB_1000, TASK,
        """The weights of the epoch with the best validation accuracy are saved. With scratch=true, the same
        model is trained on the same reviews from random weights. Each run takes a few minutes on one core.""",
        options="[scratch=true]", init="must",
        requires={"data": "DIR with train and test of IMDB, with the columns text and label"},
    ),
    "text-classification": Recipe(
        "a classifier of the language of a phrase, one of 60, or of your labels", "Chollet 2021", EMBEDDED, TASK,
        """Without data, it uses phrases of dates, amounts and names from Unicode CLDR, and the test set has
        combinations that do not occur in training. It takes about a minute. With --init, it uses the optimizer
        and schedule of the fine-tuning recipes.""",
        options="[data=DIR] [preset=text-classifier/textbook]", init="may",
        with_init=replace(EMBEDDED, training=FINE_TUNING),
    ),
    "imdb/textbook": _on_imdb(
        "the textbook's classifier as published", "text-classifier/textbook",
        """As published, it has 20,000 words, 600 tokens per review, no padding mask and no positions. It trains
        with Adam instead of RMSprop and saves the epoch with the best validation loss. (Chollet's model is 8
        times wider and has accuracy 0.875.)""",
    ),
    "imdb/keras": _on_imdb(
        "the textbook's classifier with the training of its chapter", "text-classifier/textbook",
        """It trains with Keras' RMSprop for 15 epochs with batches of 32, and saves the weights of the last
        epoch, which overfit. `loss.png` shows loss and accuracy by epoch. Keras shuffles all reviews; here a
        batch has reviews of similar length, in a new order every epoch. It takes two hours on one core.""",
        training=replace(IMDB.training, optimizer="rmsprop", epochs=15, metric=None, patience=None),
    ),
    "imdb/corrected": _on_imdb("the textbook's classifier with positions and a mask", "text-classifier/corrected"),
    "imdb/rnn": _on_imdb("a plain recurrent network as a baseline", "sequence-baseline/rnn", training=RECURRENT),
    "imdb/lstm": _on_imdb("an LSTM as a baseline", "sequence-baseline/lstm", training=RECURRENT),
    "imdb/gru": _on_imdb("a GRU as a baseline", "sequence-baseline/gru", training=RECURRENT),
    "imdb/bilstm": _on_imdb("a bidirectional LSTM as a baseline", "sequence-baseline/bilstm", training=RECURRENT),
    "imdb/conv1d": _on_imdb("two convolutions along the words", "sequence-baseline/conv1d"),
    "imdb/conv2d": _on_imdb("two convolutions along words and features", "sequence-baseline/conv2d"),
    "sst2": Recipe(
        "a sentiment classifier of sentences, fine-tuned from any BERT", "Devlin et al. 2018", SST2, TASK,
        "Published result for BERT base on the GLUE test set (section 4.1): accuracy 0.935.",
        options="[tuned=last-four]", init="must",
        requires={"data": "DIR with train.tsv, dev.tsv and test.tsv of SST-2, with the columns sentence and label"},
    ),
    "mrpc": Recipe(
        "a classifier of sentence pairs with equal meaning, fine-tuned from any BERT", "Devlin et al. 2018", MRPC, TASK,
        "Published result for BERT base on the GLUE test set (section 4.1): F1 0.889.",
        options="[tuned=last-four]", init="must",
        requires={"data": "DIR with train.tsv and test.tsv of MRPC, with the columns sentence1, sentence2 and label"},
    ),
    "single-sentence": Recipe(
        "a classifier with your labels for single texts, fine-tuned from any BERT or GPT",
        "Devlin et al. 2018, Radford et al. 2018", YOURS, TASK,
        GPT_ABOUT, init="must",
        requires={"data": "DIR with train.tsv (or .csv, .jsonl, .parquet) with the columns text and label"},
    ),
    "sentence-pair": Recipe(
        "a classifier with your labels for pairs of texts, fine-tuned from any BERT or GPT",
        "Devlin et al. 2018, Radford et al. 2018",
        YOURS, TASK, GPT_ABOUT, init="must",
        requires={"data": "DIR with train.tsv (or .csv, ...) with the columns sentence1, sentence2 and label"},
    ),
}  # fmt: skip
