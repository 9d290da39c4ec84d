"""Ensemble of translation models with one vocabulary, which decodes like a single model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from manyheads.core.interface import Cache
from manyheads.inference import CompiledModel
from manyheads.models.encoder_decoder import TranslationModel
from manyheads.tasks.translation.decoding import never_written

R = TypeVar("R")
S = TypeVar("S")


class EnsembleCache:
    """Caches of all models of an ensemble for the same rows."""

    def __init__(self, parts: Sequence[Cache]) -> None:
        self.parts = parts

    @property
    def lengths(self) -> Tensor:
        return self.parts[0].lengths

    def select(self, rows: Tensor) -> None:
        for part in self.parts:
            part.select(rows)


class Ensemble:
    """Ensemble of translation models. Its log-probability of a token is the renormalized mean over the models.

    models  models prepared for inference. The ensemble has the configuration of the first model
    """

    def __init__(self, models: Sequence[CompiledModel[TranslationModel]]) -> None:
        self._models, first = models, models[0]
        limit = min(model.config.max_positions for model in models)
        self.config, self.source_pad = replace(first.config, max_positions=limit), first.source_pad
        self.compute = first.compute
        # Workers share the rows of a batch only if all models have fused kernels.
        is_fused = all(model.precision is not None for model in models)
        self._first = first if is_fused else CompiledModel(first.module, first.compute)

    def start(self, source: Tensor, lengths: Tensor | None, capacity: int) -> EnsembleCache:
        parts = []
        for model in self._models:
            with model.compute.autocast():
                parts.append(model.start(source, lengths, capacity))
        return EnsembleCache(parts)

    def step(self, tokens: Tensor, cache: EnsembleCache) -> Tensor:
        """Return the mean log-probabilities (B, T, V) over the models.

        In each model, tokens that a translation never contains have the probability zero (`never_written`).
        """
        scores = []
        for model, part in zip(self._models, cache.parts, strict=True):
            with model.compute.autocast():
                rows = model.step(tokens, part).flatten(0, 1)
                logits, _, log_sums = model.reduce(rows, never_written(model))
            scores.append(logits - log_sums[:, None])
        return torch.stack(scores).mean(0).unflatten(0, tokens.shape)

    def reduce(self, logits: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits (R, V), the maxima of their blocks, and their log-sum-exp, as in `CompiledModel`."""
        return self._first.reduce(logits, suppress)

    def map_parts(self, function: Callable[[list[R]], list[S]], rows: list[R], min_rows: int) -> list[S]:
        """Return function(rows). Several workers share the rows if that is faster, as in `CompiledModel`."""
        return self._first.map_parts(function, rows, min_rows)
