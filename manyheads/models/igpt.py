"""iGPT (Chen 2020): a GPT-2 that reads an image pixel by pixel, and predicts the color of the next pixel.

    start, colors -> embed + learned positions -> N x [causal self-attention, feed-forward] -> norm -> logits

An image is a sequence of color ids, row by row. Its colors are the centers of clusters, 512 in the paper, found by
k-means on training images (`data/images/palette.py`). The last id of the vocabulary is the start token, which precedes
the first pixel and is never predicted. The differences from GPT-2, as in the published code: norms that do not subtract
the mean (RMSNorm), the quick approximation of GELU, and a separate output projection, which is initially zero
(section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.config import Config, Epsilon, Heads, Layers, Length, Range, Rate, Size
from manyheads.core.dropout import dropout
from manyheads.core.layers import FeedForward, RMSNorm, TokenEmbedding
from manyheads.core.masks import Mask
from manyheads.core.positions import PositionTable
from manyheads.models.gpt import INIT_STD, CausalDecoder, initialize


@dataclass(frozen=True)
class IGPTConfig(Config):
    """Sizes and options of an iGPT model. The defaults are the sizes of iGPT-S.

    vocab          number of colors and the start token, which is the last id
    max_positions  number of pixels of an image; images are square
    feed_forward   number of hidden units of the feed-forward networks. By default, 4 * width
    dropout        dropout of each sublayer's output; `embedding_dropout` is for the sum of color and position
    """

    vocab: Annotated[int, Range(2, 2**24)] = 513
    width: Size = 512
    layers: Layers = 24
    heads: Heads = 8
    feed_forward: Size | None = None
    activation: str = "quick_gelu"
    norm_eps: Epsilon = 1e-5
    max_positions: Length = 1024
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    embedding_dropout: Rate = 0.1


class IGPT(CausalDecoder[IGPTConfig]):
    """Decoder that predicts the color of the next pixel. Color ids in, logits of all colors out."""

    def __init__(self, config: IGPTConfig) -> None:
        super().__init__(config, max_positions=config.max_positions)
        c = config
        self.embedding, self.output_bias = TokenEmbedding(c.vocab, c.width), None
        self.positions = PositionTable(c.max_positions, c.width, "learned")
        self.decoder = Stack([_block(c) for _ in range(c.layers)], RMSNorm(c.width, c.norm_eps))
        self.output = nn.Linear(c.width, c.vocab - 1, bias=False)
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        nn.init.zeros_(self.output.weight)
        initialize(self.decoder, scaled=True)

    @property
    def start_token(self) -> int:
        """Return the id that precedes the first pixel of an image."""
        return self.config.vocab - 1

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, V - 1) of the next pixel's color for ids (B, T), the first of which is the start."""
        return self.project(self.hidden(tokens))

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the hidden states of the last layer, (B, T, D), before the output projection."""
        return self.decoder(self._embed(tokens), mask=Mask(causal=True))

    encode = hidden

    @property
    def output_weight(self) -> Tensor:
        return self.output.weight

    def _embed(self, tokens: Tensor, offset: int | Tensor | None = None) -> Tensor:
        x = self.positions(self.embedding(tokens), offset)  # (B, T, D)
        return dropout(x, self.config.embedding_dropout, self.training)


def _block(c: IGPTConfig) -> Block:
    return Block(
        Attention(c.width, c.heads, dropout=c.attention_dropout),
        FeedForward(c.width, c.feed_forward or 4 * c.width, c.activation),
        norm="pre", dropout=c.dropout, norm_eps=c.norm_eps, norm_type=RMSNorm,
    )  # fmt: skip
