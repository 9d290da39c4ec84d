"""Models, or settings of them, that no other tool knows: under names of our own, `manyheads-...`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from manyheads.interop.encoder_decoder import generation as translation
from manyheads.interop.family import Family
from manyheads.interop.gpt import generation as continuation
from manyheads.interop.table import Settings, Weight, slots
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.bert_features import BertFeatures, BertFeaturesConfig
from manyheads.models.conv_attention import ConvAttention, ConvAttentionConfig
from manyheads.models.directions import DirectionalConfig, DirectionalEncoder
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.local_attention import LocalAttentionConfig, LocalAttentionNet
from manyheads.models.nonlocal_net import NonLocalConfig, NonLocalNet
from manyheads.models.resnet import ResNet, ResNetConfig
from manyheads.models.seq2seq_lstm import Seq2SeqLSTM, Seq2SeqLSTMConfig
from manyheads.models.sequence_baselines import SequenceBaseline, SequenceBaselineConfig
from manyheads.models.text_classifier import TextClassifier, TextClassifierConfig
from manyheads.models.tfidf import Tfidf, TfidfConfig
from manyheads.models.transformer import Transformer, TransformerConfig
from manyheads.models.universal import Universal, UniversalConfig, UniversalSequence, UniversalSequenceConfig
from manyheads.models.vit import ViT, ViTConfig


@dataclass(frozen=True)
class _Field:
    """A field of a configuration under its own name; the configuration itself checks type and range.

    default  taken where the key is missing: the field is younger than the directory, and this is what was computed then
    """

    name: str
    default: Any

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.name,)

    def to_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        value = theirs.get(self.name, self.default)
        if value is MISSING:
            raise ValueError(f"{self.name!r} is missing")
        return {self.name: value}

    def to_theirs(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        return {self.name: ours[self.name]}


def _family(
    model_type: str, config: type[Any], module: type[Any], generation: Callable[[Any], dict[str, Any]] | None = None
) -> Family:
    rows = tuple(_Field(field.name, field.default) for field in fields(config))
    ignored = frozenset({"architectures", "model_type", "dtype", "tokenizers"})
    return Family(
        model_type, config, module, Settings(rows, {}, {}, {}, ignored), _weights,
        architecture=lambda config: module.__name__, generation=generation, own=True,
    )  # fmt: skip


def _weights(config: Any, names: Iterable[str]) -> list[Weight]:
    return [Weight(pattern, pattern) for pattern in dict.fromkeys(slots(name)[0] for name in names)]


OWN_TRANSFORMER = _family("manyheads-transformer", TransformerConfig, Transformer, translation)
OWN = (
    OWN_TRANSFORMER,
    _family("manyheads-universal", UniversalConfig, Universal),
    _family("manyheads-universal-sequence", UniversalSequenceConfig, UniversalSequence),
    _family("manyheads-seq2seq-lstm", Seq2SeqLSTMConfig, Seq2SeqLSTM),
    _family("manyheads-bert", BertConfig, Bert),
    _family("manyheads-bert-features", BertFeaturesConfig, BertFeatures),
    _family("manyheads-gpt", GPTConfig, GPT, continuation),
    _family("manyheads-reader", DirectionalConfig, DirectionalEncoder),
    _family("manyheads-text-classifier", TextClassifierConfig, TextClassifier),
    _family("manyheads-sequence-baseline", SequenceBaselineConfig, SequenceBaseline),
    _family("manyheads-tfidf", TfidfConfig, Tfidf),
    _family("manyheads-vit", ViTConfig, ViT),
    _family("manyheads-resnet", ResNetConfig, ResNet),
    _family("manyheads-nonlocal", NonLocalConfig, NonLocalNet),
    _family("manyheads-local-attention", LocalAttentionConfig, LocalAttentionNet),
    _family("manyheads-conv-attention", ConvAttentionConfig, ConvAttention),
)
