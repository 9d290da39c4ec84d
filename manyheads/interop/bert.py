"""BERT as `transformers` writes it: all heads, in both directions.

Read in transformers 5.23 (modeling_bert.py) and in the files of google-bert on the Hub: the original release's names
(`LayerNorm.gamma`), tables of positions that were once stored, and poolers that lie beside heads that do not read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from manyheads.interop.family import Family
from manyheads.interop.keys import ANY_TEXT_MODEL, MOST_LAYERS, MOST_POSITIONS, activation
from manyheads.interop.labels import label_names, read_labels
from manyheads.interop.table import Setting, Settings, Weight
from manyheads.models.bert import LABELLED, POOLED, Bert, BertConfig

_ARCHITECTURES = {
    "pooler": "BertModel",
    "masked_lm": "BertForMaskedLM",
    "pretraining": "BertForPreTraining",
    "next_sentence": "BertForNextSentencePrediction",
    "sequence": "BertForSequenceClassification",
    "token": "BertForTokenClassification",
    "question": "BertForQuestionAnswering",
    "choice": "BertForMultipleChoice",
}
_WORDS, _FOLLOWS, _POOLER = "cls.predictions", "cls.seq_relationship", "pooler.dense"
_ENCODER = {
    "segments": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    **{f"encoder.blocks.{{}}.attention.{name}": f"encoder.layer.{{}}.attention.self.{name}"
       for name in ("query", "key", "value")},
    "encoder.blocks.{}.attention.output": "encoder.layer.{}.attention.output.dense",
    "encoder.blocks.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "encoder.blocks.{}.feed_forward.expand": "encoder.layer.{}.intermediate.dense",
    "encoder.blocks.{}.feed_forward.contract": "encoder.layer.{}.output.dense",
    "encoder.blocks.{}.feed_forward_norm": "encoder.layer.{}.output.LayerNorm",
    "pooler": _POOLER,
}  # fmt: skip
_HEADS = {"transform": f"{_WORDS}.transform.dense", "transform_norm": f"{_WORDS}.transform.LayerNorm",
          "next_sentence": _FOLLOWS}  # fmt: skip
_OLD = {"weight": "gamma", "bias": "beta"}  # of norms in the original release


def _weights(config: BertConfig, names: Iterable[str]) -> list[Weight]:
    written, other = ("", "bert.") if config.head in ("none", "pooler") else ("bert.", "")

    def row(ours: str, theirs: str, *also: str) -> Weight:
        """A tensor of the encoder; files differ in whether they name the encoder."""
        return Weight(ours, written + theirs, (other + theirs, *also))

    rows = [
        row("embedding.weight", "embeddings.word_embeddings.weight", f"{_WORDS}.decoder.weight"),
        row("positions.table", "embeddings.position_embeddings.weight"),
        Weight("output_bias", f"{_WORDS}.bias", (f"{_WORDS}.decoder.bias",)),
    ]
    for ours, theirs in _ENCODER.items():
        for leaf, old in _OLD.items():
            also = [f"{prefix}{theirs}.{old}" for prefix in (written, other) if theirs.endswith("LayerNorm")]
            rows.append(row(f"{ours}.{leaf}", f"{theirs}.{leaf}", *also))
    classifier = "qa_outputs" if config.head == "question" else "classifier"
    for ours, theirs in (_HEADS | {"classifier": classifier}).items():
        for leaf, old in _OLD.items():
            also = [f"{theirs}.{old}"] if theirs.endswith("LayerNorm") else []
            rows.append(Weight(f"{ours}.{leaf}", f"{theirs}.{leaf}", tuple(also)))
    return rows


def _computed(config: BertConfig) -> dict[str, Tensor | None]:
    """Positions that older versions stored, and the pooler that their heads without one kept."""
    found: dict[str, Tensor | None] = {
        f"{prefix}embeddings.position_ids": torch.arange(config.max_positions)[None] for prefix in ("", "bert.")
    }
    if config.head not in (*POOLED, "none"):
        found |= {f"bert.{_POOLER}.{leaf}": None for leaf in _OLD}
    return found


def _infer(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The head, which `architectures` names, and its labels.

    bert-base-uncased itself says BertForMaskedLM and holds both of pretraining's heads: two heads are pretraining's.
    """
    named = settings.get("architectures") or ["BertModel"]
    heads = {name: head for head, name in _ARCHITECTURES.items()}
    if not (isinstance(named, list) and len(named) == 1 and named[0] in heads):
        raise ValueError(f"'architectures' is {named!r}: known are {', '.join(heads)}")
    head = heads[named[0]]
    if all(any(name.startswith(part) for name in tensors) for part in (_WORDS, _FOLLOWS)):
        head = "pretraining"
    if head == "pooler" and not any(_POOLER in name for name in tensors):
        head = "none"
    return {"head": head, "labels": read_labels(settings) if head in LABELLED else ()}


def _label_names(config: BertConfig) -> dict[str, Any]:
    return label_names(config.labels) if config.head in LABELLED else {}


# What no forward pass of theirs reads, and what `_infer` does.
_IGNORED = """
    decoder_start_token_id eos_token_id output_past pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head
"""
BERT = Family(
    "bert", BertConfig, Bert,
    Settings(
        (
            Setting("vocab", "vocab_size", int, default=30_522, least=1),
            Setting("width", "hidden_size", int, default=768, least=1),
            Setting("layers", "num_hidden_layers", int, default=12, most=MOST_LAYERS),
            Setting("heads", "num_attention_heads", int, default=12, least=1),
            Setting("feed_forward", "intermediate_size", int, default=3072, least=1),
            activation("hidden_act"),
            Setting("max_positions", "max_position_embeddings", int, default=512, least=1, most=MOST_POSITIONS),
            Setting("segment_types", "type_vocab_size", int, default=2, least=1),
            Setting("pad", "pad_token_id", int, default=0),
            Setting("norm_eps", "layer_norm_eps", float, default=1e-12),
            Setting("dropout", "hidden_dropout_prob", float, default=0.1, most=1),
            Setting("attention_dropout", "attention_probs_dropout_prob", float, default=0.1, most=1),
            Setting("head_dropout", "classifier_dropout", float, default=None, most=1),
        ),
        ours_only={},
        theirs_only={"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True},
        tolerated={
            "position_embedding_type": "absolute", "problem_type": "single_label_classification", "pruned_heads": {},
            "is_encoder_decoder": False, "tie_encoder_decoder": False, "pooler_type": "first_token_transform",
            "directionality": "bidi",
        },
        ignored=ANY_TEXT_MODEL | set(_IGNORED.split()),
    ),
    _weights,
    architecture=lambda config: _ARCHITECTURES.get(config.head, "BertModel"),
    infer=_infer,
    computed=_computed,
    also_written=_label_names,
)  # fmt: skip
