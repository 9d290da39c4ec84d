"""Convolutional translator of "Convolutional Sequence to Sequence Learning", ConvS2S (Gehring 2017).

    source  -> embed + positions -> N x [convolution, GLU]                                  -> memory
    target  -> embed + positions -> N x [causal convolution, GLU, attention to the memory]  -> logits

A convolution of k positions replaces self-attention. Each decoder layer has one attention head. The sum of two vectors
is multiplied by sqrt(0.5), which keeps the variance (section 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import attend
from manyheads.core.cache import StateCache
from manyheads.core.config import Layers, OddSize, Size
from manyheads.core.dropout import dropout
from manyheads.core.layers import concatenate_windows
from manyheads.core.masks import Mask, padding
from manyheads.core.positions import PositionTable
from manyheads.core.tap import Tap
from manyheads.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from manyheads.models.rnn_attention import Source

EMBEDDING_STD = 0.1  # section 3.5


@dataclass(frozen=True)
class ConvS2SConfig(EncoderDecoderConfig):
    """Sizes of the model.

    encoder_layers  number of convolutions of the encoder
    decoder_layers  number of convolutions of the decoder, and of attention layers
    encoder_kernel  number of positions that a convolution of the encoder reads, an odd number
    decoder_kernel  number of positions that a convolution of the decoder reads: its own and earlier ones
    hidden          number of channels of a convolution; its gates have the same number
    dropout         dropout of the embeddings, of the input of every convolution and before the output projection
    """

    encoder_layers: Layers = 15
    decoder_layers: Layers = 15
    encoder_kernel: OddSize = 3
    decoder_kernel: Size = 3
    hidden: Size = 512


class NormalizedLinear(nn.Module):
    """Linear layer whose weights are normalized, W = g V / |V| (Salimans & Kingma 2016), with a g for each output.

    gain  variance of an output for inputs of unit variance (section 3.5)
    """

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(outputs, inputs).normal_(std=math.sqrt(gain / inputs)))
        self.length = nn.Parameter(self.direction.detach().norm(dim=1))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    @property
    def weight(self) -> Tensor:
        """Return the normalized weights, (outputs, inputs)."""
        return self.direction * (self.length / self.direction.norm(dim=1))[:, None]


class GatedConvolution(nn.Module):
    """Convolution with gated linear units: x (B, T + k - 1, H) -> (B, T, H). The caller pads x."""

    def __init__(self, hidden: int, kernel: int, rate: float) -> None:
        super().__init__()
        self.kernel, self.rate = kernel, rate
        # The variance of a gated output is a quarter of the variance of its input; dropout increases the variance.
        self.linear = NormalizedLinear(kernel * hidden, 2 * hidden, 4 * (1 - rate))

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated outputs for x (B, T + k - 1, H), without the residual connection."""
        return F.glu(self.linear(concatenate_windows(x, self.kernel)), dim=-1)


class ConvAttention(nn.Module):
    """Attention of a decoder layer: its states (B, Tq, H) and the embedded target (B, Tq, D) -> contexts (B, Tq, H)."""

    heads = 1

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.query, self.output = NormalizedLinear(hidden, width), NormalizedLinear(width, hidden)
        self.tap = Tap()

    def forward(self, states: Tensor, embedded: Tensor, source: Source) -> Tensor:
        query = _sum(self.query(states), embedded)
        mask = Mask(key_lengths=source.lengths)
        context = attend(
            query[:, None], source.keys[:, None], source.memory[:, None], mask=mask, scale=1.0, tap=self.tap
        )[:, 0]
        # A mean of m independent vectors has 1 / m of their variance (section 3.4).
        words = source.keys.shape[1] if source.lengths is None else source.lengths.to(context)[:, None, None]
        output: Tensor = self.output(context * words**0.5)
        return output


class Encoder(nn.Module):
    """Encoder: embedded words (B, T, D) -> outputs (B, T, D)."""

    def __init__(self, c: ConvS2SConfig) -> None:
        super().__init__()
        self.enter = NormalizedLinear(c.width, c.hidden, 1 - c.dropout)
        self.layers = nn.ModuleList(
            GatedConvolution(c.hidden, c.encoder_kernel, c.dropout) for _ in range(c.encoder_layers)
        )
        self.leave = NormalizedLinear(c.hidden, c.width)

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the outputs (B, T, D). Convolutions read zeros at padding, so it does not affect real positions."""
        behind = None if lengths is None else padding(lengths, x.shape[1], x.device)
        x = self.enter(x)
        for layer in self.layers:
            assert isinstance(layer, GatedConvolution)
            read = dropout(x, layer.rate, self.training)
            read = read if behind is None else read.masked_fill(behind, 0.0)
            around = layer.kernel // 2
            x = _sum(layer(F.pad(read, (0, 0, around, around))), x)
        outputs: Tensor = self.leave(x)
        return outputs


class DecoderLayer(nn.Module):
    """Causal gated convolution, then attention."""

    def __init__(self, c: ConvS2SConfig) -> None:
        super().__init__()
        self.convolution = GatedConvolution(c.hidden, c.decoder_kernel, c.dropout)
        self.cross = ConvAttention(c.hidden, c.width)

    def forward(self, x: Tensor, past: Tensor, embedded: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Return the states (B, T, H) and the last k - 1 inputs of the convolution.

        past  inputs of the convolution at the k - 1 positions before x, (B, k - 1, H)
        """
        read = torch.cat([past, dropout(x, self.convolution.rate, self.training)], 1)
        states = self.convolution(read)
        states = _sum(self.cross(states, embedded, source), states)
        return _sum(states, x), read[:, x.shape[1] :]


class Decoder(nn.Module):
    """Decoder: embedded words (B, T, D) -> outputs (B, T, D)."""

    def __init__(self, c: ConvS2SConfig) -> None:
        super().__init__()
        self.enter = NormalizedLinear(c.width, c.hidden, 1 - c.dropout)
        self.layers = nn.ModuleList(DecoderLayer(c) for _ in range(c.decoder_layers))
        self.leave = NormalizedLinear(c.hidden, c.width)

    def forward(self, embedded: Tensor, past: Iterable[Tensor], source: Source) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs, and the last inputs of every convolution."""
        x, last = self.enter(embedded), []
        for layer, inputs in zip(self.layers, past, strict=True):
            x, inputs = layer(x, inputs, embedded, source)
            last.append(inputs)
        return self.leave(x), last


class ConvS2S(EncoderDecoder[ConvS2SConfig, StateCache]):
    """Convolutional encoder-decoder. Source and target tokens in, logits over the target vocabulary out."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config, scaled=False)
        c = config
        # position tables for the source and for the target
        self.positions = nn.ModuleList(PositionTable(c.max_positions, c.width, "learned") for _ in range(2))
        self.encoder, self.decoder = Encoder(c), Decoder(c)
        self.add_output()
        for embedding in dict.fromkeys((self.source_embedding, self.target_embedding)):
            nn.init.normal_(embedding.weight, std=EMBEDDING_STD)
            embedding._fill_padding_idx_with_zero()
        for table in self.positions.parameters():
            nn.init.normal_(table, std=EMBEDDING_STD)

    def hidden(self, source: Tensor, source_lengths: Tensor | None, target: Tensor) -> Tensor:
        """Return the outputs of the decoder, (B, Tt, D)."""
        memory = self.encode(source, source_lengths)
        return self._write(target, self._first_inputs(memory), None, memory)[0]

    def encode(self, source: Tensor, lengths: Tensor | None) -> Source:
        """Return the keys and values for the decoder. A value is the sum of a key and the embedding (section 3.3)."""
        x = self.positions[0](self.source_embedding(source))
        x = dropout(x, self.config.dropout, self.training)
        keys = self.encoder(x, lengths)
        return Source(keys, _sum(keys, x), lengths)

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> StateCache:
        """Encode the source (B, Ts) and return a cache for `step`.

        `capacity` has no effect, because the cache has a constant size: the last k - 1 inputs of each convolution.
        """
        memory = self.encode(source, source_lengths)
        return StateCache(self._first_inputs(memory), memory)

    def step(self, tokens: Tensor, cache: StateCache) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T)."""
        hidden, cache.states = self._write(tokens, cache.states, cache.lengths, Source.of(cache))
        cache.lengths = cache.lengths + tokens.shape[1]
        return self.project(hidden)

    def _first_inputs(self, source: Source) -> list[Tensor]:
        c = self.config
        zeros = source.keys.new_zeros(len(source.keys), c.decoder_kernel - 1, c.hidden)
        return [zeros] * c.decoder_layers

    def _write(
        self, target: Tensor, past: Iterable[Tensor], offset: int | Tensor | None, source: Source
    ) -> tuple[Tensor, list[Tensor]]:
        x = self.positions[1](self.target_embedding(target), offset)
        x = dropout(x, self.config.dropout, self.training)
        outputs, last = self.decoder(x, past, source)
        return dropout(outputs, self.config.dropout, self.training), last


def _sum(first: Tensor, second: Tensor) -> Tensor:
    return (first + second) * math.sqrt(0.5)
