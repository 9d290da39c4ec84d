"""TF-IDF features with a linear classifier, a baseline that sequence models should exceed.

    word counts -> 1 + log(count), times the inverse document frequency -> unit length
    -> (components -> unit length) -> linear -> logits

Sources: Spärck Jones 1972, Salton & Buckley 1988. The optional components are the main directions of the training
texts: latent semantic analysis (Deerwester 1990). The formulas are those of scikit-learn (TfidfTransformer,
TruncatedSVD, LogisticRegression), which also fits the model (`papers/text_classifier/fitting.py`). The order of the
words has no effect, and unknown words are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import Classes, Config, Length, Size, TokenId, Vocabulary
from manyheads.core.interface import Model
from manyheads.models.text_classifier import both_logits, units


@dataclass(frozen=True)
class TfidfConfig(Config):
    """Sizes and options of a TF-IDF model.

    labels         classes in the order of the logits
    components     number of components of the latent semantic analysis, such as 100. By default, there is no such
                   analysis
    max_positions  maximum number of words of a text. By default, there is no limit
    """

    vocab: Vocabulary = 20_000
    labels: Classes = ("negative", "positive")
    pad: TokenId = 0
    unknown: TokenId = 1
    components: Size | None = None
    max_positions: Length | None = None


class Tfidf(Model[TfidfConfig]):
    """TF-IDF text classifier, fitted without gradients. Tokens in, label logits out."""

    def __init__(self, config: TfidfConfig) -> None:
        super().__init__(config, pad=config.pad, max_positions=config.max_positions, labels=config.labels)
        self.idf = nn.Parameter(torch.zeros(config.vocab))  # Ignored tokens, such as padding, have the weight zero.
        size = config.components
        self.components = None if size is None else nn.Parameter(torch.zeros(size, config.vocab))
        self.output = nn.Linear(size or config.vocab, units(config.labels))

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Return label logits (B, L) for tokens (B, T). The argument segments is ignored.

        lengths  number of real tokens of each row, (B,). By default, all tokens are real
        """
        real = torch.ones_like(tokens, dtype=self.idf.dtype)
        if lengths is not None:
            real = (torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]).to(self.idf.dtype)
        counts = torch.zeros(len(tokens), self.config.vocab, dtype=self.idf.dtype, device=tokens.device)
        counts.scatter_add_(1, tokens, real)  # (B, V)
        frequencies = torch.where(counts > 0, 1 + counts.clamp(min=1).log(), 0)
        words = F.normalize(frequencies * self.idf, dim=1)
        # (B, V) word weights, or (B, K) components
        features = words if self.components is None else F.normalize(words @ self.components.T, dim=1)
        return both_logits(self.output(features), self.config.labels)
