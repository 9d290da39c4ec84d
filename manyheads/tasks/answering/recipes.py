"""Recipes that answer questions with a span of a text, fine-tuned from BERT (Devlin 2018, sections 4.2 and 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from manyheads.core.config import Count, Range
from manyheads.errors import UserError
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe
from manyheads.training.config import TrainingConfig

RUN = "manyheads.tasks.answering.run"


@dataclass(frozen=True)
class AnsweringConfig(DataConfig):
    """What a run is made of.

    data          a directory with train, dev and test files as SQuAD's, or one file (see `data/squad.py`)
    preset        of BERT, for the estimates of a dry run; `model` overrides settings of the model to start from that do
                  not change its weights
    batch_tokens  padded tokens of a micro-batch
    max_length    tokens of a passage: a question, of which max_query are read, and a window of its context; windows
                  begin `stride` tokens one after the other
    scored        which data are answered and scored at the end
    """

    preset: str = "base-uncased"
    model: dict[str, Any] = field(default_factory=dict)
    batch_tokens: Count = 3072
    max_length: Annotated[int, Range(9, 10**6)] = 384
    stride: Count = 128
    max_query: Annotated[int, Range(1, 10**6)] = 64
    training: TrainingConfig = field(default=FINE_TUNING)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.max_query + 8 <= self.max_length <= self.batch_tokens:
            raise UserError(
                f"max_length is {self.max_length}: expected more than max_query, {self.max_query}, and at most "
                f"batch_tokens, {self.batch_tokens}"
            )
        if self.stride > self.max_length:
            raise UserError(f"stride is {self.stride}: expected 1 to max_length, {self.max_length}")


RECIPES = {
    "question-answering": Recipe(
        "answers as spans of a text, fine-tuned from any BERT", "Devlin et al. 2018",
        AnsweringConfig(training=replace(FINE_TUNING, learning_rate=5e-5, accumulate=4)), RUN,
        """Published for SQuAD 1.1's dev data with BERT base (section 4.2): F1 88.5, exact match 80.8. Questions without
        an answer are those of SQuAD 2.0.""",
        requires={"data": "DIR with train and dev or test files as SQuAD's JSON"}, init="must",
    ),
    "xquad": Recipe(
        "what a thousand questions teach, fine-tuned from any BERT", "Artetxe et al. 2020",
        AnsweringConfig(
            batch_tokens=2048,
            training=replace(FINE_TUNING, epochs=4, learning_rate=1e-4, warmup=30, log_every=10),
        ),
        RUN,
        """The English part of XQuAD, 1,190 questions from SQuAD's dev data, split by article: far less than a model
        needs, so this shows how little can be learnt from a thousand questions, and is no measure of it.""",
        requires={"data": "DIR with train.json and test.json of XQuAD"}, init="must",
    ),
}  # fmt: skip
