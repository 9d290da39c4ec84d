"""Presets of models for texts, as the table of all presets, `manyheads.models.presets`, contains them."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]


def named(family: str, presets: dict[str, Settings]) -> dict[str, Settings]:
    """Return presets with the name of their family before their own names."""
    return {f"{family}/{name}": settings for name, settings in presets.items()}


# ---------------------------------------------------------------------------------------------- encoder-decoders


def _transformer(layers: int, width: int, heads: int, feed_forward: int, dropout: float, vocabulary: int) -> Settings:
    sizes = {"layers": layers, "heads": heads, "feed_forward": feed_forward}
    both = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    return {"width": width, "dropout": dropout, **both, **_vocabularies(vocabulary, vocabulary)}


def _vocabularies(source: int, target: int) -> Settings:
    return {"source_vocab": source, "target_vocab": target, "pad": 0, "end": 1, "start": 0}


_TRANSFORMER = {
    "tiny": _transformer(4, 128, 4, 256, 0.3, 10_000),  # model Transformer-Tiny for the Multi30k data (Wu et al. 2021)
    # It has as many active parameters as "tiny": each token uses two experts, which together have as many hidden units.
    "tiny-experts": {
        **_transformer(4, 128, 4, 256, 0.3, 10_000), "feed_forward": "experts", "experts": 8, "top_k": 2,
        "expert_size": 128,
    },
    "small": _transformer(6, 256, 4, 1024, 0.3, 10_000),  # model of the JoeyNMT toolkit for the IWSLT data
    # Translation model of the PyTorch tutorial: torch.nn.Transformer with its final norms, dropout everywhere, no tied
    # matrices.
    "blog": {
        **_transformer(3, 512, 8, 512, 0.1, 0), **_vocabularies(19_214, 10_837), "tie": "none", "final_norm": True,
        "output_bias": True, "positions": "interleaved", "attention_dropout": 0.1, "activation_dropout": 0.1,
    },
    "base": _transformer(6, 512, 8, 2048, 0.1, 37_000),  # sizes of the Transformer from Vaswani 2017, table 3
    "big": _transformer(6, 1024, 16, 4096, 0.3, 37_000),
}  # fmt: skip

# vocabulary size of the translation model to which the Universal Transformer paper compares its results
_UNIVERSAL_VOCABULARY = 37_000
_UNIVERSAL_BASE: Settings = {"width": 1024, "heads": 16, "feed_forward": 4096, "dropout": 0.3}
_UNIVERSAL_TINY = {**_UNIVERSAL_BASE, "width": 128, "heads": 4, "feed_forward": 512, "dropout": 0.1}
_UNIVERSAL: dict[str, Settings] = {
    # settings of universal_transformer_base in the published code of the Universal Transformer
    "base": {**_UNIVERSAL_BASE, "steps": 6},
    # with halting, the maximum number of steps is twice the number of steps of the model without halting
    "adaptive-base": {**_UNIVERSAL_BASE, "steps": 12, "halting": "basic"},
    "tiny": {**_UNIVERSAL_TINY, "steps": 4},  # a model small enough for a CPU
    "adaptive-tiny": {**_UNIVERSAL_TINY, "steps": 8, "halting": "basic"},
}

# Translators without self-attention, with about as many parameters as transformer/tiny, apart from seq2seq-rnn/tiny.
_RIVALS: dict[str, Settings] = {
    "seq2seq-rnn/tiny": {"layers": 2},
    "seq2seq-rnn/rival": {"layers": 2, "hidden": 208, "reverse_source": True, "dropout": 0.3},
    "rnn-attention/luong": {"layers": 2, "hidden": 224, "dropout": 0.3},
    "rnn-attention/bahdanau": {"cell": "gru", "scores": "additive", "order": "before", "hidden": 320, "dropout": 0.3},
    "gnmt/tiny": {"dropout": 0.3},
    # as in Shazeer 2017, appendix E: 3 and 2 layers, and 32 experts; each token uses 4
    "gnmt/experts": {
        "layers": 3, "decoder_layers": 2, "hidden": 144, "dropout": 0.3, "feed_forward": "experts", "experts": 32,
        "top_k": 4, "expert_size": 128,
    },
    "deep-att/rival": {"layers": 9, "decoder_layers": 7, "hidden": 56, "dropout": 0.3},
    "convs2s/rival": {"hidden": 128, "encoder_layers": 6, "decoder_layers": 5, "dropout": 0.3},
    "bytenet/rival": {"hidden": 112, "sets": 2, "dropout": 0.3},
}  # fmt: skip

# ------------------------------------------------------------------------------------------------ text models


def _bert(layers: int, width: int, vocabulary: int = 30_522) -> Settings:
    return {"vocab": vocabulary, "layers": layers, "width": width, "heads": width // 64, "feed_forward": 4 * width}


_BERT = {
    "tiny": _bert(2, 128),  # this BERT size and the next three are from Turc et al. 2019
    "mini": _bert(4, 256),
    "small": _bert(4, 512),
    "medium": _bert(8, 512),
    "base-uncased": _bert(12, 768),
    "base-cased": _bert(12, 768, 28_996),
    "large-uncased": _bert(24, 1024),
    # Shoeybi 2019, section 5.3, in the format of transformers
    "megatron-345m": {**_bert(24, 1024, 29_056), "norm": "pre", "embedding_norm": False},
}

# RoBERTa (Liu 2019, appendix A); its positions begin after the id of the padding token, which is 1
_ROBERTA_LIKE: Settings = {
    "pad": 1, "position_offset": 2, "segment_types": 1, "dropout_below_pooler": True, "norm_eps": 1e-5
}  # fmt: skip
_ROBERTA = {
    name: {**_bert(layers, width, 50_265), **_ROBERTA_LIKE}
    for name, layers, width in (("tiny", 2, 128), ("base", 12, 768), ("large", 24, 1024))
}


def _gpt2(layers: int, width: int, heads: int) -> Settings:
    return {"vocab": 50257, "end": 50256, "layers": layers, "width": width, "heads": heads}


def _nano(layers: int, width: int, heads: int, positions: int, rate: float) -> Settings:
    """Return nanoGPT's settings for a character model of the text tiny-shakespeare.

    The settings include nanoGPT's variant of GELU and its vocabulary size.
    """
    return {
        "vocab": 65, "layers": layers, "width": width, "heads": heads, "max_positions": positions, "bias": False,
        "activation": "gelu", "dropout": rate, "attention_dropout": rate, "embedding_dropout": rate,
    }  # fmt: skip


_GPT: dict[str, Settings] = {
    "gpt/117m": {"vocab": 40478, "norm": "post", "max_positions": 512},  # sizes of GPT from Radford 2018, section 4.1
    # sizes from Radford 2019, table 2; the table states wrong numbers of parameters for the two smaller models
    "gpt2/124m": _gpt2(12, 768, 12),
    "gpt2/355m": _gpt2(24, 1024, 16),
    "gpt2/774m": _gpt2(36, 1280, 20),
    "gpt2/1558m": _gpt2(48, 1600, 25),
    # Sizes from Brown 2020, table 2.1. The number of heads of XL (24 in the paper) and the width of 13B (5,140) follow
    # from the head width and from the parameter counts in table D.1. The paper does not state the window; this is that
    # of GPT-Neo.
    **{
        f"gpt3/{name}": {**_gpt2(*sizes), "max_positions": 2048, "window": 256}
        for name, *sizes in (
            ("125m", 12, 768, 12),
            ("350m", 24, 1024, 16),
            ("760m", 24, 1536, 16),
            ("1.3b", 24, 2048, 16),
            ("2.7b", 32, 2560, 32),
            ("6.7b", 32, 4096, 32),
            ("13b", 40, 5120, 40),
            ("175b", 96, 12_288, 96),
        )
    },
    # a model small enough that each of its heads can be studied (Olsson 2022)
    "gpt/attention-only": {
        **_nano(2, 128, 4, 128, 0.0),
        "vocab": 1024,
        "feed_forward": "none",
        "bias": True,
    },
    "gpt2/nano": _nano(4, 128, 4, 64, 0.0),  # a model small enough for a CPU
    "gpt2/baby": _nano(6, 384, 6, 256, 0.2),  # a model for training on a single GPU
}

TEXT_PRESETS: dict[str, Settings] = {
    **named("transformer", _TRANSFORMER),
    **named("universal", {n: {**s, **_vocabularies(*[_UNIVERSAL_VOCABULARY] * 2)} for n, s in _UNIVERSAL.items()}),
    **named("universal-sequence", {n: {**s, "vocab": _UNIVERSAL_VOCABULARY} for n, s in _UNIVERSAL.items()}),
    **{name: {"width": 128, **settings, **_vocabularies(10_000, 10_000)} for name, settings in _RIVALS.items()},
    **named("bert", _BERT),
    **named("roberta", _ROBERTA),
    "elmo/original": {},
    # a model small enough for a CPU
    "elmo/small": {"filters": (16, 16, 32, 32, 32), "highways": 1, "width": 64, "hidden": 256, "max_characters": 20},
    "text-classifier/textbook": {},
    "text-classifier/corrected": {"positions": "learned", "masked": True},
    **named("sequence-baseline", {kind: {"kind": kind} for kind in ("rnn", "lstm", "gru", "bilstm", "conv1d")}),
    "sequence-baseline/conv2d": {"kind": "conv2d", "kernel": 3, "pooling": 2},
    "tfidf": {},
    **_GPT,
}
