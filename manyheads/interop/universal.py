"""The Universal Transformer and its rival of LSTMs, which no other tool knows, under names of our own."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from manyheads.interop.family import own_family
from manyheads.models.seq2seq_lstm import Seq2SeqLSTM, Seq2SeqLSTMConfig
from manyheads.models.universal import Universal, UniversalConfig, UniversalSequence, UniversalSequenceConfig


def _two_vocabularies(config: UniversalConfig) -> tuple[int, int]:
    return config.source_vocab, config.target_vocab


def _one_vocabulary(config: Any) -> tuple[int, int]:
    return config.vocab, config.vocab


def _tokenizer(config: Any, tokenizer: Tokenizer) -> dict[str, Any]:
    """For AutoTokenizer. An end token is added by the post-processor in tokenizer.json."""
    tokens = {"pad_token": getattr(config, "pad", None), "eos_token": config.end}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: tokenizer.id_to_token(index) for name, index in tokens.items() if index is not None},
        "unk_token": getattr(tokenizer.model, "unk_token", None),
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": config.max_positions,
    }


_MOST = {"steps": 1000, "max_positions": 1_000_000, "layers": 1000}
UNIVERSAL = (
    own_family("manyheads-universal", UniversalConfig, Universal, vocabularies=_two_vocabularies,
               tokenizer=_tokenizer, most=_MOST),
    own_family("manyheads-universal-sequence", UniversalSequenceConfig, UniversalSequence,
               vocabularies=_one_vocabulary, tokenizer=_tokenizer, most=_MOST),
    own_family("manyheads-seq2seq-lstm", Seq2SeqLSTMConfig, Seq2SeqLSTM, vocabularies=_one_vocabulary,
               tokenizer=_tokenizer, most=_MOST),
)  # fmt: skip
