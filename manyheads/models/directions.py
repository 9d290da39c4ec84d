"""Encoders with three reading directions, compared on equal terms (Devlin 2018, figure 3).

The encoders are a bidirectional Transformer, a left-to-right Transformer, and a pair of LSTMs:

reading          a token attends to                         training objective                        as in
"bidirectional"  the whole text, in every layer             masked words                              BERT
"left_to_right"  the tokens before it, in every layer       the next word                             GPT
"two_lstms"      the tokens before it and the tokens after  the next word forwards, the previous      ELMo
                 it, separately, then concatenated          word backwards

In each encoder, the input and the output share one embedding matrix. All encoders return features of the same width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.config import Config, Heads, Layers, Length, Size, TokenId, Vocabulary
from manyheads.core.interface import Model
from manyheads.core.layers import FeedForward, TokenEmbedding, xavier_uniform
from manyheads.core.masks import Mask
from manyheads.core.positions import PositionTable
from manyheads.core.recurrent import LSTM, reverse_texts
from manyheads.errors import UserError

Direction = Literal["bidirectional", "left_to_right", "two_lstms"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


@dataclass(frozen=True)
class DirectionalConfig(Config):
    """Sizes and reading direction of an encoder. A layer is a Transformer block, or one LSTM layer per direction."""

    vocab: Vocabulary
    # "bidirectional", "left_to_right" or "two_lstms"
    reading: Direction = "bidirectional"
    pad: TokenId = 0
    width: Size = 128
    layers: Layers = 2
    heads: Heads = 4
    feed_forward: Size = 512
    max_positions: Length = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise UserError(f"width is {self.width}: expected an even number, because each direction gets half of it")


class DirectionalEncoder(Model[DirectionalConfig]):
    """Bidirectional, left-to-right or two-LSTM encoder. Tokens in, one feature vector per token out."""

    def __init__(self, config: DirectionalConfig) -> None:
        super().__init__(config, pad=config.pad, max_positions=config.max_positions)
        c = config
        self.embedding = TokenEmbedding(c.vocab, c.width, c.pad, scaled=True)
        self.positions: PositionTable | None = None
        self.encoder: Stack | None = None
        self.lstms: nn.ModuleList | None = None
        directions = 2 if c.reading == "two_lstms" else 1
        if directions == 2:
            # With this size, both LSTMs together have about as many weights as the Transformer blocks.
            hidden = c.width * 3 // 4
            self.lstms = nn.ModuleList(LSTM(c.width, hidden, c.layers, batch_first=True) for _ in range(2))
            self.projections = nn.ModuleList(nn.Linear(hidden, c.width // 2) for _ in range(2))
        else:
            self.positions = PositionTable(c.max_positions, c.width)
            blocks = [
                Block(Attention(c.width, c.heads), FeedForward(c.width, c.feed_forward, "gelu"), norm="pre")
                for _ in range(c.layers)
            ]
            self.encoder = Stack(blocks, nn.LayerNorm(c.width))
        self.transforms = nn.ModuleList(nn.Linear(c.width // directions, c.width) for _ in range(directions))
        self.output_bias = nn.Parameter(torch.zeros(c.vocab))
        xavier_uniform(self)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return one feature vector per token, (B, T, D), for tokens (B, T).

        lengths  number of real tokens of each row, (B,). By default, all tokens are real
        """
        return torch.cat(self.directions(tokens, lengths), dim=-1)

    def directions(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """Return the features of each reading direction as a list.

        For two LSTMs, these are two tensors (B, T, D / 2), otherwise one tensor (B, T, D).
        """
        x = self.embedding(tokens)  # (B, T, D)
        if self.lstms is not None:
            forwards = self.projections[0](self.lstms[0](x)[0])
            backwards = self.projections[1](self.lstms[1](reverse_texts(x, lengths))[0])
            return [forwards, reverse_texts(backwards, lengths)]
        assert self.positions is not None
        assert self.encoder is not None
        mask = Mask(key_lengths=lengths, causal=self.config.reading == "left_to_right")
        return [self.encoder(self.positions(x), mask=mask)]

    def transform_states(self, features: Tensor, direction: int = 0) -> Tensor:
        """Apply the layer before the word logits to the features (..., D) of one reading direction.

        Returns (..., D).
        """
        return F.gelu(self.transforms[direction](features))
