"""A run on strings of digits in use: a translator with tests of its own."""

from __future__ import annotations

from manyheads.data.sources.digits import DigitSource, by_length
from manyheads.tasks.digits.task import digit_outcome
from manyheads.tasks.evaluation import Outcome, scored_data
from manyheads.tasks.translation.predictor import Translator


class DigitTranslator(Translator):
    """What `manyheads.load` gives for a run whose result.json tells of digits."""

    def outcome(self, data: str | None = None, *, skip_bad_lines: bool = False) -> Outcome:
        """On the run's digits, by length; on `data` as any translator."""
        if data is not None:
            return super().outcome(data, skip_bad_lines=skip_bad_lines)
        tests = by_length(scored_data(self.path, None, DigitSource()))
        model, compute = self.compiled
        return digit_outcome(model, self.tokenizer, tests, compute)
