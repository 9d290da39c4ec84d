"""Language models, which predict the next token."""

from __future__ import annotations

from manyheads.tasks.info import OWN_DATA, PredictorRow, TaskInfo

INFO = TaskInfo(
    "generate",
    "language",
    {OWN_DATA: {"language-modeling": "GPTs that continue texts or source code"}},
    (
        PredictorRow("language.predictor:LanguageModel", ("gpt", "gpt2"), ("language",)),
        PredictorRow("language.predictor:LanguageModel", ("universal-sequence",), ("decoder",)),
    ),
)
