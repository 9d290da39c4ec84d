"""From a model directory to the object that predicts with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from manyheads.tasks.answering.predictor import Answerer
from manyheads.tasks.classification.predictor import Classifier
from manyheads.tasks.encoder import Encoder
from manyheads.tasks.images.predictor import ImageClassifier, ImageEncoder
from manyheads.tasks.language.predictor import Generator
from manyheads.tasks.masked_words.predictor import Filler
from manyheads.tasks.tagging.predictor import Tagger
from manyheads.tasks.translation.predictor import Translator

# of each predictor the models that it takes, by class and, where it can have several, by head
PREDICTORS: dict[type[Any], list[tuple[type[Any], str | None]]] = {
    Translator: [(Transformer, None), (Universal, None), (Seq2SeqLSTM, None)],
    Classifier: [
        (Bert, "sequence"), (BertFeatures, "sequence"), (TextClassifier, None), (SequenceBaseline, None), (Tfidf, None),
    ],
    Tagger: [(Bert, "token"), (BertFeatures, "token")],
    Answerer: [(Bert, "question")],
    Filler: [(Bert, "masked_lm"), (Bert, "pretraining")],
    Generator: [(GPT, None), (UniversalSequence, "decoder")],
    ImageClassifier: [(model, None) for model in (ViT, ResNet, NonLocalNet, LocalAttentionNet, ConvAttention)],
    Encoder: [(Bert, head) for head in ("none", "pooler", "next_sentence", "choice")],
}  # fmt: skip


def load(model: str | Path, *, precision: Precision = "float32", threads: int | None = None) -> Any:
    """A run directory, a model directory, or `hub:OWNER/NAME[@REVISION]`, ready to use: an object with its verbs."""
    loaded = load_directory(model)
    head = getattr(loaded.model.config, "head", None)
    known = (type(loaded.model), head)
    predictor = next((predictor for predictor, models in PREDICTORS.items() if known in models), None)
    if predictor is None:
        kind = f"{loaded.family} model" + (f" with the head {head!r}" if head else "")
        raise ValueError(f"{model}: a {kind} predicts nothing by itself: train it for a task with --init")
    if predictor is ImageClassifier and not loaded.model.config.labels:
        predictor = ImageEncoder
    return predictor(loaded, prepare(precision, threads))
