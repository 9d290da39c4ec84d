"""Words weighted by how rare they are, and a linear classifier: what every model that reads sequences has to beat.

    counts of the words -> 1 + log(count), times the inverse document frequency -> unit length
    -> (components -> unit length) -> linear -> logits

Spärck Jones 1972, Salton & Buckley 1988; the components, where there are some, are the directions in which the training
texts differ most: latent semantic analysis (Deerwester 1990). In scikit-learn's formulas (TfidfTransformer,
TruncatedSVD, LogisticRegression), which also fits it (`tasks/classification/tfidf.py`). The order of the words does not
matter, nor do unknown ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import Classes, Config, Length, Size, TokenId, Vocabulary
from manyheads.models.text_classifier import both_logits, units


@dataclass(frozen=True)
class TfidfConfig(Config):
    """labels: what is told apart, by the index of the logit. components: of LSA, such as 100; None: words as they are.
    max_positions: words a text may have; None: any number."""

    vocab: Vocabulary = 20_000
    labels: Classes = ("negative", "positive")
    pad: TokenId = 0
    unknown: TokenId = 1
    components: Size | None = None
    max_positions: Length | None = None


class Tfidf(nn.Module):
    """Tokens in, logits over the labels out. Fitted, not trained by gradients."""

    def __init__(self, config: TfidfConfig) -> None:
        super().__init__()
        self.config = config
        self.idf = nn.Parameter(torch.zeros(config.vocab))  # zero for what is left out
        size = config.components
        self.components = None if size is None else nn.Parameter(torch.zeros(size, config.vocab))
        self.output = nn.Linear(size or config.vocab, units(config.labels))

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T), of which lengths (B,) are real (None: all) -> logits (B, L). Segments are not read."""
        real = torch.ones_like(tokens, dtype=self.idf.dtype)
        if lengths is not None:
            real = (torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]).to(self.idf.dtype)
        counts = torch.zeros(len(tokens), self.config.vocab, dtype=self.idf.dtype, device=tokens.device)
        counts.scatter_add_(1, tokens, real)  # (B, V)
        frequencies = torch.where(counts > 0, 1 + counts.clamp(min=1).log(), 0)
        words = F.normalize(frequencies * self.idf, dim=1)
        features = words if self.components is None else F.normalize(words @ self.components.T, dim=1)  # (B, V or K)
        return both_logits(self.output(features))
