"""Recipes that classify texts and pairs: the textbook's model and its rivals from scratch; BERT or GPT, fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from manyheads.core.config import Config, Count, Range, Vocabulary
from manyheads.data.readers.labelled import Columns
from manyheads.errors import UserError
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe, Tuned
from manyheads.training.config import TrainingConfig

RUN = "manyheads.tasks.classification.run"


@dataclass(frozen=True)
class ClassificationConfig(DataConfig):
    """What a classification run is made of.

    data          a directory with train, val and test files, or one file: .tsv, .csv, .jsonl, .parquet; its columns are
                  text and label, or sentence1, sentence2 and label (other names: `data/labelled.py`); or a directory
                  with train, val and test folders, which have a folder of .txt files for each label;
                  None: the embedded corpus, of about `size` training phrases
    columns       names of the columns: columns.text, columns.pair and columns.label
    names         what the labels 0, 1, ... of the data are called
    items         how many of the training items are used, drawn at random by the seed; None: all
    preset        the model, where the run does not start from another one (None: it has to); `model` overrides its
                  fields
    tokens        "words" without punctuation, lowercased, as Keras has them; "pieces" of words (BPE)
    max_length    tokens of a text while training; longer ones are an error, or are cut with truncate=true
    tuned         of the model to start from: "all"; or nothing, and a BiLSTM reads its "last" layer, or its "last-four"
    scratch       forget the weights of the model to start from: what are they worth?
    auxiliary     of a GPT: how much the loss of predicting the texts' own tokens weighs beside that of the labels, the
                  lambda of Radford 2018, section 3.2 (there 0.5; it helped on large data, not on small)
    batch_tokens  padded tokens of a micro-batch, which has at most `batch_items` texts
    scored        which data are classified and scored at the end
    """

    columns: Columns = field(default_factory=Columns)
    names: tuple[str, ...] = ()
    size: Count = 48_000
    items: Count | None = None
    preset: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
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
        if self.max_length is not None and self.max_length > self.batch_tokens:
            raise UserError(f"max_length is {self.max_length}: expected at most batch_tokens, {self.batch_tokens}")


@dataclass(frozen=True)
class ReceptiveFieldConfig(Config):
    """Stacks of 1 to `layers` random layers, `width` wide, on `length` positions; convolutions `kernel` wide."""

    layers: Annotated[int, Range(1, 100)] = 6
    kernel: Annotated[int, Range(1, 1000)] = 3
    length: Annotated[int, Range(1, 10_000)] = 31
    width: Annotated[int, Range(1, 4096)] = 16
    seed: int = 1


@dataclass(frozen=True)
class InfluenceConfig(Config):
    """How the influence of words is measured: of four nets that are trained to recall one, or of trained models.

    length    words of a text
    width     of the nets; `layers` and `kernel` are those of the convolutions
    symbols   different words
    steps     of training, each on 64 texts
    models    directories of trained models, which are measured instead
    texts     what those read: a file with a text a line; the first 64 with `length` tokens or more, cut to that
    """

    length: Annotated[int, Range(2, 10_000)] = 64
    width: Annotated[int, Range(4, 4096)] = 64
    layers: Annotated[int, Range(1, 100)] = 4
    kernel: Annotated[int, Range(1, 1000)] = 5
    symbols: Annotated[int, Range(2, 10_000)] = 8
    steps: Count = 1000
    models: tuple[str, ...] = ()
    texts: str | None = None
    seed: int = 1


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
    model={"dropout": 0.1},  # pretraining repeated nothing, here everything is repeated
    training=replace(FINE_TUNING, epochs=10, learning_rate=2e-4, warmup=60, metric="accuracy"),
)


GPT_ABOUT = """A GPT reads a text between new tokens, start and extract, a pair with delimiter between its two, and its
labels from the last one. As published for GPT (section 4.1): training.learning_rate=6.25e-5 auxiliary=0.5."""
IMDB_DATA = {"data": "DIR of IMDB: aclImdb, or train.parquet and test.parquet with the columns text and label"}


def _on_imdb(summary: str, preset: str, about: str = "", **settings: Any) -> Recipe:
    config = replace(IMDB, preset=preset, **settings)
    return Recipe(summary, "Chollet 2021", config, RUN, about, requires=IMDB_DATA)


RECIPES = {
    "bert/imdb-1000": Recipe(
        "what bert/imdb is worth: its fine-tuning on 1,000 labelled reviews, or scratch=true", "Devlin et al. 2018",
        IMDB_1000, RUN,
        """The epoch with the best validation accuracy is kept; with scratch=true the same model has new weights, and
        learns from the same reviews. Some minutes each on one core.""",
        options="[scratch=true]", init="must",
        requires={"data": "DIR with train and test of IMDB, with the columns text and label"},
    ),
    "text-classification": Recipe(
        "which of 60 languages is a phrase in, or your labels", "Chollet 2021", EMBEDDED, RUN,
        """Without data, phrases of dates, amounts and names from Unicode CLDR; what is tested are combinations that
        training has not shown. About a minute. With --init it has the optimiser and schedule of the fine-tunings.""",
        options="[data=DIR] [preset=text-classifier/textbook]", init="may",
        with_init=replace(EMBEDDED, training=FINE_TUNING),
    ),
    "text-classification/receptive-field": Recipe(
        "nothing: how far stacked convolutions see, and attention, measured by gradient", "Chollet 2021",
        ReceptiveFieldConfig(), "manyheads.tasks.classification.receptive_field",
        """Measures by gradient how many positions the middle output sees, prints the table, and draws it into
        receptive-field.png. Seconds.""",
        options="[layers=6 kernel=3]", spreads=False,
    ),
    "text-classification/influence": Recipe(
        "four small nets: how the influence of a word fades with its distance, measured by gradient", "Elman 1990",
        InfluenceConfig(), "manyheads.tasks.classification.influence",
        """A plain RNN, an LSTM, convolutions and attention learn to recall a marked word. Prints the influence of each
        distance before and after training, and what is recalled; draws it into influence.png. A quarter of an hour on
        one core. With models= and texts=, the same of trained models that read texts.""",
        options="[models=DIR,DIR texts=FILE]", spreads=False,
    ),
    "imdb/textbook": _on_imdb(
        "the textbook's classifier as published", "text-classifier/textbook",
        """20,000 words, 600 of each review, padding that is read, no positions. Adam instead of RMSprop, the epoch with
        the best validation loss kept. (Chollet, 8 times wider: accuracy 0.875.)""",
    ),
    "imdb/keras": _on_imdb(
        "the textbook's classifier, trained as its chapter does", "text-classifier/textbook",
        """RMSprop as Keras has it, 15 epochs of batches of 32, and the weights of the last one, which has learnt the
        reviews by heart. `loss.png` has loss and accuracy by epochs. Two hours on one core. Where Keras shuffles,
        a batch has reviews of like length, in another order every epoch.""",
        training=replace(IMDB.training, optimiser="rmsprop", epochs=15, metric=None, patience=None),
    ),
    "imdb/corrected": _on_imdb("the textbook's classifier with positions and a mask", "text-classifier/corrected"),
    "imdb/rnn": _on_imdb(
        "a plain recurrent network instead", "sequence-baseline/rnn", training=RECURRENT
    ),
    "imdb/lstm": _on_imdb("an LSTM instead", "sequence-baseline/lstm", training=RECURRENT),
    "imdb/bilstm": _on_imdb("an LSTM in both directions", "sequence-baseline/bilstm", training=RECURRENT),
    "imdb/conv1d": _on_imdb("two convolutions along the words", "sequence-baseline/conv1d"),
    "imdb/conv2d": _on_imdb("two convolutions along words and features", "sequence-baseline/conv2d"),
    "imdb/tfidf": _on_imdb(
        "TF-IDF and logistic regression", "tfidf",
        "Whole reviews are read (by scikit-learn). LSA: model.components=100, as many as its documentation advises.",
        max_length=None, truncate=False,
    ),
    "sst2": Recipe(
        "the sentiment of sentences, fine-tuned from any BERT", "Devlin et al. 2018", SST2, RUN,
        "Published for BERT base on GLUE's test (section 4.1): accuracy 0.935.",
        options="[tuned=last-four]", init="must",
        requires={"data": "DIR with train.tsv, dev.tsv and test.tsv of SST-2, with the columns sentence and label"},
    ),
    "mrpc": Recipe(
        "whether two sentences say the same, fine-tuned from any BERT", "Devlin et al. 2018", MRPC, RUN,
        "Published for BERT base on GLUE's test (section 4.1): F1 0.889.",
        options="[tuned=last-four]", init="must",
        requires={"data": "DIR with train.tsv and test.tsv of MRPC, with the columns sentence1, sentence2 and label"},
    ),
    "single-sentence": Recipe(
        "labels of your texts, fine-tuned from any BERT or GPT", "Devlin et al. 2018, Radford et al. 2018", YOURS, RUN,
        GPT_ABOUT, init="must",
        requires={"data": "DIR with train.tsv (or .csv, .jsonl, .parquet) with the columns text and label"},
    ),
    "sentence-pair": Recipe(
        "labels of your pairs of texts, fine-tuned from any BERT or GPT", "Devlin et al. 2018, Radford et al. 2018",
        YOURS, RUN, GPT_ABOUT, init="must",
        requires={"data": "DIR with train.tsv (or .csv, ...) with the columns sentence1, sentence2 and label"},
    ),
}  # fmt: skip
