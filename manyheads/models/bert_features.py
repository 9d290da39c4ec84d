"""BERT as it is, and a small reader above it that is trained: the feature-based approach (Devlin 2018, section 5.3).

The states of the last layer, or of the last four side by side, feed a two-layer BiLSTM; nothing of BERT changes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from manyheads.core.config import Classes, Layers, Size
from manyheads.core.dropout import dropout
from manyheads.errors import UserError
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.sequence_baselines import Recurrent


@dataclass(frozen=True)
class BertFeaturesConfig(BertConfig):
    """A BERT's configuration, and what is read of it. With the head "token" every token gets a label of its own.

    read    how many of the last layers' states are concatenated: 1 or 4 in the paper
    hidden  units of the BiLSTM in each direction
    """

    labels: Classes = ()
    read: Layers = 4
    hidden: Size = 384

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.read <= self.layers:
            raise UserError(f"read is {self.read}: the model has {self.layers} layers")


class BertFeatures(nn.Module):
    """Tokens of a text or pair in, logits over the labels out."""

    def __init__(self, config: BertFeaturesConfig) -> None:
        super().__init__()
        self.config = c = config
        own = {f.name: getattr(c, f.name) for f in fields(BertConfig)}
        self.bert = Bert(BertConfig(**{**own, "head": "none", "labels": ()})).requires_grad_(False)
        self.mixer = Recurrent(c.read * c.width, c.hidden, gated=True, directions=2, layers=2)
        self.output = nn.Linear(self.mixer.features, len(c.labels))

    def train(self, mode: bool = True) -> BertFeatures:
        """As of any module; but features are always those of BERT without dropout."""
        super().train(mode)
        self.bert.eval()
        return self

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T) with lengths (B,) and segments (B, T) as of BERT -> logits (B, L), of each token (B, T, L)."""
        c = self.config
        with torch.no_grad():
            states = self.bert.states(tokens, lengths, segments)[-c.read :]
        features = torch.cat(states, dim=-1)  # (B, T, read * D)
        mix = self.mixer.states if c.head == "token" else self.mixer
        mixed = mix(features, lengths)  # (B, 2 * hidden) or (B, T, 2 * hidden)
        return self.output(dropout(mixed, c.dropout, self.training))
