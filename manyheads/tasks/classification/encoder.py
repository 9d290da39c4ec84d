"""Predictor of a BERT without a task head: embeddings and attention maps."""

from __future__ import annotations

from typing import ClassVar

from manyheads.models.bert import Bert
from manyheads.tasks.predictor import TextPredictor


class Encoder(TextPredictor[Bert]):
    """BERT that computes embeddings and attention maps, but makes no predictions, as returned by `manyheads.load`.

    It has no task head, or a task head that compares several texts.
    """

    verbs: ClassVar = ("embed", "attend")
    done: ClassVar = "embedded"
