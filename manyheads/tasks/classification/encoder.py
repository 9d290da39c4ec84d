"""A BERT without a head in use: texts in, a vector for each out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.tasks.classification.task import encode
from manyheads.tasks.outputs import outputs
from manyheads.tasks.predictor import TextPredictor


class Embedded(NamedTuple):
    """The vector of a text, of length one, and how many tokens it was made of."""

    vector: list[float]
    tokens: int


class Encoder(TextPredictor):
    """A BERT without a head, or with one that needs more than a text: it predicts nothing, and can be looked into."""

    verbs: ClassVar = ("embed", "attend")
    done: ClassVar = "embedded"

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> list[Embedded]:
        """A vector (D,) for every text: the mean of its tokens' last states, scaled to length one, so that the product
        of two is their cosine (Reimers and Gurevych 2019, section 3).

        truncate  cut texts that are longer than the model takes, instead of raising a UserError
        """
        model, compute = self.compiled
        encoded = encode(self.tokenizer, texts, None, self._room, truncate=truncate)

        def pooled(ids: Tensor, lengths: Tensor) -> Tensor:
            real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]  # (B, T)
            states = model.encode(ids, lengths)  # (B, T, D)
            return F.normalize((states * real[..., None]).sum(1) / lengths[:, None], dim=-1)

        vectors = dict(outputs(pooled, compute, encoded.ids, self.model.config.pad))
        return [Embedded(vectors[i].tolist(), len(ids)) for i, ids in enumerate(encoded.ids)]
