"""GPT (Radford 2018), GPT-2 (Radford 2019) and GPT-3 (Brown 2020): blocks that predict the next token.

    tokens -> embed + learned positions -> N x [causal self-attention, feed-forward] (-> norm) -> logits

GPT applies a norm after each residual sum, as in Vaswani 2017. GPT-2 applies a norm before each sublayer and once after
the last block. In GPT-2, the initial weights of the 2 N projections that add to the residual stream are divided by
sqrt(2 N), because their outputs add up. The output projection is the embedding matrix (tied). In GPT-3, every second
block attends only to the last `window` tokens.

If the model is fine-tuned on labels, it computes them from the state of the last token of a text, which has attended to
all other tokens (Radford 2018, section 3.2): logits = linear(state), without a bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import BandedStack, Block, Stack
from manyheads.core.cache import KVCache
from manyheads.core.config import Epsilon, Heads, LabelConfig, Labels, Layers, Length, Rate, Size, TokenId, Vocabulary
from manyheads.core.dropout import dropout
from manyheads.core.experts import ExpertConfig, make_experts
from manyheads.core.interface import C_co, Encodes, Generates
from manyheads.core.layers import FeedForward, LabelHead, TokenEmbedding
from manyheads.core.masks import Mask
from manyheads.core.positions import PositionTable
from manyheads.errors import UserError

INIT_STD = 0.02  # initial standard deviation of the weights in all matrices (Radford 2018, section 4.1)


@dataclass(frozen=True)
class GPTConfig(LabelConfig, ExpertConfig):
    """Sizes and options of a GPT model. The vocabulary size comes from the data or the preset.

    end           token between documents, if the vocabulary has one; it begins and ends a text
    feed_forward  number of hidden units of the feed-forward networks. By default, 4 * width. "experts" means a mixture
                  of experts, each with `expert_size` or 4 * width hidden units; "none" means blocks that have only
                  attention (Elhage 2021)
    norm          "pre": before each sublayer and after the last block (GPT-2); "post": after each residual sum (GPT)
    bias          True if linear layers and layer norms have biases; False if they have none, as in nanoGPT
    window        number of tokens, including itself, that a token attends to in every second block, from the second
                  (GPT-3). By default, all blocks attend to all earlier tokens
    dropout       dropout of each sublayer's output and before the classifier; `embedding_dropout` is for the sum of
                  token and position embeddings
    head          "language": logits of the next token; "sequence": logits of the `labels` of a text
    pad           padding token for the head "sequence". This package finds the end of a text by its length. Other tools
                  need a padding token; if it is None, they read one text at a time.
    """

    vocab: Vocabulary
    end: TokenId | None = None
    width: Size = 768
    layers: Layers = 12
    heads: Heads = 12
    feed_forward: Size | Literal["experts", "none"] | None = None
    activation: str = "gelu_tanh"
    norm: Literal["pre", "post"] = "pre"
    norm_eps: Epsilon = 1e-5
    bias: bool = True
    max_positions: Length = 1024
    window: Size | None = None
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    embedding_dropout: Rate = 0.1
    head: Literal["language", "sequence"] = "language"
    labels: Labels = ()
    pad: TokenId | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head == "sequence" and self.target == "classes" and len(self.labels) < 2:
            raise UserError(f"the head 'sequence' has {len(self.labels)} labels: expected two or more")


class CausalDecoder(Generates[C_co, KVCache], Encodes[C_co]):
    """Decoder whose tokens attend to earlier tokens. It is the common part of GPT and iGPT."""

    embedding: TokenEmbedding
    decoder: Stack

    @property
    def stack(self) -> Stack:
        return self.decoder

    def start(self, batch: int, capacity: int) -> KVCache:
        """Return an empty key-value cache for `step`, with at most `capacity` positions."""
        return self.decoder.new_cache(batch, capacity, self.embedding.weight)

    def step(self, tokens: Tensor, cache: KVCache, at: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T). The cache contains the previous tokens.

        at  (B,) index of one token in each row. If given, only the logits (B, 1, V) after these tokens are returned

        To discard the last positions of a row, call `cache.advance` with a negative number for this row.
        """
        queries = tokens.shape[1]
        hidden = self.decoder(self._embed(tokens, cache.offset), mask=cache.mask(queries), cache=cache)
        cache.advance(queries)
        return self.project(hidden if at is None else hidden[torch.arange(len(at), device=at.device), at][:, None])

    def _embed(self, tokens: Tensor, offset: int | Tensor | None = None) -> Tensor:
        """Return the input (B, T, D) of the decoder for tokens (B, T), the first of which has the position `offset`."""
        raise NotImplementedError


class GPT(CausalDecoder[GPTConfig]):
    """GPT decoder with a head for the next token, or for labels of a text. Tokens in, logits out."""

    reads_pairs = True

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(
            config, pad=config.pad, max_positions=config.max_positions, head=config.head, labels=config.labels
        )
        c = config
        self.embedding, self.output_bias = TokenEmbedding(c.vocab, c.width), None
        self.positions = PositionTable(c.max_positions, c.width, "learned")
        norm = nn.LayerNorm(c.width, eps=c.norm_eps) if c.norm == "pre" else None
        blocks = [_block(c) for _ in range(c.layers)]
        self.decoder = Stack(blocks, norm) if c.window is None else BandedStack(blocks, norm, window=c.window)
        self.classifier = LabelHead(c.width, len(c.labels), bias=False) if c.head == "sequence" else None
        self._initialize()

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V) of the next token for tokens (B, T), or label logits (B, L) for the head "sequence".

        lengths   number of real tokens of each row, (B,). By default, all are real. No token attends to later padding
        segments  document index of each token of packed documents, (B, T): a token attends only to its document. The
                  head "sequence" ignores this argument, because a pair of texts is one sequence.
        """
        if self.classifier is not None:
            return self.classify(self.hidden(tokens, lengths), lengths)
        return self.project(self.hidden(tokens, lengths, segments))

    def classify(self, hidden: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return label logits (B, L), computed from the last real token of each row of hidden states (B, T, D)."""
        assert self.classifier is not None
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        last = hidden[:, -1] if lengths is None else hidden[rows, lengths - 1]  # (B, D)
        return self.classifier(dropout(last, self.config.dropout, self.training))

    def hidden(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Return the hidden states of the last layer, (B, T, D), before the output projection."""
        packed = None if segments is None else (segments, segments)
        return self.decoder(self._embed(tokens), mask=Mask(causal=True, key_lengths=lengths, segments=packed))

    encode = hidden

    @property
    def output_weight(self) -> Tensor:
        """Return the matrix of the output projection, (V, D)."""
        return self.embedding.weight

    def _embed(self, tokens: Tensor, offset: int | Tensor | None = None) -> Tensor:
        x = self.positions(self.embedding(tokens), offset)  # (B, T, D)
        return dropout(x, self.config.embedding_dropout, self.training)

    def _initialize(self) -> None:
        # The table of position embeddings is initialized like the token embeddings.
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        if self.classifier is not None:
            nn.init.normal_(self.classifier.weight, std=INIT_STD)
        initialize(self.decoder, scaled=self.config.norm == "pre")
        if not self.config.bias:
            for module in self.decoder.modules():
                if isinstance(module, nn.Linear | nn.LayerNorm):
                    module.register_parameter("bias", None)


def initialize(stack: Stack, *, scaled: bool) -> None:
    """Draw the weights of all linear layers with the standard deviation `INIT_STD`, and set their biases to zero.

    scaled  True to divide the weights of the 2 N projections that add to the residual stream by sqrt(2 N), as in GPT-2
    """
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=INIT_STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for block in stack.blocks if scaled else ():
        assert isinstance(block, Block)
        contract = None if block.feed_forward is None else block.feed_forward.contract
        contracts = contract if isinstance(contract, nn.ModuleList) else [contract] * (contract is not None)
        for projection in (block.attention.output, *contracts):
            nn.init.normal_(projection.weight, std=INIT_STD * (2 * len(stack.blocks)) ** -0.5)


def _block(c: GPTConfig) -> Block:
    sizes = (c.width, c.feed_forward if isinstance(c.feed_forward, int) else 4 * c.width, c.activation)
    feed_forward = make_experts(c, *sizes) if c.feed_forward == "experts" else FeedForward(*sizes)
    return Block(
        Attention(c.width, c.heads, dropout=c.attention_dropout),
        None if c.feed_forward == "none" else feed_forward,
        norm=c.norm, dropout=c.dropout, norm_eps=c.norm_eps,
    )  # fmt: skip
