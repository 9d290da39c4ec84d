"""Text classifiers that no other tool knows, under names of our own."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from manyheads.interop.family import own_family
from manyheads.models.bert_features import BertFeatures, BertFeaturesConfig
from manyheads.models.sequence_baselines import SequenceBaseline, SequenceBaselineConfig
from manyheads.models.text_classifier import TextClassifier, TextClassifierConfig
from manyheads.models.tfidf import Tfidf, TfidfConfig


def _vocabularies(config: Any) -> tuple[int, int]:
    return config.vocab, config.vocab


def _tokenizer(config: Any, tokenizer: Tokenizer) -> dict[str, Any]:
    """For AutoTokenizer."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": tokenizer.id_to_token(config.pad),
        "unk_token": getattr(tokenizer.model, "unk_token", None),
        **({} if config.max_positions is None else {"model_max_length": config.max_positions}),
    }


_MOST = {"layers": 1000, "max_positions": 1_000_000}
CLASSIFIERS = tuple(
    own_family(model_type, config, module, vocabularies=_vocabularies, tokenizer=_tokenizer, most=_MOST)
    for model_type, config, module in (
        ("manyheads-text-classifier", TextClassifierConfig, TextClassifier),
        ("manyheads-sequence-baseline", SequenceBaselineConfig, SequenceBaseline),
        ("manyheads-tfidf", TfidfConfig, Tfidf),
        ("manyheads-bert-features", BertFeaturesConfig, BertFeatures),
    )
)
