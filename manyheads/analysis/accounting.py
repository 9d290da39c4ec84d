"""What a model costs: parameters, operations and memory, part by part, read off its modules.

Operations are counted as in the literature on scaling: a multiply-add is 2 FLOPs, and only matrix products count
(projections, feed-forward, scores, mixing, output). Norms, activations, softmax and embedding look-ups are left out,
and masked scores count like others, as dense kernels compute them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.models.transformer import PRESETS, Transformer, TransformerConfig, preset

# (source, target) vocabularies that the presets were published with
VOCABULARIES = {
    "tiny": (10_000, 10_000),
    "small": (10_000, 10_000),
    "blog": (19_214, 10_837),
    "base": (37_000, 37_000),
    "big": (37_000, 37_000),
}
EMBEDDINGS = ("source_embedding", "target_embedding", "positions", "output", "output_bias")
LENGTH = 32  # tokens of the sentence pair that FLOPs are stated for: about WMT14's mean
TRAINING_PASSES = 3  # the backward pass costs two forward ones
FLOAT32 = 4  # bytes


def preset_model(name: str) -> Transformer:
    """A preset such as `transformer/base` with its published vocabularies, without memory behind its parameters."""
    family, _, size = name.partition("/")
    if family != "transformer" or size not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: valid are {', '.join(preset_names())}")
    source, target = VOCABULARIES[size]
    return meta_model(preset(size, source_vocab=source, target_vocab=target, pad=0, end=1, start=0))


def preset_names() -> list[str]:
    return [f"transformer/{size}" for size in PRESETS]


def meta_model(config: TransformerConfig) -> Transformer:
    """The model of a configuration on the meta device: shapes without numbers, at once for any size."""
    with torch.device("meta"):
        return Transformer(config)


def summary(model: Transformer, source: int = LENGTH, target: int = LENGTH) -> dict[str, Any]:
    """Parameters, FLOPs of one sentence pair and memory in bytes, as plain data."""
    parts = parameters(model)
    total = sum(parts.values())
    return {
        "config": asdict(model.config),
        "parameters": {
            "total": total,
            "non_embedding": total - sum(parts.get(name, 0) for name in EMBEDDINGS),
            "parts": parts,
        },
        "flops": flops(model, source, target),
        "memory": memory(model),
    }


def parameters(model: nn.Module) -> dict[str, int]:
    """Parameters by part, the layers of a stack taken together. A tied matrix counts once, under its first name."""
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[_part(name)] += parameter.numel()
    return dict(parts)


def _part(name: str) -> str:
    """`decoder.blocks.3.cross_norm.weight` -> `decoder.norms`."""
    top, *rest = name.split(".")
    if top not in ("encoder", "decoder"):
        return top
    part = rest[2] if rest[0] == "blocks" else rest[0]
    return f"{top}.norms" if part.endswith("norm") else f"{top}.{part}"


def flops(model: Transformer, source: int = LENGTH, target: int = LENGTH) -> dict[str, Any]:
    """FLOPs of one forward pass over a pair of `source` and `target` tokens, by part, and of training on it."""
    parts = {f"encoder.{part}": n for part, n in _stack_flops(model.encoder, source, source).items()}
    parts |= {f"decoder.{part}": n for part, n in _stack_flops(model.decoder, target, source).items()}
    parts["output"] = _product(target, *model.output_weight.shape)
    forward = sum(parts.values())
    return {
        "convention": "2 per multiply-add, matrix products only",
        "source_tokens": source,
        "target_tokens": target,
        "parts": parts,
        "forward": forward,
        "forward_per_target_token": forward / target,
        "training": TRAINING_PASSES * forward,
    }


def _stack_flops(stack: Stack, tokens: int, memory: int) -> Counter[str]:
    parts: Counter[str] = Counter()
    for block in stack.blocks:
        assert isinstance(block, Block)
        parts["attention"] += _attention_flops(block.attention, tokens, tokens)
        if block.cross is not None:
            parts["cross"] += _attention_flops(block.cross, tokens, memory)
        parts["feed_forward"] += sum(
            _product(tokens, *layer.weight.shape) for layer in (block.feed_forward.expand, block.feed_forward.contract)
        )
    return parts


def _attention_flops(attention: Attention, queries: int, keys: int) -> int:
    projections = sum(_product(queries, *layer.weight.shape) for layer in (attention.query, attention.output))
    projections += sum(_product(keys, *layer.weight.shape) for layer in (attention.key, attention.value))
    inner = attention.heads * attention.head_width
    return projections + 2 * _product(queries, keys, inner)  # scores, and mixing


def _product(rows: int, inner: int, columns: int) -> int:
    """Of a matrix product (rows, inner) @ (inner, columns)."""
    return 2 * rows * inner * columns


def memory(model: Transformer) -> dict[str, int]:
    """Bytes in float32: of the weights, of training them with Adam (weights, gradients, two moments; activations come
    on top and grow with the batch), and of what decoding keeps for each token and sentence."""
    weights = FLOAT32 * sum(parameters(model).values())
    layers = [block for block in model.decoder.blocks if isinstance(block, Block)]
    cached = sum(2 * block.attention.heads * block.attention.head_width for block in layers)  # a key and a value
    crossed = sum(2 * block.cross.heads * block.cross.head_width for block in layers if block.cross is not None)
    return {
        "weights": weights,
        "optimiser": 2 * weights,
        "training": 4 * weights,
        "cache_per_target_token": FLOAT32 * cached,
        "cache_per_source_token": FLOAT32 * crossed,
    }
