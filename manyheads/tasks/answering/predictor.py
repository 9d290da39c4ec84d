"""Predictor for question answering, which finds the most probable answer spans in the context of a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from manyheads import directory
from manyheads.calls import checked_methods
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.squad import Questions
from manyheads.data.text.text_faults import ItemError, check_text
from manyheads.errors import UserError
from manyheads.models.bert import Bert
from manyheads.tasks.answering.metrics import best, f1, squad_metrics
from manyheads.tasks.answering.passages import MAX_ANSWER, READING, FoundAnswer, best_answers, passage_logits, passages
from manyheads.tasks.evaluation import EvaluationResult, record_of, scored_data
from manyheads.tasks.inputs import Texts, equal_rows, rows_of
from manyheads.tasks.predictor import TextPredictor

MAX_ANSWERS, MAX_ANSWER_TOKENS = 1000, 1000


@checked_methods
class QuestionAnswerer(TextPredictor[Bert]):
    """Question answering model with its tokenizer, as returned by `manyheads.load`.

    reading  limits max_length, stride and max_query in tokens, see `passages`; None: the limits of the training run, or
             if they are unknown, those of BERT's published code
    """

    verbs: ClassVar = ("answer", "embed", "attend", "evaluate")
    pairs_only: ClassVar = "expected a question with its context: give the context as pair (--pair TEXT)"

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig, reading: dict[str, int] | None = None) -> None:
        super().__init__(loaded, compute)
        limits = READING | (reading or record_of(self.path).get("reading", {}))
        self._reading = limits | {"max_length": min(limits["max_length"], self.model.config.max_positions)}

    def answer(
        self, question: str | Texts, context: str | Texts, nbest: int = 20, max_answer: int = MAX_ANSWER,
        null_threshold: float | None = None,
    ) -> Any:  # fmt: skip
        """Return the `nbest` most probable answers to a question, a list of `FoundAnswer`, best first.

        The context may have any length. Several questions are given as a list, with a list of their contexts or
        with one context for all. The result has a list for each question.

        max_answer      maximum number of tokens in an answer
        null_threshold  if given, "no answer" (an empty text) is one of the answers. It comes first if its score exceeds
                        the score of the best span by more than this threshold. None: there is always an answer.

            >>> answers = answerer.answer("the cat sat?", "the cat sat on the mat", nbest=3)
            >>> answers[0].probability >= answers[1].probability
            True
        """
        if isinstance(context, str) and not isinstance(question, str):
            question = rows_of(question, "question")[0]
            context = [context] * len(question)
        questions, contexts, single = equal_rows(question, context, ("question", "context"))
        pairs = list(zip(questions, contexts, strict=True))
        for index, pair in enumerate(pairs):
            try:
                self.check(*pair)
            except UserError as error:
                raise error if single else ItemError(index, str(error), f"question {index + 1}:") from None
        found = self.answers(pairs, nbest, max_answer, null_threshold)
        return found[0] if single else found

    def check(self, question: str, context: str) -> None:
        """Raise UserError if the question or the context is blank, invalid, or too long."""
        self.check_question(question)
        if not self._count("context", context):
            raise UserError("the context has no tokens: give a text")

    def check_question(self, question: str) -> None:
        """Raise UserError if the question is blank, invalid, or too long."""
        limit = self._reading["max_query"]
        tokens = self._count("question", question, limit)
        if tokens > limit:
            raise UserError(f"the question has {tokens:,} tokens, the model reads {limit}: shorten it")

    def _count(self, name: str, text: str, limit: int | None = None) -> int:
        """Return the number of tokens in a question or context.

        Raises UserError for a text that is blank, invalid, or far longer than `limit` tokens.
        """
        if not text.strip():
            raise UserError(f"the {name} is blank: give a text")
        check_text(text, f"the {name}", limit)
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def answers(
        self,
        pairs: Sequence[tuple[str, str]],
        nbest: int = 20,
        max_answer: int = MAX_ANSWER,
        null_threshold: float | None = None,
    ) -> list[list[FoundAnswer]]:
        """Return the `nbest` most probable answers for every pair of question and context; see the method `answer`."""
        for setting, count, maximum in (("nbest", nbest, MAX_ANSWERS), ("max_answer", max_answer, MAX_ANSWER_TOKENS)):
            if not 1 <= count <= maximum:
                raise UserError(f"{setting} is {count}: expected 1 to {maximum}")
        pairs = rows_of(pairs, "pair", {tuple: "a tuple of question and context"})[0]
        for number, pair in enumerate(pairs, 1):
            if list(map(type, pair)) != [str, str]:
                raise ItemError(number - 1, f"is {pair!r}: expected a question and a context", f"pair {number}")
            for name, text in zip(("question", "context"), pair, strict=True):
                check_text(text, f"{name} {number}")
        windows = passages(self.tokenizer, pairs, **self._reading)
        model = self.compiled
        logits = passage_logits(model.module, windows, model.compute)
        return best_answers(windows, logits, [context for _, context in pairs], nbest, max_answer, null_threshold)

    def evaluate(self, questions: object = None) -> EvaluationResult:
        """Answer the questions of a data set, and score the best answer to each question.

        The data are a `Questions`, or any data that the method `outcome` reads. The model may answer "no answer" only
        if the data set has questions without an answer.
        """
        if not isinstance(questions, Questions):
            return self.outcome(questions)
        items = questions.items
        threshold = 0.0 if questions.impossible else None
        answers = self.answers([(item.question, item.context) for item in items], 1, null_threshold=threshold)
        outputs = [ranked[0].text for ranked in answers]
        truths = [[answer.text for answer in item.answers] for item in items]
        return EvaluationResult(
            [item.question for item in items], outputs, [" | ".join(texts) for texts in truths],
            [best(f1, guess, texts) for guess, texts in zip(outputs, truths, strict=True)],
            squad_metrics(outputs, truths), unit="F1 of an answer",
        )  # fmt: skip

    def outcome(self, data: object = None, *, skip_bad_lines: bool = False) -> EvaluationResult:
        """Evaluate the model on the test data of its training run, or on `data`.

        `data` is a JSON file in SQuAD's format, or a directory with a test file.
        """
        from manyheads.data.sources.corpora import QuestionSource

        return self.evaluate(scored_data(self.path, data, QuestionSource(), skip_bad_lines=skip_bad_lines))
