"""BERT: a bidirectional text encoder, with the heads of its paper (Devlin 2018).

tokens + positions + segments -> norm -> N x [self-attention, feed-forward]  -> states, one per token
pooled = tanh(linear(state of the first token, [CLS]))

head             input             output
"none"           states            states (B, T, D)
"pooler"         states            states (B, T, D); `pool` returns the pooled vector
"masked_lm"      states            word logits (B, T, V): dense, GELU, norm, the tied embeddings, a bias
"pretraining"    states, pooled    word logits, and logits (B, 2): the second sentence follows the first, or does not
"next_sentence"  pooled            logits (B, 2)
"sequence"       pooled            label logits of a text or pair (B, L)
"token"          states            label logits of each token (B, T, L)
"question"       states            logits of the first and last token of the answer (B, T, 2)
"choice"         pooled            one score for each of C candidates (B, C), from tokens (B, C, T)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.config import (
    Epsilon,
    Heads,
    LabelConfig,
    Labels,
    Layers,
    Length,
    Range,
    Rate,
    Size,
    TokenId,
    Vocabulary,
)
from manyheads.core.dropout import dropout
from manyheads.core.interface import Encodes, OutputProjection
from manyheads.core.layers import ACTIVATIONS, FeedForward, LabelHead, TokenEmbedding
from manyheads.core.masks import Mask
from manyheads.core.positions import PositionTable
from manyheads.errors import UserError

Head = Literal["none", "pooler", "masked_lm", "pretraining", "next_sentence", "sequence", "token", "question", "choice"]
# names of the heads that use the pooler, a layer on the hidden state of the token [CLS]
POOLED = ("pooler", "pretraining", "next_sentence", "sequence", "choice")
PREDICTS_WORDS = ("masked_lm", "pretraining")
LABELED = ("sequence", "token")


@dataclass(frozen=True)
class BertConfig(LabelConfig):
    """Sizes and options of a BERT model. The defaults are those of bert-base-uncased.

    labels         labels of the heads "sequence" and "token", in the order of the logits
    activation     "gelu", or "gelu_tanh" as in the original code
    segment_types  number of segment types: 2 for pairs of texts; 1 in RoBERTa; None in DistilBERT, which has no segment
                   embeddings. With 1 or None, only a separator token separates the texts of a pair.
    head_dropout   dropout before the classifier of the heads "sequence", "token" and "choice". By default, `dropout`

    norm           "post": after each residual sum, as published; "pre": before each sublayer and once at the end, which
                   trains faster (Xiong 2020)
    embedding_norm if True, the embeddings have a norm, as published. Megatron-LM's BERT (Shoeybi 2019) has none, and
                   norm "pre". With norm "pre" and this norm, a model is saved only in the format of this package

    The following settings describe RoBERTa (Liu 2019) and DistilBERT (Sanh 2019):

    position_offset       number of unused rows before the first position in the position table
    pooler_activation     activation of the pooler, the layer on the state of [CLS]
    dropout_below_pooler  dropout before the pooler for the head "sequence"
    question_dropout      dropout before the logits of the head "question"
    """

    vocab: Vocabulary = 30_522
    width: Size = 768
    layers: Layers = 12
    heads: Heads = 12
    feed_forward: Size = 3072
    head: Head = "pooler"
    labels: Labels = ()
    activation: str = "gelu"
    max_positions: Length = 512
    segment_types: Size | None = 2
    pad: TokenId = 0
    norm_eps: Epsilon = 1e-12
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    head_dropout: Rate | None = None
    norm: Literal["post", "pre"] = "post"
    embedding_norm: bool = True
    position_offset: Annotated[int, Range(0, 2**20)] = 0
    pooler_activation: Literal["tanh", "relu"] = "tanh"
    dropout_below_pooler: bool = False
    question_dropout: Rate = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head in LABELED and not self.labels:
            raise UserError(f"the head {self.head!r} needs labels: set labels")
        if self.head == "sequence" and len(self.labels) == 1 and self.target == "classes":
            raise UserError(f"the head 'sequence' has only one label, {self.labels[0]!r}: expected at least two")


class Bert(Encodes[BertConfig]):
    """BERT encoder with a head, which the setting `head` selects. Tokens in, outputs of the head out.

    The docstring of this module lists the heads.
    """

    reads_pairs = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__(
            config, pad=config.pad, max_positions=config.max_positions, head=config.head, labels=config.labels
        )
        c = config
        self.embedding = TokenEmbedding(c.vocab, c.width, c.pad)
        self.positions = PositionTable(c.max_positions, c.width, "learned", before=c.position_offset)
        self.segments = None if c.segment_types is None else nn.Embedding(c.segment_types, c.width)
        self.embedding_norm = nn.LayerNorm(c.width, eps=c.norm_eps) if c.embedding_norm else None
        last = nn.LayerNorm(c.width, eps=c.norm_eps) if c.norm == "pre" else None
        self.encoder = Stack([_block(c) for _ in range(c.layers)], last)
        self.pooler = nn.Linear(c.width, c.width) if c.head in POOLED else None
        words = c.head in PREDICTS_WORDS
        self.transform = nn.Linear(c.width, c.width) if words else None
        self.transform_norm = nn.LayerNorm(c.width, eps=c.norm_eps) if words else None
        self.output_bias = nn.Parameter(torch.zeros(c.vocab)) if words else None
        self.projection = OutputProjection()
        self.next_sentence = nn.Linear(c.width, 2) if c.head in ("pretraining", "next_sentence") else None
        logits = {"sequence": len(c.labels), "token": len(c.labels), "question": 2, "choice": 1}.get(c.head)
        self.classifier = None if logits is None else LabelHead(c.width, logits)
        self._initialize()

    def _initialize(self) -> None:
        """Draw weights from a normal distribution with standard deviation 0.02, truncated at two standard deviations.

        Biases are zero. Source: Devlin 2018, section A.2.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.embedding.weight[self.config.pad] = 0.0

    def forward(
        self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the output of the head for tokens (B, T), or (B, C, T) for the head "choice" with C candidates.

        The head "pretraining" returns a pair: word logits and next-sentence logits.

        lengths   number of real tokens of each row, (B,) or (B, C). By default, all tokens are real
        segments  segment index of each token, in the shape of tokens. By default, all tokens are in the first segment
        """
        shape = tokens.shape[:-1]
        flat = [None if t is None else t.flatten(0, len(shape) - 1) for t in (lengths, segments)]
        states = self.encode(tokens.flatten(0, len(shape) - 1), *flat)
        return self.apply_head(states, shape)

    def encode(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Return the hidden states of the last layer, (B, T, D), for tokens (B, T)."""
        return self.encoder(self.embed(tokens, segments), mask=Mask(key_lengths=lengths))

    @property
    def stack(self) -> Stack:
        return self.encoder

    def all_states(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> list[Tensor]:
        """Return a list of the embeddings and the hidden states of every layer, each (B, T, D), for tokens (B, T).

        The last element equals the result of `encode`. As features of a frozen encoder, the paper uses the last layer,
        or the last four layers concatenated (section 5.3).
        """
        states = self.encoder.states(self.embed(tokens, segments), mask=Mask(key_lengths=lengths))
        if self.encoder.norm is not None:
            states[-1] = self.encoder.norm(states[-1])
        return states

    def embed(self, tokens: Tensor, segments: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, T, D) of tokens (B, T).

        at  row of each token in the position table, (B, T). By default, the tokens are in order, without gaps
        """
        x = self.embedding(tokens)
        if self.segments is not None:
            single_type = segments is None or len(self.segments.weight) == 1
            x = x + (self.segments.weight[0] if single_type else self.segments(segments))
        x = self.positions(x) if at is None else x + self.positions.table[at]
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        return dropout(x, self.config.dropout, self.training)

    def pool(self, states: Tensor) -> Tensor:
        """Apply the pooler to the hidden state of the first token, [CLS]: states (B, T, D) -> (B, D)."""
        assert self.pooler is not None, f"the head {self.config.head!r} has no pooler"
        pooled = self.pooler(states[:, 0])
        return torch.tanh(pooled) if self.config.pooler_activation == "tanh" else torch.relu(pooled)

    def transform_states(self, states: Tensor) -> Tensor:
        """Apply the layer between the hidden states and the word logits: states (..., D) -> (..., D)."""
        assert self.transform is not None
        assert self.transform_norm is not None
        return self.transform_norm(ACTIVATIONS[self.config.activation](self.transform(states)))

    @property
    def output_weight(self) -> Tensor:
        """Return the matrix of the word logits, (V, D), which is the embedding matrix."""
        return self.embedding.weight

    def words(self, states: Tensor) -> Tensor:
        """Return the word logits (..., V) of states (..., D). The output matrix is the embedding matrix."""
        return self.projection(self.transform_states(states), self)

    def apply_head(self, states: Tensor, shape: torch.Size) -> Tensor | tuple[Tensor, Tensor]:
        """Apply the head to hidden states (B, T, D), or (B * C, T, D) for C candidates, where `shape` is (B, C)."""
        head = self.config.head
        if head == "masked_lm":
            return self.words(states)  # word logits, (B, T, V)
        if self.next_sentence is not None:
            follows = self.next_sentence(self.pool(states))  # next-sentence logits, (B, 2)
            return (self.words(states), follows) if head == "pretraining" else follows
        if self.classifier is None:
            return states
        c = self.config
        if head == "question":
            # logits of the first and the last token of the answer, (B, T, 2)
            return self.classifier(dropout(states, c.question_dropout, self.training))
        rate = c.dropout if c.head_dropout is None else c.head_dropout
        if head == "sequence" and c.dropout_below_pooler:
            states = dropout(states[:, :1], rate, self.training)
        features = dropout(states if head == "token" else self.pool(states), rate, self.training)
        logits = self.classifier(features)
        return logits.view(shape) if head == "choice" else logits


def _block(c: BertConfig) -> Block:
    return Block(
        Attention(c.width, c.heads, dropout=c.attention_dropout),
        FeedForward(c.width, c.feed_forward, c.activation),
        norm=c.norm, dropout=c.dropout, norm_eps=c.norm_eps,
    )  # fmt: skip
