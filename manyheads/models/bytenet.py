"""Convolutional translator of "Neural Machine Translation in Linear Time", ByteNet (Kalchbrenner 2016).

    source  -> embed -> N sets of dilated convolutions                                       -> memory
    target  -> embed + memory at the same position -> N sets of dilated causal convolutions  -> logits

ByteNet has no attention. The decoder is stacked on the encoder: target position t reads the memory at source position
t, and the convolutions below and above bring the other source words there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.cache import StateCache
from manyheads.core.config import Layers, Length, OddSize, Range, Size
from manyheads.core.dropout import dropout
from manyheads.core.layers import concatenate_windows
from manyheads.core.masks import padding
from manyheads.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

DILATIONS = (1, 2, 4, 8, 16)  # dilations of the convolutions in the five blocks of a set (section 3.5)


@dataclass(frozen=True)
class ByteNetConfig(EncoderDecoderConfig):
    """Sizes of the model.

    sets            number of sets of five blocks of the encoder, and of the decoder
    hidden          number of channels inside a block; in the paper half the width
    encoder_kernel  number of positions that a convolution of the encoder reads, an odd number
    decoder_kernel  number of positions that a convolution of the decoder reads: its own and earlier ones
    unfolding       length of the memory, as a multiple of the source length (section 3.2)
    max_positions   maximum number of tokens of a text; the model itself has no such limit
    dropout         dropout of the embeddings, of the output of every block and before the output projection
    """

    width: Size = 1600
    max_positions: Length = 10_000
    sets: Layers = 6
    hidden: Size = 800
    encoder_kernel: OddSize = 3
    decoder_kernel: Size = 3
    unfolding: Annotated[float, Range(1, 16)] = 1.2


class Block(nn.Module):
    """Residual block with a dilated convolution (figure 3, left): x (B, T, D) -> (B, T, D)."""

    def __init__(self, c: ByteNetConfig, kernel: int, dilation: int) -> None:
        super().__init__()
        self.kernel, self.dilation, self.rate = kernel, dilation, c.dropout
        self.narrow_norm, self.narrow = nn.LayerNorm(c.width), nn.Linear(c.width, c.hidden)
        self.norm, self.convolution = nn.LayerNorm(c.hidden), nn.Linear(kernel * c.hidden, c.hidden)
        self.widen_norm, self.widen = nn.LayerNorm(c.hidden), nn.Linear(c.hidden, c.width)

    @property
    def reach(self) -> int:
        """Return the distance between the first and the last position that the convolution reads."""
        return (self.kernel - 1) * self.dilation

    def inputs(self, x: Tensor) -> Tensor:
        """Return the inputs of the convolution, (B, T, H)."""
        narrow = self.narrow(F.relu(self.narrow_norm(x)))
        return F.relu(self.norm(narrow))

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Return the output of the block.

        inputs  inputs of the convolution at the positions of x, before and after them, (B, T + reach, H)
        """
        mixed = self.convolution(concatenate_windows(inputs, self.kernel, self.dilation))
        wide = self.widen(F.relu(self.widen_norm(mixed)))
        return x + dropout(wide, self.rate, self.training)


class EncoderBlock(Block):
    """Block whose convolution reads positions on both sides."""

    def forward(self, x: Tensor, behind: Tensor | None) -> Tensor:
        """Return the output. The convolution reads zeros at the positions of `behind`, (B, T, 1)."""
        inputs = self.inputs(x)
        inputs = inputs if behind is None else inputs.masked_fill(behind, 0.0)
        return self.outputs(x, F.pad(inputs, (0, 0, self.reach // 2, self.reach // 2)))


class DecoderBlock(Block):
    """Block whose convolution reads its own position and earlier ones."""

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the last inputs of the convolution.

        past  inputs of the convolution at the positions before x, (B, reach, H)
        """
        inputs = torch.cat([past, self.inputs(x)], 1)
        return self.outputs(x, inputs), inputs[:, x.shape[1] :]


class ByteNet(EncoderDecoder[ByteNetConfig, StateCache]):
    """Encoder-decoder of dilated convolutions. Source and target tokens in, logits over the target vocabulary out."""

    def __init__(self, config: ByteNetConfig) -> None:
        super().__init__(config)
        c = config
        dilations = DILATIONS * c.sets
        self.encoder = nn.ModuleList(EncoderBlock(c, c.encoder_kernel, dilation) for dilation in dilations)
        self.decoder = nn.ModuleList(DecoderBlock(c, c.decoder_kernel, dilation) for dilation in dilations)
        self.norm, self.combine = nn.LayerNorm(c.width), nn.Linear(c.width, c.width)
        self.add_output()

    def hidden(self, source: Tensor, source_lengths: Tensor | None, target: Tensor) -> Tensor:
        """Return the outputs of the decoder, (B, Tt, D)."""
        memory = self.encode(source, source_lengths)
        # Give the memory the length of the target. With a negative number, F.pad removes positions.
        below = F.pad(memory, (0, 0, 0, target.shape[1] - memory.shape[1]))
        return self._write(target, below, self._first_inputs(memory))[0]

    def encode(self, source: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the memory of source (B, Ts): (B, Tm, D), where Tm is the unfolded length of Ts.

        Embeddings of padding are zeros. The memory of a row ends at the unfolded length of this row (dynamic unfolding,
        section 3.2); after it, the memory is zero.
        """
        unfolding, words = self.config.unfolding, source.shape[1]
        length = math.ceil(unfolding * words)
        x, behind = self.source_embedding(source), None
        if lengths is not None:
            x = x.masked_fill(padding(lengths, words, x.device), 0.0)
            behind = padding((lengths.cpu().double() * unfolding).ceil(), length, x.device)
        x = dropout(F.pad(x, (0, 0, 0, length - words)), self.config.dropout, self.training)
        for block in self.encoder:
            x = block(x, behind)
        return x if behind is None else x.masked_fill(behind, 0.0)

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> StateCache:
        """Encode the source (B, Ts) and return a cache for `step`.

        `capacity` has no effect, because the cache has a constant size: the last inputs of each convolution.
        """
        memory = self.encode(source, source_lengths)
        return StateCache(self._first_inputs(memory), [memory])

    def step(self, tokens: Tensor, cache: StateCache) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T)."""
        (memory,) = cache.memory
        assert memory is not None
        memory = F.pad(memory, (0, 0, 0, 1))  # Add zeros, which are read by all target positions after the memory.
        at = cache.lengths[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        below = memory[torch.arange(len(tokens), device=tokens.device)[:, None], at.clamp(max=memory.shape[1] - 1)]
        hidden, cache.states = self._write(tokens, below, cache.states)
        cache.lengths = cache.lengths + tokens.shape[1]
        return self.project(hidden)

    def _first_inputs(self, memory: Tensor) -> list[Tensor]:
        reaches = [block.reach for block in self.decoder if isinstance(block, DecoderBlock)]
        return [memory.new_zeros(len(memory), reach, self.config.hidden) for reach in reaches]

    def _write(self, target: Tensor, below: Tensor, past: Iterable[Tensor]) -> tuple[Tensor, list[Tensor]]:
        rate = self.config.dropout
        x, last = dropout(self.target_embedding(target) + below, rate, self.training), []
        for block, inputs in zip(self.decoder, past, strict=True):
            x, inputs = block(x, inputs)
            last.append(inputs)
        outputs = self.combine(F.relu(self.norm(x)))
        return dropout(outputs, rate, self.training), last
