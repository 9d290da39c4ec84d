"""Classifier with a frozen BERT and a trainable BiLSTM on top: the feature-based approach (Devlin 2018, section 5.3).

The BiLSTM has two layers. Its input is the hidden states of the last BERT layer, or of the last four concatenated.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from manyheads.core.config import Classes, Layers, Size
from manyheads.core.dropout import dropout
from manyheads.core.interface import Model
from manyheads.core.layers import LabelHead
from manyheads.errors import UserError
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.sequence_baselines import Recurrent


@dataclass(frozen=True)
class BertFeaturesConfig(BertConfig):
    """Configuration of a frozen BERT with a trainable BiLSTM. With the head "token", every token gets a label.

    read    number of last BERT layers whose states are concatenated: 1 or 4 in the paper
    hidden  number of units of the BiLSTM in each direction
    """

    labels: Classes = ()
    read: Layers = 4
    hidden: Size = 384

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.read <= self.layers:
            raise UserError(f"read is {self.read}: expected at most {self.layers}, the number of layers")


class BertFeatures(Model[BertFeaturesConfig]):
    """Classifier of texts, pairs of texts or tokens: frozen BERT and trainable BiLSTM. Returns label logits."""

    reads_pairs = True

    def __init__(self, config: BertFeaturesConfig) -> None:
        super().__init__(
            config, pad=config.pad, max_positions=config.max_positions, head=config.head, labels=config.labels
        )
        c = config
        own = {f.name: getattr(c, f.name) for f in fields(BertConfig)}
        self.bert = Bert(BertConfig(**{**own, "head": "none", "labels": (), "target": "classes"})).requires_grad_(False)
        self.mixer = Recurrent(c.read * c.width, c.hidden, "lstm", directions=2, layers=2)
        self.output = LabelHead(self.mixer.features, len(c.labels))

    def train(self, mode: bool = True) -> BertFeatures:
        """Set training or eval mode.

        BERT always remains in eval mode, so that its features are computed without dropout.
        """
        super().train(mode)
        self.bert.eval()
        return self

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Return label logits (B, L) of each text, or (B, T, L) of each token.

        The inputs are those of BERT: tokens (B, T), lengths (B,), segments (B, T).
        """
        c = self.config
        with torch.no_grad():
            states = self.bert.all_states(tokens, lengths, segments)[-c.read :]
        features = torch.cat(states, dim=-1)  # (B, T, read * D)
        mix = self.mixer.states if c.head == "token" else self.mixer
        mixed = mix(features, lengths)  # (B, 2 * hidden) or (B, T, 2 * hidden)
        return self.output(dropout(mixed, c.dropout, self.training))
