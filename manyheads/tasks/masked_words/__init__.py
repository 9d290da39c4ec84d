"""Masked language modeling and next-sentence prediction, BERT's pretraining (Devlin 2018, section 3.1)."""

from __future__ import annotations

from manyheads.tasks.info import OWN_DATA, PredictorRow, TaskInfo

INFO = TaskInfo(
    "fill",
    "masked_words",
    {OWN_DATA: {"bert": "BERTs that fill in masked words, for fine-tuning"}},
    (PredictorRow("masked_words.predictor:MaskedLanguageModel", ("bert",), ("masked_lm", "pretraining")),),
)
