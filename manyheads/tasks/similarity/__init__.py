"""Training of embeddings: encoders whose vectors are close for texts with similar meaning."""

from __future__ import annotations

from manyheads.tasks.info import FINE_TUNED, PredictorRow, TaskInfo

INFO = TaskInfo(
    "embed",
    "similarity",
    {FINE_TUNED: {"embedding": "encoders of texts for search, from a BERT or from scratch"}},
    (PredictorRow("similarity.predictor:Encoder", ("bert",), ("none", "pooler", "next_sentence", "choice")),),
)
