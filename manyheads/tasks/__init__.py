"""What a model is trained to do: its loss, its predictions, its metrics, its directory."""

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
from manyheads.tasks.images.predictor import ImageClassifier
from manyheads.tasks.language.predictor import Generator
from manyheads.tasks.masked_words.predictor import Filler
from manyheads.tasks.tagging.predictor import Tagger
from manyheads.tasks.translation.predictor import Translator

# what a model is good for, by its class and, where it can have several, its head
PREDICTORS: dict[tuple[type[Any], str | None], type[Any]] = {
    (Transformer, None): Translator,
    (Universal, None): Translator,
    (Seq2SeqLSTM, None): Translator,
    (Bert, "masked_lm"): Filler,
    (Bert, "pretraining"): Filler,
    (Bert, "sequence"): Classifier,
    (TextClassifier, None): Classifier,
    (SequenceBaseline, None): Classifier,
    (Tfidf, None): Classifier,
    (BertFeatures, "sequence"): Classifier,
    (Bert, "none"): Encoder,
    (Bert, "pooler"): Encoder,
    (Bert, "next_sentence"): Encoder,
    (Bert, "choice"): Encoder,
    (Bert, "token"): Tagger,
    (BertFeatures, "token"): Tagger,
    (Bert, "question"): Answerer,
    (GPT, None): Generator,
    (UniversalSequence, "decoder"): Generator,
    (ViT, None): ImageClassifier,
    (ResNet, None): ImageClassifier,
    (NonLocalNet, None): ImageClassifier,
    (LocalAttentionNet, None): ImageClassifier,
    (ConvAttention, None): ImageClassifier,
}


def load(model: str | Path, *, precision: Precision = "float32", threads: int | None = None) -> Any:
    """A run directory, a model directory, or `hub:OWNER/NAME[@REVISION]`, ready to use: an object with its verbs."""
    loaded = load_directory(model)
    head = getattr(loaded.model.config, "head", None)
    if (type(loaded.model), head) not in PREDICTORS:
        kind = f"{loaded.family} model" + (f" with the head {head!r}" if head else "")
        raise ValueError(f"{model}: a {kind} predicts nothing by itself: train it for a task with --init")
    return PREDICTORS[type(loaded.model), head](loaded, prepare(precision, threads))
