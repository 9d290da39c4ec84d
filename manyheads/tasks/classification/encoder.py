"""Embedding vectors of texts, computed by a BERT without a task head."""

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
    """Embedding vector of a text, scaled to unit length, and the number of its tokens."""

    vector: list[float]
    tokens: int


class Encoder(TextPredictor):
    """BERT that computes embeddings and attention maps, but makes no predictions, as returned by `manyheads.load`.

    It has no task head, or a task head that compares several texts.
    """

    verbs: ClassVar = ("embed", "attend")
    done: ClassVar = "embedded"

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> list[Embedded]:
        """Return the embedding vector of every text, (D,).

        The embedding is the mean of the last hidden states of the text's tokens, scaled to unit length. The dot product
        of two embeddings is their cosine similarity (Reimers and Gurevych 2019, section 3).

        truncate  true: cut texts that are longer than the model's limit; false: raise UserError for such texts

            >>> import numpy as np
            >>> cat, dog = (np.array(e.vector) for e in encoder.embed(["the cat", "the dog"]))
            >>> bool(-1 <= cat @ dog <= 1)  # cosine similarity
            True
        """
        model, compute = self.compiled
        encoded = encode(self.tokenizer, texts, None, self._max_tokens, truncate=truncate)

        def pooled(ids: Tensor, lengths: Tensor) -> Tensor:
            is_real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]  # (B, T)
            states = model.encode(ids, lengths)  # (B, T, D)
            return F.normalize((states * is_real[..., None]).sum(1) / lengths[:, None], dim=-1)

        vectors = dict(outputs(pooled, compute, encoded.ids, self.model.config.pad))
        return [Embedded(vectors[i].tolist(), len(ids)) for i, ids in enumerate(encoded.ids)]
