"""Embedding vectors of texts and images, and their scores on labeled data.

An embedding pools the hidden states of the tokens of a text or image, (T, D), to a vector (D,). Vectors have unit
length, so the dot product of two vectors is their cosine similarity (Reimers and Gurevych 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from manyheads.core.config import Config
from manyheads.core.interface import Encodes, Model
from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError, extra
from manyheads.inference import CompiledModel
from manyheads.interop.sentences import Pool
from manyheads.tasks.outputs import outputs
from manyheads.training.record import Metrics

NEIGHBORS = 10  # number of nearest training items whose labels decide


class Embedded(NamedTuple):
    """Embedding of a text or an image: a vector (D,), or the states of its tokens (T, D), and the number of tokens."""

    vector: NDArray[np.float32]
    tokens: int

    def __repr__(self) -> str:
        return f"Embedded(vector of {' x '.join(map(str, self.vector.shape))} numbers, tokens={self.tokens})"


class Embedder(Protocol):
    """Predictor with a model, as loaded and compiled."""

    path: Path

    @property
    def model(self) -> Model[Config]: ...
    @property
    def compute(self) -> ComputeConfig: ...
    @property
    def compiled(self) -> CompiledModel[Any]: ...


def embed_tokens(
    predictor: Embedder, ids: Sequence[NDArray[np.int32]], layer: int | None, pool: Pool, normalize: bool = True
) -> list[Embedded]:
    """Return the embedding of each text, given as token ids.

    layer      index of the layer whose output is used; None: the last one, with the final norm
    pool       "mean" or "max" of all tokens, "first" token, or "tokens": no pooling, states are not scaled
    normalize  True: scale vectors to unit length
    """
    states, compute = _states(predictor, layer)

    def pooled(tokens: Tensor, lengths: Tensor) -> Tensor:
        vectors = pooled_states(states(tokens, lengths), lengths, _checked(pool))
        return F.normalize(vectors, dim=-1) if normalize and pool != "tokens" else vectors

    vectors = dict(outputs(pooled, compute, ids, predictor.model.pad or 0))
    rows = (vectors[i][: len(text)] if pool == "tokens" else vectors[i] for i, text in enumerate(ids))
    return [Embedded(row.numpy(), len(text)) for row, text in zip(rows, ids, strict=True)]


def embed_pixels(predictor: Embedder, images: Tensor, layer: int | None, pool: Pool | None) -> list[Embedded]:
    """Return the embedding of each image of a preprocessed batch (B, C, Y, X).

    pool  as in `embed_tokens`; None: the features that a classification head reads, from the last layer
    """
    if layer is None and pool is None:
        model = predictor.compiled
        with torch.inference_mode(), model.compute.autocast():
            vectors = F.normalize(model.module.features(images.to(model.compute.device)).float(), dim=-1).cpu()
        return [Embedded(vector.numpy(), 1) for vector in vectors]
    states, compute = _states(predictor, layer)
    with torch.inference_mode(), compute.autocast():
        found = states(images.to(compute.device)).float()  # (B, T, D)
        lengths = torch.full(found.shape[:1], found.shape[1], device=found.device)
        vectors = pooled_states(found, lengths, _checked(pool or "mean")).cpu()
        vectors = vectors if pool == "tokens" else F.normalize(vectors, dim=-1)
    return [Embedded(vector.numpy(), found.shape[1]) for vector in vectors]


def vectors_of(found: list[Embedded], single: bool, as_array: bool) -> NDArray[np.float32] | Embedded | list[Embedded]:
    """Return embeddings as an array (N, D), or as a list. For a single item, return (D,) or its embedding."""
    if not as_array:
        return found[0] if single else found
    if any(vector.ndim > 1 for vector, _ in found):
        raise UserError('as_array needs one vector for each item: choose another pool than "tokens"')
    if not found:
        raise UserError("as_array needs one item or more, found none")
    return found[0].vector if single else np.stack([vector for vector, _ in found])


def label_scores(
    train: NDArray[np.float32], train_labels: Sequence[str], test: NDArray[np.float32], test_labels: Sequence[str]
) -> Metrics:
    """Return the accuracy on test vectors (N, D) of two classifiers that the training vectors (M, D) define.

    knn_accuracy    majority label of the nearest training vectors by cosine similarity
    probe_accuracy  logistic regression on standardized vectors: a linear probe
    """
    with extra("analysis", "scoring embeddings"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    if len({*train_labels}) < 2:
        raise UserError(f"expected two or more labels in the training data, found {len({*train_labels})}")
    count = min(NEIGHBORS, len(train))
    neighbors = KNeighborsClassifier(count, metric="cosine").fit(train, train_labels)
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(train, train_labels)
    signature = f"{len(test):,} items|{len(train):,} training items"
    return {
        "knn_accuracy": {
            "value": float(neighbors.score(test, test_labels)),
            "signature": f"{signature}|{count} nearest",
        },
        "probe_accuracy": {"value": float(probe.score(test, test_labels)), "signature": f"{signature}|L2 1.0"},
    }


def _states(predictor: Embedder, layer: int | None) -> tuple[Callable[..., Tensor], ComputeConfig]:
    """Return a function from model inputs to hidden states (B, T, D), and the compute settings."""
    model = predictor.model
    if not isinstance(model, Encodes):
        raise UserError(f"{predictor.path}: this model has no layers of tokens: leave layer and pool out")
    if layer is None and model.encode is not None:
        compiled = predictor.compiled
        return compiled.module.states, compiled.compute
    if layer is not None and not 0 <= layer < len(model.stack.blocks):
        raise UserError(f"layer is {layer}: expected 0 to {len(model.stack.blocks) - 1}")
    return partial(model.states, layer=layer), predictor.compute


def _checked(pool: Pool) -> Pool:
    if pool not in get_args(Pool):
        raise UserError(f"pool is {pool!r}: expected {', '.join(get_args(Pool))}")
    return pool


def pooled_states(states: Tensor, lengths: Tensor, pool: Pool) -> Tensor:
    """Return vectors (B, D) from states (B, T, D), or the states for "tokens"."""
    if pool == "tokens":
        return states
    if pool == "first":
        return states[:, 0]
    is_real = (torch.arange(states.shape[1], device=states.device) < lengths[:, None])[..., None]
    if pool == "max":
        return states.masked_fill(~is_real, -torch.inf).amax(1)
    return (states * is_real).sum(1) / lengths[:, None]
