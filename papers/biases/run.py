"""Training of a teacher and its students, and their scores on test data that differ from the training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.readers.labeled import Labeled
from manyheads.files import JsonObject
from manyheads.runs.ablation import Rows, ablate
from manyheads.runs.options import Run
from manyheads.runs.run import carry_out
from manyheads.tasks.classification.predictor import Classifier
from manyheads.tasks.classification.recipes import ClassificationConfig
from manyheads.tasks.classification.task import Classification
from manyheads.tasks.distillation import compare_with_teacher
from manyheads.tasks.images.predictor import ImageClassifier
from manyheads.tasks.images.recipes import ImageConfig
from manyheads.tasks.images.task import ImageClassification
from manyheads.training.record import Metrics
from papers.biases.digits import changed_digits
from papers.biases.recipes import LSTM, RESNET, TAUGHT, TEACHERS
from papers.biases.sentences import SentenceSource, harder_sentences

M = TypeVar("M", Classifier, ImageClassifier)


class Agreement(Classification):
    """Task of a classifier of generated sentences, which is also scored on longer and on misleading sentences."""

    def check(self) -> None:
        self.run.refuse(("data", "validation", "test", "names", "columns."), "the sentences are generated; omit it")
        super().check()

    def data(self) -> SentenceSource:
        return SentenceSource(**self.located, size=self.config.size)

    def score(self, held: Labeled, compute: ComputeConfig) -> Metrics:
        models = _models(self.run, self.config.teacher, Classifier, compute)
        sets = harder_sentences(self.config.training.seed)
        return super().score(held, compute) | _scores(models, sets, "accuracy")


class MovedDigits(ImageClassification):
    """Task of a classifier of digits, which is also scored on moved and on smaller digits."""

    def score(self, held: ImageData, compute: ComputeConfig) -> Metrics:
        models = _models(self.run, self.config.teacher, ImageClassifier, compute)
        sets = changed_digits(held, self.config.training.seed)
        return super().score(held, compute) | _scores(models, sets, "top1")


def _models(run: Run, teacher: str | None, kind: type[M], compute: ComputeConfig) -> list[M]:
    """Return the trained student, and its teacher if it has one."""
    return [kind(directory.load(path), compute) for path in (run.out, teacher) if path is not None]


def _scores(
    models: Sequence[Classifier] | Sequence[ImageClassifier], sets: Mapping[str, object], metric: str
) -> Metrics:
    """Return the accuracy of a student on other test sets by name and, with a teacher, the fraction of shared errors.

    metric  name of the accuracy
    """
    scores = Metrics()
    for name, data in sets.items():
        found, *told = (model.evaluate(data) for model in models)
        scores[f"{metric}_{name}"] = found.metrics[metric]
        for teacher in told:
            shared = compare_with_teacher(teacher, found, metric)["shared_errors"]
            scores[f"shared_errors_{name}"] = {"value": shared, "signature": "same wrong label as the teacher"}
    return scores


def train_on_sentences(config: ClassificationConfig, run: Run) -> str | JsonObject | None:
    """Train an LSTM, and Transformers with and without a teacher. Return the table of results."""
    columns = {
        "accuracy": "accuracy", "accuracy_4_modifiers": "4 modifiers", "accuracy_8_modifiers": "8 modifiers",
        "accuracy_4_attractors": "4 attractors", "shared_errors_8_modifiers": "shared",
    }  # fmt: skip
    return ablate(_rows(run, LSTM), config, run, lambda row, run: carry_out(Agreement(row, run)), columns)


def train_on_digits(config: ImageConfig, run: Run) -> str | JsonObject | None:
    """Train a ResNet, and ViTs with and without a teacher. Return the table of results."""
    columns = {"top1": "top1", "top1_moved": "moved", "top1_smaller": "smaller", "shared_errors_moved": "shared"}
    return ablate(_rows(run, RESNET), config, run, lambda row, run: carry_out(MovedDigits(row, run)), columns)


def _rows(run: Run, teacher: JsonObject) -> Rows:
    """Return the settings of each row. The teacher of a row is another row."""
    return {
        name: teacher if name == "teacher" else {} if told is None else {**TAUGHT, "teacher": str(run.out / told)}
        for name, told in TEACHERS.items()
    }
