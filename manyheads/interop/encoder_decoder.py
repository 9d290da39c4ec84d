"""Read and write the encoder-decoder Transformer (Vaswani 2017) in the format of Marian, Pegasus or Manyheads.

Marian      post-norm without final norms; joint or separate vocabularies
Pegasus     pre-norm with final norms; one embedding matrix for source, target and output
Manyheads   all other configurations; no other library can load them

Based on transformers 5.23 (modeling_marian.py, modeling_pegasus.py). In Marian and Pegasus, the sinusoidal position
vectors contain all sines first, then all cosines. Layer norms have epsilon 1e-5, and every linear layer has a bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from manyheads.core.positions import sinusoidal
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.family import Family
from manyheads.interop.keys import ANY_TEXT_MODEL, activation
from manyheads.interop.table import Choice, Setting, SettingRow, Settings, Weight, weights_and_biases
from manyheads.models.transformer import Transformer, TransformerConfig

_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_LAYER = {
    **{f"attention.{ours}": f"self_attn.{theirs}" for ours, theirs in _PROJECTIONS.items()},
    "attention_norm": "self_attn_layer_norm",
    # These tensors occur only in the layers of the decoder.
    **{f"cross.{ours}": f"encoder_attn.{theirs}" for ours, theirs in _PROJECTIONS.items()},
    "cross_norm": "encoder_attn_layer_norm",
    "feed_forward.expand": "fc1",
    "feed_forward.contract": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
_STACKS = [
    row
    for stack in ("encoder", "decoder")
    for row in weights_and_biases(
        {f"{stack}.blocks.{{}}.{ours}": f"model.{stack}.layers.{{}}.{theirs}" for ours, theirs in _LAYER.items()}
        | {f"{stack}.norm": f"model.{stack}.layer_norm"}  # This tensor exists only in Pegasus files.
    )
]
_SHARED, _SOURCE, _TARGET, _OUTPUT = (
    "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
_EMBEDDINGS = {
    "all": [Weight("source_embedding.weight", _SHARED, also=(_SOURCE, _TARGET, _OUTPUT))],
    "target": [
        Weight("source_embedding.weight", _SOURCE),
        Weight("target_embedding.weight", _TARGET, also=(_OUTPUT,)),
    ],
    "none": [
        Weight("source_embedding.weight", _SOURCE),
        Weight("target_embedding.weight", _TARGET),
        Weight("output.weight", _OUTPUT),
    ],
}
# The output bias has the shape (V,) in Manyheads and (1, V) in files of Marian and Pegasus.
_BIAS = Weight("output_bias", "final_logits_bias", to_theirs=lambda bias: bias[None], to_ours=lambda bias: bias[0])


def _weights(config: TransformerConfig, names: Iterable[str]) -> list[Weight]:
    return [*_EMBEDDINGS[config.tie], *_STACKS, _BIAS]


def _computed(config: TransformerConfig) -> dict[str, Tensor]:
    table = sinusoidal(config.max_positions, config.width, "concatenated").float()
    tensors = {f"model.{stack}.embed_positions.weight": table.clone() for stack in ("encoder", "decoder")}
    if not config.output_bias:
        tensors["final_logits_bias"] = torch.zeros(1, 1).expand(1, config.target_vocab)
    return tensors


class _OnePad:
    """Conversion of the padding token ids of source and target, for which config.json has a single key."""

    keys: tuple[str, ...] = ()

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        return {"source_pad": None}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        if ours["source_pad"] not in (None, ours["pad"]):
            raise UserError(
                f"source_pad is {ours['source_pad']}; only the value of pad, {ours['pad']}, can be represented"
            )
        return {}


_COMMON: tuple[SettingRow, ...] = (
    _OnePad(),
    Setting("source_vocab", "vocab_size"),
    Setting("pad", "pad_token_id"),
    Setting("end", "eos_token_id"),
    Setting("start", "decoder_start_token_id"),
    Setting("width", "d_model", also=("hidden_size",)),
    Setting("encoder_layers", "encoder_layers", also=("num_hidden_layers",)),
    Setting("decoder_layers", "decoder_layers"),
    Setting("encoder_heads", "encoder_attention_heads", also=("num_attention_heads",)),
    Setting("decoder_heads", "decoder_attention_heads"),
    Setting("encoder_feed_forward", "encoder_ffn_dim"),
    Setting("decoder_feed_forward", "decoder_ffn_dim"),
    Setting("scale_embedding", "scale_embedding", default=False),
    Setting("max_positions", "max_position_embeddings", default=1024),
    Setting("dropout", "dropout", default=0.1),
    Setting("attention_dropout", "attention_dropout", default=0.0),
    Setting("activation_dropout", "activation_dropout", default=0.0),
    activation("activation_function"),
)
_FIXED_HERE = {
    "norm_eps": 1e-5, "attention_bias": True, "key_width": None, "positions": "concatenated", "feed_forward": "dense",
    "normalization": "layer",
}  # fmt: skip
_FIXED_THERE: JsonObject = {
    "is_encoder_decoder": True, "is_decoder": False, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "normalize_embedding": False, "static_position_embeddings": True,
}  # fmt: skip
_MAY_BE_MISSING = {"add_cross_attention": False, "tie_encoder_decoder": False, "pruned_heads": {}}
# Keys that do not change the output of the model in transformers: bookkeeping, settings for heads of other tasks,
# defaults for generation (in Manyheads, these are options of commands), and obsolete flags.
_IGNORED = """
    add_bias_logits classif_dropout classifier_dropout extra_pos_embeddings force_bos_token_to_be_generated init_std
    problem_type save_step
"""


def _settings(rows: tuple[SettingRow, ...], ours: JsonObject, theirs: JsonObject) -> Settings:
    ignored = ANY_TEXT_MODEL | set(_IGNORED.split())
    return Settings(
        (*_COMMON, *rows),
        ours_only=_FIXED_HERE | ours,
        theirs_only=_FIXED_THERE | theirs,
        tolerated=_MAY_BE_MISSING,
        ignored=ignored,
    )


def _infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
    # Every Marian file contains this bias (`final_logits_bias`); in most files it is zero.
    bias = tensors.get("final_logits_bias")
    return {"output_bias": bias is not None and (bias.is_meta or bool(bias.count_nonzero()))}


def _forced_end(config: TransformerConfig) -> JsonObject:
    return {"forced_eos_token_id": config.end}


def generation(config: TransformerConfig) -> JsonObject:
    return {
        "decoder_start_token_id": config.start,
        "eos_token_id": config.end,
        "forced_eos_token_id": config.end,
        "pad_token_id": config.pad,
        # The embedding of the padding token is zero, so its logit is zero instead of very low.
        "bad_words_ids": [[config.pad]],
        "max_length": config.max_positions,
        "num_beams": 1,
        "do_sample": False,
    }


MARIAN = Family(
    "marian", TransformerConfig, Transformer,
    _settings(
        (
            Setting("target_vocab", "decoder_vocab_size", default=lambda theirs: theirs["vocab_size"]),
            Choice(
                "tie",
                ("share_encoder_decoder_embeddings", "tie_word_embeddings"),
                {"all": [(True, True)], "target": [(False, True)], "none": [(False, False)]},
                default=(True, True),
            ),
        ),
        {"norm": "post", "final_norm": False},
        {"normalize_before": False, "add_final_layer_norm": False},
    ),
    _weights, lambda config: "MarianMTModel", generation, _infer, _computed,
    stored=("final_logits_bias",),
    also_written=_forced_end,
)  # fmt: skip
PEGASUS = Family(
    "pegasus", TransformerConfig, Transformer,
    _settings(
        (Setting("target_vocab", "vocab_size"),),
        {"norm": "pre", "final_norm": True, "tie": "all"},
        # The library transformers ignores the first two keys, but the converter of CTranslate2 requires them.
        {"normalize_before": True, "add_final_layer_norm": True, "tie_word_embeddings": True},
    ),
    _weights, lambda config: "PegasusForConditionalGeneration", generation, _infer, _computed,
    stored=("final_logits_bias", "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
    also_written=_forced_end,
)  # fmt: skip
