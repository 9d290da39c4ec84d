"""From a model directory to the object that predicts with it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.core.config import Precision
from manyheads.core.runtime import prepare
from manyheads.directory import load as load_directory
from manyheads.errors import UserError
from manyheads.models.presets import FAMILIES, IMAGES
from manyheads.tasks.evaluation import record_of


class PredictorRow(NamedTuple):
    """A predictor and the models that it takes.

    predictor  "file.below.tasks:Class", imported when it is wanted: a translator needs no images, and starts sooner
    families   of the models, as `models/presets.py` calls them
    heads      theirs, where they can have several
    data       what the record of the run's data names, where that makes the difference
    """

    predictor: str
    families: tuple[str, ...]
    heads: tuple[str | None, ...] = (None,)
    data: str | None = None


# the first row that fits
PREDICTORS = (
    PredictorRow("digits.predictor:DigitTranslator", ("transformer", "universal", "seq2seq-lstm"), data="algorithm"),
    PredictorRow("translation.predictor:Translator", ("transformer", "universal", "seq2seq-lstm")),
    PredictorRow("classification.predictor:Classifier", ("text-classifier", "sequence-baseline", "tfidf")),
    PredictorRow("classification.predictor:Classifier", ("bert", "bert-features", "gpt", "gpt2"), ("sequence",)),
    PredictorRow("tagging.predictor:Tagger", ("bert", "bert-features"), ("token",)),
    PredictorRow("answering.predictor:QuestionAnswerer", ("bert",), ("question",)),
    PredictorRow("masked_words.predictor:MaskedLanguageModel", ("bert",), ("masked_lm", "pretraining")),
    PredictorRow("language.predictor:LanguageModel", ("gpt", "gpt2"), ("language",)),
    PredictorRow("language.predictor:LanguageModel", ("universal-sequence",), ("decoder",)),
    PredictorRow("images.clip_task:ClipClassifier", ("nonlocal",), data="frames"),
    PredictorRow("images.predictor:ImageClassifier", IMAGES),
    PredictorRow("images.predictor:ImageEncoder", IMAGES, ("none",)),
    PredictorRow("classification.encoder:Encoder", ("bert",), ("none", "pooler", "next_sentence", "choice")),
)


def load(model: str | Path, *, precision: Precision = "float32", threads: int | None = None) -> Any:
    """A run directory, a model directory, or `hub:OWNER/NAME[@REVISION]`, ready to use: an object with its verbs."""
    loaded = load_directory(model)
    config = loaded.model.config
    head = getattr(config, "head", None if getattr(config, "labels", True) else "none")  # images: no labels, no head
    for row in PREDICTORS:
        models = [FAMILIES[family].model for family in row.families]
        if type(loaded.model).__name__ not in models or head not in row.heads:
            continue
        if row.data is None or row.data in _trained_on(loaded.path):
            module, name = row.predictor.split(":")
            predictor = getattr(import_module(f"manyheads.tasks.{module}"), name)
            return predictor(loaded, prepare(precision, threads))
    kind = f"{loaded.family} model" + (f" with the head {head!r}" if head else "")
    raise UserError(f"{model}: a {kind} predicts nothing by itself: train it for a task with --init")


def _trained_on(path: Path) -> dict[str, Any]:
    """What the record of a run says of its data; a damaged record is an error when the model is scored, not before."""
    try:
        return record_of(path).get("data", {})
    except UserError:
        return {}
