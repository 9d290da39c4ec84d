"""Tagging, which predicts a label for each word of a text, as in named entity recognition."""

from __future__ import annotations

from manyheads.tasks.info import OWN_DATA, PUBLISHED, PredictorRow, TaskInfo

INFO = TaskInfo(
    "tag",
    "tagging",
    {
        OWN_DATA: {"tagging": "taggers of words, from scratch or from a BERT"},
        PUBLISHED: {"conll2003": "a tagger of named entities"},
    },
    (PredictorRow("tagging.predictor:Tagger", ("bert", "bert-features"), ("token",)),),
)
