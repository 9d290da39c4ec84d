"""Base classes of the models: the attributes and methods that training, decoding and analysis use of any model.

A model derives from one of them and names the class of its configuration, as in `class Bert(Encodes[BertConfig])`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Generic, Protocol, TypedDict, TypeVar, Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.block import Stack
from manyheads.core.config import Config
from manyheads.core.tap import Grid, Tap

C_co = TypeVar("C_co", bound=Config, covariant=True)


class Cache(Protocol):
    """Interface of a model's cache, such as `manyheads.core.cache.KVCache`.

    A cache has one state for each row of a batch.
    """

    lengths: Tensor  # number of cached positions of each row, (B,)

    def select(self, rows: Tensor) -> None:
        """Keep only the rows with the given indices (N,), in that order; an index may repeat."""


S = TypeVar("S", bound=Cache)


class Properties(TypedDict, total=False):
    """Properties of a model that follow from its configuration; `Model` describes them. Each is optional."""

    pad: int | None
    max_positions: int | None
    head: str | None
    labels: tuple[str, ...]


class Model(nn.Module, Generic[C_co]):
    """Module with a configuration. `type(model)(model.config)` builds a module of the same shape.

    pad            id of the padding token; None if the model has no such token, so that any token may be used
    max_positions  maximum number of tokens of a text; None if there is no limit
    head_name      name of the head, such as "sequence"; None for a class of models with only one head
    labels         labels that the model predicts
    reads_pairs    True if the model distinguishes the texts of a pair
    undecayed      names of the matrices to which weight decay does not apply; it never applies to vectors
    origin         model from which a fine-tuning run started, as the user named it
    new            names of the tensors that `origin` does not have, which were initialized at random
    trained_heads  names of the parameters that are trained in addition to low-rank layers
    """

    reads_pairs: ClassVar[bool] = False
    undecayed: tuple[str, ...] = ()
    origin: str | None = None
    new: tuple[str, ...] = ()
    trained_heads: tuple[str, ...] = ()

    def __init__(self, config: C_co, **properties: Unpack[Properties]) -> None:
        super().__init__()
        self.config = config
        self.pad, self.max_positions = properties.get("pad"), properties.get("max_positions")
        self.head_name, self.labels = properties.get("head"), properties.get("labels", ())


class Encodes(Model[C_co]):
    """Model with a stack of layers whose states, one for each token or image patch, describe the input.

    encode  method that returns the states of the last layer after the final norm, without the head; None if the model
            has no such method
    """

    encode: Callable[..., Tensor] | None = None

    @property
    def stack(self) -> Stack:
        """Return the stack of layers."""
        raise NotImplementedError

    def states(self, *inputs: Tensor | None, layer: int | None = None) -> Tensor:
        """Return the output of a layer, (B, T, D), for the inputs of `forward`.

        layer  index of the layer. By default, the last layer, with the final norm
        """
        if layer is None and self.encode is not None:
            return self.encode(*inputs)
        found: list[Tensor] = []
        module = self.stack if layer is None else self.stack.blocks[layer]
        handle = module.register_forward_hook(lambda module, given, output: found.append(output))
        try:
            self(*inputs)
        finally:
            handle.remove()
        return found[0]


class HasOutputWeights(Protocol):
    """Model with the matrix (V, D) and the bias (V) of an output projection, such as `Generates`."""

    output_bias: nn.Parameter | None

    @property
    def output_weight(self) -> Tensor: ...


class OutputProjection(nn.Module):
    """Output projection with the matrix and the bias of a model. It has no parameters.

    It is a module so that a copy of the model can have another implementation of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tap = Tap("logits")

    def forward(self, hidden: Tensor, model: HasOutputWeights) -> Tensor:
        """Return the logits (..., V) of hidden states (..., D)."""
        return self.tap.on("logits", F.linear(hidden, model.output_weight, model.output_bias))


class Generates(Model[C_co], Generic[C_co, S]):
    """Model that continues sequences of tokens, with a cache of type S.

    hidden       method that returns the states of the last layer, (B, T, D), for the inputs of `forward`
    start        method that returns a cache for `step`
    output_bias  bias of the output projection; None if it has no bias
    """

    hidden: Callable[..., Tensor]
    start: Callable[..., S]
    output_bias: nn.Parameter | None

    def __init__(self, config: C_co, **properties: Unpack[Properties]) -> None:
        super().__init__(config, **properties)
        self.projection = OutputProjection()

    @property
    def output_weight(self) -> Tensor:
        """Return the matrix of the output projection, (V, D), which may be shared with the embeddings."""
        raise NotImplementedError

    def step(self, tokens: Tensor, cache: S) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T). The cache contains the previous tokens."""
        raise NotImplementedError

    def project(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., V) of hidden states (..., D)."""
        logits: Tensor = self.projection(hidden, self)
        return logits


class ReadsImages(Model[C_co]):
    """Model that reads images (B, C, Y, X).

    channels    number of color channels
    image_size  height and width of the training images in pixels
    """

    def __init__(self, config: C_co, *, channels: int, image_size: int, labels: tuple[str, ...]) -> None:
        super().__init__(config, head=None if labels else "none", labels=labels)
        self.channels, self.image_size = channels, image_size

    @property
    def grids(self) -> tuple[Grid, Grid] | None:
        """Image grids of the queries and keys, if all attention layers have the same grids; otherwise None."""
        return None

    def features(self, images: Tensor) -> Tensor:
        """Return one vector for each image, (B, D), which is the input of the classification head."""
        raise NotImplementedError
