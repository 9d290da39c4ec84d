"""The reader of `models/reading.py`, which no other tool knows, under names of our own."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from manyheads.interop.family import own_family
from manyheads.models.directions import DirectionalConfig, DirectionalEncoder


def _tokenizer(config: DirectionalConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": tokenizer.id_to_token(config.pad),
        "unk_token": getattr(tokenizer.model, "unk_token", None),
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": config.max_positions,
    }


READER = own_family(
    "manyheads-reader", DirectionalConfig, DirectionalEncoder, vocabularies=lambda config: (config.vocab, config.vocab),
    tokenizer=_tokenizer, most={"layers": 1000, "max_positions": 1_000_000},
)  # fmt: skip
