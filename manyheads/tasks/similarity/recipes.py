"""The recipe for embeddings: a BERT whose vectors are close for texts with similar meaning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from manyheads.core.config import Count, Range, Vocabulary
from manyheads.data.readers.text_pairs import PairColumns
from manyheads.files import JsonObject
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe
from manyheads.training.config import TrainingConfig


@dataclass(frozen=True)
class EmbeddingConfig(DataConfig):
    """Settings of a training run for embeddings.

    data          a directory with train, val and test files; or one file (.tsv, .csv, .jsonl or .parquet). The columns
                  determine the loss: text and pair (other texts of the batch are negatives); also negative (a hard
                  negative of each pair); or text, pair and score (similarity from 0 to 1 or from 0 to 5). None: the
                  embedded corpus with about `size` English phrases and their German translations
    columns       names of the columns: columns.text, columns.pair, columns.negative and columns.score
    size          approximate number of training pairs of the embedded corpus
    preset        name of the BERT preset of a new model; `model` overrides its fields
    model         overrides fields of the preset, or dropout rates of the initial model, such as model.dropout=0
    vocabulary    size of the WordPiece vocabulary of a new model, which is trained on the texts
    pool          pooling of the last hidden states: "mean" or "max" of all tokens, or the "first" token ([CLS]). None:
                  the pooling of the initial model if sentence-transformers wrote it, otherwise "mean"
    temperature   number by which cosine similarities are divided in the softmax, tau in Gao 2021, equation 5. The value
                  0.05 is the scale 20 of sentence-transformers. No effect on pairs with scores
    max_length    maximum number of tokens of a text; longer texts are an error, or are cut with truncate=true. None:
                  the limit of the model
    truncate      true: cut texts that are longer than max_length
    batch_items   maximum number of pairs of a micro-batch. More pairs are more negatives
    batch_tokens  maximum number of tokens of a micro-batch in each column, padding included
    """

    columns: PairColumns = field(default_factory=PairColumns)
    size: Count = 30_000
    preset: str = "tiny"
    model: JsonObject = field(default_factory=dict)
    vocabulary: Vocabulary = 4000
    pool: Literal["mean", "first", "max"] | None = None
    temperature: Annotated[float, Range(0.001, 10)] = 0.05
    max_length: Annotated[int, Range(2, 10**6)] | None = None
    truncate: bool = False
    batch_items: Count = 64
    batch_tokens: Count = 32_768
    training: TrainingConfig = FINE_TUNING


EMBEDDED = EmbeddingConfig(
    model={"dropout": 0.0, "attention_dropout": 0.0, "max_positions": 128},
    batch_tokens=4096,
    training=replace(FINE_TUNING, epochs=1, learning_rate=1e-3, warmup=50, betas=(0.9, 0.98)),
)

RECIPES = {
    "embedding": Recipe(
        "an encoder whose vectors are close for texts with similar meaning, from any BERT or from scratch",
        "Reimers and Gurevych 2019, Gao et al. 2021", EMBEDDED, "manyheads.tasks.similarity.task:Embedding",
        """Without data, a new small BERT learns to find the German translation of an English phrase. With a column of
        scores, the loss is the squared error of the cosine similarity; otherwise it is the cross-entropy of the
        cosine similarities to all second texts and hard negatives of the batch. The library
        sentence-transformers opens the trained directory.""",
        options="[data=PAIRS] [pool=first] [temperature=0.05]", init="may", with_init=EmbeddingConfig(),
    ),
}  # fmt: skip
