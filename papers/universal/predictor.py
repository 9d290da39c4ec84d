"""Predictor for models trained on strings of digits: a translator that is evaluated for each string length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from manyheads import directory
from manyheads.calls import checked_methods
from manyheads.core.config import Precision
from manyheads.core.runtime import prepare
from manyheads.errors import UserError
from manyheads.tasks.evaluation import EvaluationResult, scored_data
from manyheads.tasks.translation.predictor import Translator
from papers.universal.source import DigitSource, by_length
from papers.universal.task import digit_result


@checked_methods
class DigitTranslator(Translator):
    """Translator from a digit string to its copy, reversal or sum, as returned by `load`."""

    def outcome(self, data: Any = None, *, skip_bad_lines: bool = False) -> EvaluationResult:
        """Evaluate the model on the test strings of its training run, for each string length.

        If `data` is given, translate and evaluate these data instead.
        """
        if data is not None:
            return super().outcome(data, skip_bad_lines=skip_bad_lines)
        if self.others:
            raise UserError("accuracy by length is measured for single models: give test data for an ensemble (--data)")
        tests = by_length(scored_data(self.path, None, DigitSource()))
        return digit_result(self.compiled, self.tokenizer, tests)


def load(run: str | Path, *, precision: Precision = "float32", threads: int | None = None) -> DigitTranslator:
    """Load a run on strings of digits. The options are those of `manyheads.load`."""
    return DigitTranslator(directory.load(run), prepare(precision, threads))
