"""From a model directory to the object that predicts with it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.core.runtime import Precision, prepare
from manyheads.directory import load as load_directory
from manyheads.models.bert import Bert
from manyheads.models.bert_features import BertFeatures
from manyheads.models.conv_attention import ConvAttention
from manyheads.models.gpt import GPT
from manyheads.models.local_attention import LocalAttentionNet
from manyheads.models.nonlocal_net import NonLocalNet
from manyheads.models.resnet import ResNet
from manyheads.models.seq2seq_lstm import Seq2SeqLSTM
from manyheads.models.sequence_baselines import SequenceBaseline
from manyheads.models.text_classifier import TextClassifier
from manyheads.models.tfidf import Tfidf
from manyheads.models.transformer import Transformer
from manyheads.models.universal import Universal, UniversalSequence
from manyheads.models.vit import ViT
from manyheads.tasks.evaluation import record_of


class Row(NamedTuple):
    """A predictor and the models that it takes.

    predictor  "file.below.tasks:Class", imported when it is wanted: a translator needs no images, and starts sooner
    models     the classes of the models
    heads      theirs, where they can have several
    data       what the record of the run's data names, where that makes the difference
    """

    predictor: str
    models: tuple[type[Any], ...]
    heads: tuple[str | None, ...] = (None,)
    data: str | None = None


# the first row that fits
PREDICTORS = (
    Row("digits.predictor:DigitTranslator", (Transformer, Universal, Seq2SeqLSTM), data="algorithm"),
    Row("translation.predictor:Translator", (Transformer, Universal, Seq2SeqLSTM)),
    Row("classification.predictor:Classifier", (TextClassifier, SequenceBaseline, Tfidf)),
    Row("classification.predictor:Classifier", (Bert, BertFeatures), ("sequence",)),
    Row("tagging.predictor:Tagger", (Bert, BertFeatures), ("token",)),
    Row("answering.predictor:QuestionAnswerer", (Bert,), ("question",)),
    Row("masked_words.predictor:MaskedLanguageModel", (Bert,), ("masked_lm", "pretraining")),
    Row("language.predictor:LanguageModel", (GPT,)),
    Row("language.predictor:LanguageModel", (UniversalSequence,), ("decoder",)),
    Row("images.predictor:ImageClassifier", (ViT, ResNet, NonLocalNet, LocalAttentionNet, ConvAttention)),
    Row("images.predictor:ImageEncoder", (ViT, ResNet, NonLocalNet, LocalAttentionNet, ConvAttention), ("none",)),
    Row("predictor:Encoder", (Bert,), ("none", "pooler", "next_sentence", "choice")),
)


def load(model: str | Path, *, precision: Precision = "float32", threads: int | None = None) -> Any:
    """A run directory, a model directory, or `hub:OWNER/NAME[@REVISION]`, ready to use: an object with its verbs."""
    loaded = load_directory(model)
    config = loaded.model.config
    head = getattr(config, "head", None if getattr(config, "labels", True) else "none")  # images: no labels, no head
    for row in PREDICTORS:
        if type(loaded.model) not in row.models or head not in row.heads:
            continue
        if row.data is None or row.data in _trained_on(loaded.path):
            module, name = row.predictor.split(":")
            predictor = getattr(import_module(f"manyheads.tasks.{module}"), name)
            return predictor(loaded, prepare(precision, threads))
    kind = f"{loaded.family} model" + (f" with the head {head!r}" if head else "")
    raise ValueError(f"{model}: a {kind} predicts nothing by itself: train it for a task with --init")


def _trained_on(path: Path) -> dict[str, Any]:
    """What the record of a run tells of its data; a damaged record is an error when the model is scored, not before."""
    try:
        return record_of(path).get("data", {})
    except ValueError:
        return {}
