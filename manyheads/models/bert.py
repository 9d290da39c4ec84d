"""BERT: an encoder that reads a text in both directions at once, and the heads that it is trained with (Devlin 2018).

tokens + positions + segments -> norm -> N x [self-attention, feed-forward]  -> states, one for each token
pooled = tanh(linear(state of the first token, [CLS]))

head             reads             gives
"none"           states            states (B, T, D)
"pooler"         states            states (B, T, D); `pool` gives the pooled vector
"masked_lm"      states            logits of the words (B, T, V): dense, GELU, norm, the tied embeddings, a bias
"pretraining"    states, pooled    those, and logits (B, 2): the second sentence follows the first, or does not
"next_sentence"  pooled            logits (B, 2)
"sequence"       pooled            logits of the labels of a text or pair (B, L)
"token"          states            logits of the labels of each token (B, T, L)
"question"       states            logits of the answer's first and last token (B, T, 2)
"choice"         pooled            from tokens (B, C, T): one score for each of C candidates (B, C)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.config import Config, from_preset
from manyheads.core.dropout import dropout
from manyheads.core.layers import ACTIVATIONS, FeedForward, TokenEmbedding
from manyheads.core.masks import Mask
from manyheads.core.positions import Positions

Head = Literal["none", "pooler", "masked_lm", "pretraining", "next_sentence", "sequence", "token", "question", "choice"]
POOLED = ("pooler", "pretraining", "next_sentence", "sequence", "choice")  # heads above a pooler
PREDICTS_WORDS = ("masked_lm", "pretraining")
LABELLED = ("sequence", "token")


@dataclass(frozen=True)
class BertConfig(Config):
    """Sizes and choices; the defaults are those of bert-base-uncased.

    labels         what the head "sequence" or "token" tells apart, by the index of the logit
    activation     "gelu", or "gelu_tanh", which the original code computes
    segment_types  how many kinds of segments there are: a text, and what follows it
    head_dropout   before the classifier of the heads "sequence", "token" and "choice"; None: as `dropout`
    """

    vocab: int = 30_522
    width: int = 768
    layers: int = 12
    heads: int = 12
    feed_forward: int = 3072
    head: Head = "pooler"
    labels: tuple[str, ...] = ()
    activation: str = "gelu"
    max_positions: int = 512
    segment_types: int = 2
    pad: int = 0
    norm_eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head in LABELLED and not self.labels:
            raise ValueError(f"the head {self.head!r} needs labels")
        if self.head == "sequence" and len(self.labels) == 1:
            raise ValueError(
                f"the head 'sequence' has one label, {self.labels[0]!r}: a score is not supported, only classes"
            )
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must differ, got {', '.join(self.labels)}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")
        if not 0 <= self.pad < self.vocab:
            raise ValueError(f"the pad token has id {self.pad}, the vocabulary {self.vocab} entries")


def _sizes(layers: int, width: int, **more: Any) -> dict[str, Any]:
    return {"layers": layers, "width": width, "heads": width // 64, "feed_forward": 4 * width, **more}


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _sizes(2, 128),  # this and the next three: Turc et al. 2019
    "mini": _sizes(4, 256),
    "small": _sizes(4, 512),
    "medium": _sizes(8, 512),
    "base-uncased": _sizes(12, 768),
    "base-cased": _sizes(12, 768, vocab=28_996),
    "large-uncased": _sizes(24, 1024),
}


def preset(name: str, **overrides: Any) -> BertConfig:
    """A configuration by name, with its published vocabulary, a pooler and no head unless `overrides` say otherwise."""
    return from_preset(BertConfig, PRESETS, name, overrides)


class Bert(nn.Module):
    """Tokens in, what the head gives out (see the table above)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        self.embedding = TokenEmbedding(c.vocab, c.width, c.pad)
        self.positions = Positions(c.max_positions, c.width, "learned")
        self.segments = nn.Embedding(c.segment_types, c.width)
        self.embedding_norm = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.encoder = Stack([_block(c) for _ in range(c.layers)])
        self.pooler = nn.Linear(c.width, c.width) if c.head in POOLED else None
        words = c.head in PREDICTS_WORDS
        self.transform = nn.Linear(c.width, c.width) if words else None
        self.transform_norm = nn.LayerNorm(c.width, eps=c.norm_eps) if words else None
        self.output_bias = nn.Parameter(torch.zeros(c.vocab)) if words else None
        self.next_sentence = nn.Linear(c.width, 2) if c.head in ("pretraining", "next_sentence") else None
        logits = {"sequence": len(c.labels), "token": len(c.labels), "question": 2, "choice": 1}.get(c.head)
        self.classifier = None if logits is None else nn.Linear(c.width, logits)
        self._initialise()

    def _initialise(self) -> None:
        """Section A.2 and the original code: weights from a normal cut at two deviations of 0.02, biases zero."""
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
        """tokens (B, T), or (B, C, T) for the head "choice" -> what the head gives; a pair for "pretraining".

        lengths   (B,) or (B, C): how many tokens of each row are real; None: all
        segments  as tokens: which segment each belongs to; None: the first
        """
        shape = tokens.shape[:-1]
        flat = [None if t is None else t.flatten(0, len(shape) - 1) for t in (lengths, segments)]
        states = self.encode(tokens.flatten(0, len(shape) - 1), *flat)
        return self.read(states, shape)

    def encode(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T) -> the last layer's states (B, T, D)."""
        return self.encoder(self.embed(tokens, segments), mask=Mask(key_lengths=lengths))

    def states(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> list[Tensor]:
        """tokens (B, T) -> the embeddings and the states of every layer, each (B, T, D); the last one is `encode`'s.

        The paper's features for a frozen encoder (section 5.3) are the last, or the last four concatenated.
        """
        mask, found = Mask(key_lengths=lengths), [self.embed(tokens, segments)]
        for block in self.encoder.blocks:
            found.append(block(found[-1], mask=mask))
        return found

    def embed(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T) -> (B, T, D)."""
        kinds = self.segments.weight[0] if segments is None else self.segments(segments)
        x = self.embedding_norm(self.positions(self.embedding(tokens) + kinds))
        return dropout(x, self.config.dropout, self.training)

    def pool(self, states: Tensor) -> Tensor:
        """states (B, T, D) -> (B, D): the state of [CLS], through a layer of its own."""
        assert self.pooler is not None, f"the head {self.config.head!r} has no pooler"
        return torch.tanh(self.pooler(states[:, 0]))

    def transformed(self, states: Tensor) -> Tensor:
        """states (..., D) -> (..., D): what the logits of the words are a product of."""
        assert self.transform is not None
        assert self.transform_norm is not None
        return self.transform_norm(ACTIVATIONS[self.config.activation](self.transform(states)))

    def words(self, states: Tensor) -> Tensor:
        """states (..., D) -> logits of the words (..., V), with the embeddings as the matrix."""
        return F.linear(self.transformed(states), self.embedding.weight, self.output_bias)

    def read(self, states: Tensor, shape: torch.Size) -> Tensor | tuple[Tensor, Tensor]:
        """The head on states (B, T, D), or (B * C, T, D) where `shape` is (B, C)."""
        head = self.config.head
        if head == "masked_lm":
            return self.words(states)  # (B, T, V)
        if self.next_sentence is not None:
            follows = self.next_sentence(self.pool(states))  # (B, 2)
            return (self.words(states), follows) if head == "pretraining" else follows
        if self.classifier is None:
            return states
        if head == "question":
            return self.classifier(states)  # (B, T, 2)
        c = self.config
        share = c.dropout if c.head_dropout is None else c.head_dropout
        features = dropout(states if head == "token" else self.pool(states), share, self.training)
        logits = self.classifier(features)
        return logits.view(shape) if head == "choice" else logits

    def example(self, length: int) -> tuple[Tensor, ...]:
        """Inputs of `forward`: one text of `length` tokens."""
        rows = (1, 1) if self.config.head == "choice" else (1,)
        return (torch.zeros(*rows, length, dtype=torch.int64, device=self.embedding.weight.device),)


def with_head(model: Bert, head: Head, labels: tuple[str, ...] = (), **settings: Any) -> tuple[Bert, list[str]]:
    """The same encoder under another head, and the names of the parameters that are new.

    What both heads have (a pooler, the word predictor) is kept, the classifier where head and labels are the same.
    settings  of the configuration that do not change the shapes of weights, such as dropout.
    """
    config = replace(model.config, head=head, labels=labels, **settings)
    made = Bert(config)
    same_classifier = (config.head, config.labels) == (model.config.head, model.config.labels)
    kept = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if same_classifier or not name.startswith("classifier.")
    }
    own = made.state_dict()
    kept = {name: tensor for name, tensor in kept.items() if name in own}
    if changed := [name for name in kept if kept[name].shape != own[name].shape]:
        raise ValueError(f"{', '.join(sorted(settings))} would change the shapes of {', '.join(changed[:5])}")
    made.load_state_dict({**own, **kept})
    made.to(model.embedding.weight.device).train(model.training)
    return made, [name for name in own if name not in kept]


def _block(c: BertConfig) -> Block:
    return Block(
        Attention(c.width, c.heads, dropout=c.attention_dropout),
        FeedForward(c.width, c.feed_forward, c.activation),
        norm="post", dropout=c.dropout, norm_eps=c.norm_eps,
    )  # fmt: skip
