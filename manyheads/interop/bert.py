"""Read and write BERT, RoBERTa, DistilBERT and Megatron-LM's BERT with their heads, in the format of `transformers`.

Based on transformers 5.23 (modeling_bert.py, modeling_roberta.py, modeling_distilbert.py, modeling_megatron_bert.py)
and the files of google-bert on the Hub. Such files may contain names of the original release (`LayerNorm.gamma`),
stored position ids, and poolers that the head does not use.

DistilBERT uses dropout differently in training. Manyheads, like BERT, also applies dropout between attention and the
residual connection, and uses the dropout rate of the sequence head for the token head, too. Outputs without dropout
are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.family import Family
from manyheads.interop.keys import ABSENT, ANY_TEXT_MODEL, FEED_FORWARD, SIZES, activation, architecture
from manyheads.interop.labels import TargetRow, label_names, read_labels, read_target
from manyheads.interop.table import Choice, Setting, SettingRow, Settings, Weight, numbered
from manyheads.models.bert import LABELED, POOLED, Bert, BertConfig

_OLD = {"weight": "gamma", "bias": "beta"}  # names of the LayerNorm parameters in the original release of BERT


@dataclass(frozen=True)
class _Names:
    """Names that a model family, such as BERT or RoBERTa, uses in its files.

    prefix         prefix of the encoder's tensors if the model has a head
    architectures  architecture name in config.json for each Manyheads head; the first is the default
    encoder        mapping from the Manyheads name of each encoder layer to its name in the family's files, without the
                   prefix
    words          mapping from the Manyheads name of each layer of the masked-LM head to its name in files
    decoder        name of the output matrix over the vocabulary, which is tied to the embeddings
    bias           name of the bias of the output matrix
    heads          for each Manyheads head, the names of two layers: the layer between encoder and classifier (or
                   None), and the classifier
    """

    prefix: str
    architectures: Mapping[str, str]
    encoder: Mapping[str, str]
    words: Mapping[str, str]
    decoder: str
    bias: str
    heads: Mapping[str, tuple[str | None, str]]

    def __post_init__(self) -> None:
        names = [*self.architectures.values()]
        assert len(set(names)) == len(names), (
            f"two heads have the same architecture, so one of them could not be read: {names}"
        )

    def weights(self, config: BertConfig, _: Iterable[str]) -> list[Weight]:
        written, other = ("", self.prefix) if config.head in ("none", "pooler") else (self.prefix, "")

        def row(ours: str, theirs: str, *also: str) -> Weight:
            """Return the row of the conversion table for an encoder tensor.

            The name of the tensor in a file may or may not begin with the prefix of the encoder.
            """
            return Weight(ours, written + theirs, (other + theirs, *also))

        rows = [
            row("embedding.weight", "embeddings.word_embeddings.weight", f"{self.decoder}.weight"),
            row("positions.table", "embeddings.position_embeddings.weight"),
            Weight("output_bias", self.bias, (f"{self.decoder}.bias",)),
        ]
        pooler, classifier = self.heads.get(config.head, (None, "classifier"))
        outside = {**self.words, "classifier": classifier} | ({"pooler": pooler} if pooler else {})
        for leaf, old in _OLD.items():
            for ours, theirs in {"pooler": "pooler.dense", **self.encoder}.items():
                if ours not in outside:
                    also = [f"{prefix}{theirs}.{old}" for prefix in (written, other) if theirs.endswith("LayerNorm")]
                    rows.append(row(f"{ours}.{leaf}", f"{theirs}.{leaf}", *also))
            for ours, theirs in outside.items():
                also = [f"{theirs}.{old}"] if theirs.endswith("LayerNorm") else []
                rows.append(Weight(f"{ours}.{leaf}", f"{theirs}.{leaf}", tuple(also)))
        return rows

    def architecture(self, config: BertConfig) -> str:
        named = self.architectures.get(config.head, "")
        return self.architectures.get("pooler", "") if config.head == "none" and not named else named

    def computed(self, config: BertConfig) -> dict[str, Tensor | None]:
        """Return further tensors that a file may contain: position ids of older versions, and poolers without a use."""
        numbers = numbered(config.max_positions + config.position_offset)[None]
        tensors: dict[str, Tensor | None] = {
            f"{prefix}embeddings.position_ids": numbers for prefix in ("", self.prefix)
        }
        if config.head not in ("none", "pooler") and (config.head not in POOLED or config.head in self.heads):
            tensors |= {f"{self.prefix}pooler.dense.{leaf}": None for leaf in _OLD}
        return tensors

    def infer(self, settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
        """Return the model head that `architectures` of config.json names, and the class labels of this head.

        bert-base-uncased names BertForMaskedLM but contains both pretraining heads; in this case, "pretraining" is
        returned.
        """
        heads = {name: head for head, name in self.architectures.items()}
        head = heads[architecture(settings, list(heads))]
        if all(any(name.startswith(part) for name in tensors) for part in ("cls.predictions", "cls.seq_relationship")):
            head = "pretraining"
        if head == "pooler" and not any("pooler.dense" in name for name in tensors):
            head = "none"
        labels = read_labels(settings) if head in LABELED else ()
        target = {"target": read_target(settings, labels)} if head == "sequence" else {}
        return {"head": head, "labels": labels, **target}

    def also_written(self, config: BertConfig) -> JsonObject:
        if not self.architecture(config):
            raise UserError(f"head is {config.head!r}; only {', '.join(self.architectures)} can be represented")
        return label_names(config.labels) if config.head in LABELED else {}


_BLOCK, _LAYER = "encoder.blocks.{}", "encoder.layer.{}"
_HEADS = {"masked_lm": "ForMaskedLM", "sequence": "ForSequenceClassification", "token": "ForTokenClassification",
          "question": "ForQuestionAnswering"}  # fmt: skip
_BERT_ENCODER = {
    "segments": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    **{f"{_BLOCK}.attention.{name}": f"{_LAYER}.attention.self.{name}" for name in ("query", "key", "value")},
    f"{_BLOCK}.attention.output": f"{_LAYER}.attention.output.dense",
    f"{_BLOCK}.attention_norm": f"{_LAYER}.attention.output.LayerNorm",
    f"{_BLOCK}.feed_forward.expand": f"{_LAYER}.intermediate.dense",
    f"{_BLOCK}.feed_forward.contract": f"{_LAYER}.output.dense",
    f"{_BLOCK}.feed_forward_norm": f"{_LAYER}.output.LayerNorm",
}
_BERT = _Names(
    "bert.",
    {"pooler": "BertModel", "pretraining": "BertForPreTraining", "next_sentence": "BertForNextSentencePrediction",
     "choice": "BertForMultipleChoice", **{head: f"Bert{name}" for head, name in _HEADS.items()}},
    _BERT_ENCODER,
    {"transform": "cls.predictions.transform.dense", "transform_norm": "cls.predictions.transform.LayerNorm",
     "next_sentence": "cls.seq_relationship"},
    decoder="cls.predictions.decoder", bias="cls.predictions.bias",
    heads={"question": (None, "qa_outputs")},
)  # fmt: skip
_ROBERTA = _Names(
    "roberta.",
    {"pooler": "RobertaModel", "choice": "RobertaForMultipleChoice",
     **{head: f"Roberta{name}" for head, name in _HEADS.items()}},
    _BERT_ENCODER,
    {"transform": "lm_head.dense", "transform_norm": "lm_head.layer_norm"},
    decoder="lm_head.decoder", bias="lm_head.bias",
    heads={"question": (None, "qa_outputs"), "sequence": ("classifier.dense", "classifier.out_proj")},
)  # fmt: skip
_MEGATRON = replace(
    _BERT,
    architectures={head: f"Megatron{name}" for head, name in _BERT.architectures.items()},
    encoder={
        **{ours: theirs for ours, theirs in _BERT_ENCODER.items() if not theirs.endswith("LayerNorm")},
        f"{_BLOCK}.attention_norm": f"{_LAYER}.attention.ln",
        f"{_BLOCK}.feed_forward_norm": f"{_LAYER}.ln",
        "encoder.norm": "encoder.ln",
    },
)
_DISTILBERT_LAYERS = {
    "embedding_norm": "embeddings.LayerNorm",
    **{f"{_BLOCK}.attention.{name}": f"transformer.layer.{{}}.attention.{letters}_lin"
       for name, letters in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out"))},
    f"{_BLOCK}.attention_norm": "transformer.layer.{}.sa_layer_norm",
    f"{_BLOCK}.feed_forward.expand": "transformer.layer.{}.ffn.lin1",
    f"{_BLOCK}.feed_forward.contract": "transformer.layer.{}.ffn.lin2",
    f"{_BLOCK}.feed_forward_norm": "transformer.layer.{}.output_layer_norm",
}  # fmt: skip
_DISTILBERT = _Names(
    "distilbert.",
    {"none": "DistilBertModel", "choice": "DistilBertForMultipleChoice",
     **{head: f"DistilBert{name}" for head, name in _HEADS.items()}},
    _DISTILBERT_LAYERS,
    {"transform": "vocab_transform", "transform_norm": "vocab_layer_norm"},
    decoder="vocab_projector", bias="vocab_projector.bias",
    heads={"question": (None, "qa_outputs"), **dict.fromkeys(("sequence", "choice"), ("pre_classifier", "classifier"))},
)  # fmt: skip


class _OffsetPositions(Setting):
    """Conversion of the maximum number of positions in RoBERTa.

    RoBERTa numbers positions from the padding id plus 1, so the first rows of its position table are unused.
    """

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        rows, pad = super().to_ours(theirs)[self.ours], _ROBERTA_PAD.to_ours(theirs)["pad"]
        if not (isinstance(rows, int) and isinstance(pad, int)):
            # An invalid value is returned unchanged, because the Manyheads configuration reports the error.
            return {self.ours: rows}
        offset = pad + 1
        if rows <= offset:
            raise UserError(f"'max_position_embeddings' is {rows}; expected more than {offset} ('pad_token_id' + 1)")
        return {self.ours: rows - offset, "position_offset": offset}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        if ours["position_offset"] != ours["pad"] + 1:
            raise UserError(f"position_offset is {ours['position_offset']}; only {ours['pad'] + 1} can be represented")
        return {self.theirs: ours[self.ours] + ours["position_offset"]}


class _Rate(Setting):
    """Conversion of the dropout rate before a classifier. In Manyheads, None means the general dropout rate."""

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        rate = ours[self.ours]
        return {self.theirs: ours["dropout"] if rate is None else rate}


_ROBERTA_PAD = Setting("pad", "pad_token_id", default=1)
_TEXT: tuple[SettingRow, ...] = (  # settings that BERT and DistilBERT share
    Setting("vocab", "vocab_size", default=30_522),
    Setting("pad", "pad_token_id", default=0),
    Setting("max_positions", "max_position_embeddings", default=512),
)
_ENCODER: tuple[SettingRow, ...] = (  # settings that BERT, RoBERTa and Megatron-LM's BERT share
    Setting("segment_types", "type_vocab_size", default=2),
    Setting("norm_eps", "layer_norm_eps", default=1e-12),
    Setting("dropout", "hidden_dropout_prob", default=0.1),
    Setting("attention_dropout", "attention_probs_dropout_prob", default=0.1),
)
_SIZES: tuple[SettingRow, ...] = (  # settings that BERT and RoBERTa share
    *SIZES,
    FEED_FORWARD,
    *_ENCODER,
    Setting("head_dropout", "classifier_dropout", default=None),
)
# Keys of config.json that do not change the output in transformers, and keys that the function `infer` reads.
_IGNORED = """
    decoder_start_token_id eos_token_id output_past pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head sinusoidal_pos_embds tie_weights_
"""
_PUBLISHED = {"norm": "post", "embedding_norm": True}  # positions of the layer norms
_PLAIN = {
    **_PUBLISHED,
    "position_offset": 0,
    "pooler_activation": "tanh",
    "dropout_below_pooler": False,
    "question_dropout": 0.0,
}


def _family(
    model_type: str, names: _Names, rows: tuple[SettingRow, ...], ours: JsonMapping, theirs: JsonMapping
) -> Family[BertConfig]:
    return Family(
        model_type, BertConfig, Bert,
        Settings(
            (*rows, TargetRow()),
            ours_only=ours,
            theirs_only={"tie_word_embeddings": True, **theirs},
            tolerated={
                **ABSENT, "position_embedding_type": "absolute",
                "pooler_type": "first_token_transform", "directionality": "bidi",
            },
            ignored=ANY_TEXT_MODEL | set(_IGNORED.split()),
        ),
        names.weights, names.architecture, infer=names.infer, computed=names.computed, also_written=names.also_written,
    )  # fmt: skip


_NO_DECODER = {"is_decoder": False, "add_cross_attention": False}
BERT = _family(
    "bert", _BERT,
    (*_TEXT, activation("hidden_act"), *_SIZES),
    _PLAIN, _NO_DECODER,
)  # fmt: skip
MEGATRON_BERT = _family(
    "megatron-bert", _MEGATRON,
    (
        Setting("vocab", "vocab_size", default=29_056),
        *_TEXT[1:],
        activation("hidden_act"),
        Setting("width", "hidden_size", default=1024),
        Setting("layers", "num_hidden_layers", default=24),
        Setting("heads", "num_attention_heads", default=16),
        Setting("feed_forward", "intermediate_size", default=4096),
        *_ENCODER,
    ),
    {**_PLAIN, "norm": "pre", "embedding_norm": False, "head_dropout": None}, _NO_DECODER,
)  # fmt: skip
ROBERTA = _family(
    "roberta", _ROBERTA,
    (
        Setting("vocab", "vocab_size", default=50_265),
        _ROBERTA_PAD,
        _OffsetPositions("max_positions", "max_position_embeddings", default=512),
        # activation function of the language-model head
        Choice("activation", ("hidden_act",), {"gelu": [("gelu",), ("gelu_python",)]}, ("gelu",)),
        *_SIZES,
    ),
    {**_PUBLISHED, "pooler_activation": "tanh", "dropout_below_pooler": True, "question_dropout": 0.0}, _NO_DECODER,
)  # fmt: skip
# XLM-RoBERTa (Conneau 2019) differs in the names of its architectures. Its models are saved as ROBERTA.
_XLM = replace(_ROBERTA, architectures={head: f"XLM{name}" for head, name in _ROBERTA.architectures.items()})
XLM_ROBERTA = replace(ROBERTA, model_type="xlm-roberta", architecture=_XLM.architecture, infer=_XLM.infer)
DISTILBERT = _family(
    "distilbert", _DISTILBERT,
    (
        *_TEXT,
        activation("activation"),
        Setting("width", "dim", default=768),
        Setting("layers", "n_layers", default=6),
        Setting("heads", "n_heads", default=12),
        Setting("feed_forward", "hidden_dim", default=3072),
        Setting("dropout", "dropout", default=0.1),
        Setting("attention_dropout", "attention_dropout", default=0.1),
        _Rate("head_dropout", "seq_classif_dropout", default=0.2),
        Setting("question_dropout", "qa_dropout", default=0.1),
    ),
    {**_PUBLISHED, "segment_types": None, "norm_eps": 1e-12, "position_offset": 0, "pooler_activation": "relu",
     "dropout_below_pooler": False},
    {},
)  # fmt: skip
