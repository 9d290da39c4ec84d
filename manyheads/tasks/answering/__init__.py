"""Extractive question answering, where the answer to a question is a span of a given text."""

from __future__ import annotations

from manyheads.tasks.info import FINE_TUNED, PUBLISHED, PredictorRow, TaskInfo

INFO = TaskInfo(
    "answer",
    "answering",
    {
        FINE_TUNED: {"question-answering": "models that find answers as spans of a text, from a BERT"},
        PUBLISHED: {"xquad": "a question answering model from only 1,000 questions"},
    },
    (PredictorRow("answering.predictor:QuestionAnswerer", ("bert",), ("question",)),),
)
