"""Models as graphs of tensor operations, for ONNX and `torch.export`.

A graph is a module whose inputs and outputs are named tensors. The names are those of Hugging Face's ONNX directories,
so that the same tools can open the exported models. `graphs` returns one graph for an encoder, an image model or a GPT.
For a translator it returns three: its encoder, its decoder without a key-value cache, and its decoder with one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from manyheads.core.block import Block, Stack
from manyheads.core.cache import KVCache
from manyheads.core.config import Config
from manyheads.core.experts import expert_layers
from manyheads.core.interface import Model
from manyheads.core.masks import Mask
from manyheads.errors import UserError
from manyheads.models.bert import Bert
from manyheads.models.conv_attention import ConvAttention
from manyheads.models.gpt import GPT
from manyheads.models.resnet import ConvNet, ConvNetConfig
from manyheads.models.text_classifier import TextClassifier
from manyheads.models.transformer import Transformer
from manyheads.models.vit import ViT

T = TypeVar("T")
Weights = Literal["float32", "float16", "int8"]  # number formats of the matrices in exported files

CHOICES = 3  # number of candidates of the head "choice" in example inputs
# names of the outputs of BERT's heads; other heads have logits
HEADS = {
    "none": ("last_hidden_state",), "pooler": ("last_hidden_state", "pooler_output"),
    "pretraining": ("prediction_logits", "seq_relationship_logits"), "question": ("start_logits", "end_logits"),
}  # fmt: skip


@dataclass(frozen=True)
class Input:
    """Input tensor of a graph.

    name   name of the tensor
    shape  for each dimension, its size (an int), or the name of a size that may vary
    high   maximum of valid integers, which begin at 1, such as token ids. None for real numbers and attention masks
    """

    name: str
    shape: tuple[int | str, ...]
    high: int | None = None

    def example(self, sizes: dict[str, int]) -> Tensor:
        """Return random values of the given sizes."""
        shape = [sizes[size] if isinstance(size, str) else size for size in self.shape]
        if self.name.endswith("attention_mask"):
            mask = torch.ones(shape, dtype=torch.long)
            mask[..., 1:-1:2] = 0  # Mask positions inside of texts, to detect a graph that uses only the text length.
            return mask
        if self.name == "position_ids":
            return (sizes["past"] + torch.arange(shape[1])).expand(shape).clone()
        return torch.randn(shape) if self.high is None else torch.randint(min(1, self.high - 1), self.high, shape)

    @property
    def varying(self) -> dict[int, str]:
        """Return the indices of the dimensions whose size may vary, with the names of these sizes."""
        return {axis: size for axis, size in enumerate(self.shape) if isinstance(size, str)}


class Graph(nn.Module):
    """Module that computes named output tensors from named input tensors.

    compute  function of the input tensors that returns the output tensors
    inputs   descriptions of the input tensors, in the order of the arguments of `compute`
    outputs  names of the output tensors
    """

    def __init__(
        self, model: nn.Module, compute: Callable[..., Sequence[Tensor]], inputs: list[Input], outputs: Sequence[str]
    ) -> None:
        super().__init__()
        self.model, self.compute, self.inputs, self.outputs = model, compute, inputs, tuple(outputs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.compute(*tensors))


class GraphCache(KVCache):
    """Key-value cache for a graph: past keys and values are its inputs, all keys and values are its outputs.

    The method `append` concatenates the past keys and values with the new ones, and adds the result to `present`.

    past   past keys and values of each layer, (B, H, T, Dh)
    cross  keys and values of the encoder output for each layer, (B, H, T, Dh)
    """

    def __init__(self, past: Sequence[Tensor], cross: Sequence[Tensor] = (), cross_mask: Mask | None = None) -> None:
        self.past, self.present = past, list[Tensor]()
        self._cross_tensors, self._source_mask = cross, cross_mask

    @property
    def offset(self) -> int:
        return self.past[0].shape[2]

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        key = torch.cat([self.past[2 * layer], key], 2)
        value = torch.cat([self.past[2 * layer + 1], value], 2)
        self.present += [key, value]
        return key, value

    def mask(self, queries: int) -> Mask:
        at = self.offset + torch.arange(queries)
        return Mask(dense=torch.arange(self.offset + queries) <= at[:, None])

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._cross_tensors[2 * layer], self._cross_tensors[2 * layer + 1]

    def cross_mask(self) -> Mask:
        assert self._source_mask is not None
        return self._source_mask

    def advance(self, count: int | Tensor) -> None:
        """Do nothing. The caller passes the outputs `present` as the inputs `past` of the next step."""


def graphs(model: Model[Config]) -> dict[str, Graph]:
    """Return the graphs of a model by the names of their files.

    Raises UserError for a model that has none, such as a recurrent network or a model with dynamic halting.
    """
    if expert_layers(model):
        raise UserError("a model with experts cannot be exported as a graph: their work depends on the tokens")
    if type(model) is Transformer:
        return _translator(model)
    if isinstance(model, GPT) and model.config.window is not None:
        raise UserError(f"window is {model.config.window}: a graph has one mask for all blocks; convert to safetensors")
    if isinstance(model, GPT) and model.classifier is None:
        return {"model": _gpt(model)}
    if isinstance(model, Bert | TextClassifier | GPT):
        return {"model": _encoder(model)}
    if isinstance(model, ViT | ConvNet | ConvAttention):
        return {"model": _image_model(model)}
    raise UserError(
        f"a {type(model).__name__} cannot be exported as a graph: expected a BERT, GPT, Transformer, text classifier of"
        " Transformer blocks, or an image model"
    )


def _encoder(model: Bert | TextClassifier | GPT) -> Graph:
    head = model.head_name or "sequence"
    # In a model without segment embeddings, the input of segment ids has no effect.
    types = (model.config.segment_types if isinstance(model, Bert) else None) or 1
    shape = ("batch", CHOICES, "tokens") if head == "choice" else ("batch", "tokens")
    ids = [Input("input_ids", shape, model.config.vocab), Input("attention_mask", shape)]
    ids += [Input("token_type_ids", shape, types)] if types > 1 else []

    def compute(tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> Sequence[Tensor]:
        if isinstance(model, Bert):
            output = _bert(model, tokens, attention_mask, segments)
        elif isinstance(model, GPT):
            hidden = model.decoder(model._embed(tokens), mask=_by_position(attention_mask, causal=True))
            output = model.classify(hidden, (attention_mask * (1 + torch.arange(tokens.shape[1]))).amax(1))
        else:
            # The text classifier takes lengths instead of a mask, so move the real tokens to the front.
            order = torch.arange(tokens.shape[1]) + (1 - attention_mask) * tokens.shape[1]
            output = model(tokens.gather(1, order.argsort(1)), attention_mask.sum(1))
        if head == "question":
            return output.unbind(-1)
        if head == "pooler":
            assert isinstance(model, Bert)
            return output, model.pool(output)
        return output if isinstance(output, tuple) else (output,)

    return Graph(model, compute, ids, HEADS.get(head, ("logits",)))


def _bert(model: Bert, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None) -> Any:
    """Return the output of a BERT for an attention mask that may be zero at any position."""
    shape = tokens.shape[:-1]
    tokens, mask = tokens.flatten(0, -2), attention_mask.flatten(0, -2)
    real = (tokens != model.config.pad).long()
    # RoBERTa counts positions without padding. The first positions of its table belong to the padding.
    at = model.config.pad + real.cumsum(1) * real if model.config.position_offset else None
    embedded = model.embed(tokens, None if segments is None else segments.flatten(0, -2), at)
    return model.apply_head(model.encoder(embedded, mask=_by_position(mask)), shape)


def _by_position(attention_mask: Tensor, *, causal: bool = False) -> Mask:
    return Mask(causal=causal, dense=attention_mask[:, None, None, :].bool())


def _image_model(model: ViT | ConvNet[ConvNetConfig] | ConvAttention) -> Graph:
    images = Input("pixel_values", ("batch", model.channels, model.image_size, model.image_size))
    return Graph(model, lambda pixels: (model(pixels),), [images], ["logits" if model.labels else "pooler_output"])


def _gpt(model: GPT) -> Graph:
    past, present = _cache_of(model.decoder, "past"), _names("present", len(model.decoder.blocks))
    tokens = Input("input_ids", ("batch", "tokens"), model.config.vocab)
    mask = Input("attention_mask", ("batch", "past + tokens"))

    def compute(tokens: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor) -> Sequence[Tensor]:
        cache = GraphCache(past)
        allowed = cache.mask(tokens.shape[1]).dense
        assert allowed is not None
        # Index the mask: without it, `torch.export` would derive a minimum length from the sum of two lengths.
        real = attention_mask[:, torch.arange(allowed.shape[-1])]
        mask = Mask(dense=allowed & real[:, None, None, :].bool())
        x = model.embedding(tokens) + model.positions.table[position_ids]
        return model.project(model.decoder(x, mask=mask, cache=cache)), *cache.present

    positions = Input("position_ids", ("batch", "tokens"), 2)
    return Graph(model, compute, [tokens, mask, positions, *past], ["logits", *present])


def _translator(model: Transformer) -> dict[str, Graph]:
    blocks = [block for block in model.decoder.blocks if isinstance(block, Block)]
    c, crosses = model.config, [block.cross for block in blocks if block.cross is not None]
    layers, of_source = len(crosses), ("batch", "source")
    source, mask = Input("input_ids", of_source, c.source_vocab), Input("attention_mask", of_source)
    target = Input("input_ids", ("batch", "tokens"), c.target_vocab)
    source_mask = Input("encoder_attention_mask", of_source)
    memory = Input("encoder_hidden_states", (*of_source, c.width))
    past, cross = _cache_of(model.decoder, "past", ".decoder"), _cache_of(model.decoder, "source", ".encoder")
    present, present_cross = (_names("present", layers, side) for side in (".decoder", ".encoder"))

    def encode(tokens: Tensor, attention_mask: Tensor) -> Sequence[Tensor]:
        return (model.encode(tokens, _by_position(attention_mask)),)

    def begin(attention_mask: Tensor, tokens: Tensor, memory: Tensor) -> Sequence[Tensor]:
        cross = [entry for attention in crosses for entry in attention.project_keys_values(memory)]
        empty = [entry[:, :, :0] for entry in cross]
        logits, *present = step(attention_mask, tokens, *_by_layer(empty, cross))
        return logits, *_by_layer(present, cross)

    def step(attention_mask: Tensor, tokens: Tensor, *entries: Tensor) -> Sequence[Tensor]:
        past, cross = ([entry for i, entry in enumerate(entries) if i % 4 // 2 == side] for side in (0, 1))
        cache = GraphCache(past, cross, _by_position(attention_mask))
        return model.step(tokens, cache), *cache.present

    first, both = ["logits", *_by_layer(present, present_cross)], _by_layer(past, cross)
    return {
        "encoder_model": Graph(model, encode, [source, mask], ["last_hidden_state"]),
        "decoder_model": Graph(model, begin, [source_mask, target, memory], first),
        "decoder_with_past_model": Graph(model, step, [source_mask, target, *both], ["logits", *present]),
    }


def _by_layer(own: Sequence[T], cross: Sequence[T]) -> list[T]:
    """Merge the keys and values of self-attention and cross-attention in the order of Hugging Face, layer by layer."""
    return [entry for at in range(0, len(own), 2) for entry in (*own[at : at + 2], *cross[at : at + 2])]


def _names(kind: str, layers: int, side: str = "") -> list[str]:
    return [f"{kind}.{layer}{side}.{entry}" for layer in range(layers) for entry in ("key", "value")]


def _cache_of(stack: Stack, length: str, side: str = "") -> list[Input]:
    """Return the graph inputs for the keys and values of each layer of a decoder.

    length  name of the number of their positions
    side    part of the names of the inputs, to distinguish self-attention from cross-attention
    """
    layers, heads, _ = stack.cache_sizes
    block = stack.blocks[0]
    assert isinstance(block, Block)
    attention = block.attention
    widths = [layer.out_features // heads for layer in (attention.key, attention.value)] * layers
    names = _names("past_key_values", layers, side)
    return [Input(name, ("batch", heads, length, width)) for name, width in zip(names, widths, strict=True)]
