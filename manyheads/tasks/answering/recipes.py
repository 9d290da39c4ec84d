"""Recipes for extractive question answering, fine-tuned from BERT (Devlin 2018, sections 4.2 and 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from manyheads.core.config import Count, Range
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe
from manyheads.training.config import TrainingConfig

TASK = "manyheads.tasks.answering.task:Answering"


@dataclass(frozen=True)
class AnsweringConfig(DataConfig):
    """Settings of a training run for question answering.

    data          directory with train, dev and test files in SQuAD's format, or one file
    preset        name of a BERT preset. A dry run without --init uses it to estimate the cost
    model         settings that override those of the initial model, such as dropout rates; the shapes of the weights
                  must stay the same
    batch_tokens  maximum number of tokens in a micro-batch, padding included
    max_length    maximum number of tokens in a model input. It holds a question of at most max_query tokens, and a
                  window of its context
    stride        number of tokens from the start of one window to the start of the next
    max_query     maximum number of tokens of a question
    scored        name of the split ("test", for example) that is answered and scored at the end
    """

    preset: str = "base-uncased"
    model: JsonObject = field(default_factory=dict)
    batch_tokens: Count = 3072
    max_length: Annotated[int, Range(9, 10**6)] = 384
    stride: Count = 128
    max_query: Annotated[int, Range(1, 10**6)] = 64
    training: TrainingConfig = field(default=FINE_TUNING)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.max_query + 8 <= self.max_length <= self.batch_tokens:
            raise UserError(
                f"max_length is {self.max_length}: expected at least max_query + 8, "
                f"where max_query is {self.max_query}, and at most batch_tokens, which is {self.batch_tokens}"
            )
        if self.stride > self.max_length:
            raise UserError(f"stride is {self.stride}: expected 1 to max_length, which is {self.max_length}")


RECIPES = {
    "question-answering": Recipe(
        "a model that finds answers as spans of a text, fine-tuned from any BERT", "Devlin et al. 2018",
        AnsweringConfig(training=replace(FINE_TUNING, learning_rate=5e-5, accumulate=4)), TASK,
        """Published results of BERT base on SQuAD 1.1's dev data (section 4.2): F1 88.5, exact match 80.8.
        Questions without an answer, as in SQuAD 2.0, are supported.""",
        requires={"data": "DIR with train and dev or test files in SQuAD's JSON format"}, init="must",
    ),
    "xquad": Recipe(
        "a question answering model on only 1,000 questions, fine-tuned from any BERT", "Artetxe et al. 2020",
        AnsweringConfig(
            batch_tokens=2048,
            training=replace(FINE_TUNING, epochs=4, learning_rate=1e-4, warmup=30, log_every=10),
        ),
        TASK,
        """It uses the English part of XQuAD, 1,190 questions from SQuAD's dev data, split by article. These are
        far too few questions to train a good model; the recipe shows how much a model learns from them.""",
        requires={"data": "DIR with train.json and test.json of XQuAD"}, init="must",
    ),
}  # fmt: skip
