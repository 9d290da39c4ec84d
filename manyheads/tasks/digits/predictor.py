"""A run on strings of digits in use: a translator with tests of its own."""

from __future__ import annotations

from manyheads.tasks.digits.task import algorithmic_outcome, recorded_tests
from manyheads.tasks.evaluation import Outcome
from manyheads.tasks.translation.predictor import Translator


class DigitTranslator(Translator):
    """What `manyheads.load` gives for a run whose result.json tells of digits."""

    def outcome(self, data: str | None = None, *, skip_bad_lines: bool = False) -> Outcome:
        """On the run's digits, by length; on `data` as any translator."""
        tests = None if data is not None else recorded_tests(self.path)
        if tests is None:
            return super().outcome(data, skip_bad_lines=skip_bad_lines)
        return algorithmic_outcome(self.model, self.tokenizer, tests, self.route)
