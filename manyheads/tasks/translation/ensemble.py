"""Ensemble of translation models with one vocabulary, which decodes like a single model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError
from manyheads.generation.protocol import BLOCK, Cache, reduced
from manyheads.inference import fused_projection, reduction
from manyheads.tasks.translation.decoding import never_written


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
    """Models whose mean log-probability of each token, after renormalization, is the log-probability of the ensemble.

    models  models prepared for inference, each with its compute settings. The first one's configuration counts
    """

    def __init__(self, models: Sequence[tuple[Any, ComputeConfig]]) -> None:
        self._models = models
        first = models[0][0]
        limit = min(model.config.max_positions for model, _ in models)
        self.config, self.source_pad = replace(first.config, max_positions=limit), first.source_pad
        if all(fused_projection(model) is not None for model, _ in models):
            self.project = first.project  # All have fused kernels, so their workers can share the rows.

    def start(self, source: Tensor, lengths: Tensor, capacity: int) -> EnsembleCache:
        parts = []
        for model, compute in self._models:
            with compute.autocast():
                parts.append(model.start(source, lengths, capacity))
        return EnsembleCache(parts)

    def step(self, tokens: Tensor, cache: EnsembleCache) -> Tensor:
        """Return the mean log-probabilities (B, T, V). Tokens that are never written are excluded in each model."""
        scores = []
        for (model, compute), part in zip(self._models, cache.parts, strict=True):
            with compute.autocast():
                rows = model.step(tokens, part).flatten(0, 1)
                logits, _, log_sums = (reduction(model) or reduced)(rows, never_written(model), BLOCK)
            scores.append(logits - log_sums[:, None])
        return torch.stack(scores).mean(0).unflatten(0, tokens.shape)


def joined(first: Any, others: Sequence[Any]) -> Any:
    """Return a translator that is the ensemble of all. Raises UserError unless vocabulary and languages agree."""
    for other in others:
        if not hasattr(other, "target_tokenizer"):
            raise UserError(f"{other!r}: expected a translator, as manyheads.load returns it")
        if _vocabulary(other) != _vocabulary(first):
            raise UserError(
                f"{other.path}: its vocabulary differs from that of {first.path}: an ensemble needs one vocabulary, "
                "such as of runs on the same data with another seed or model"
            )
        if other.languages and first.languages and other.languages != first.languages:
            raise UserError(
                f"{other.path} translates from {' to '.join(other.languages)}, but {first.path} from"
                f" {' to '.join(first.languages)}: an ensemble needs one pair of languages"
            )
    result = copy.copy(first)
    result.model = copy.copy(first.model)  # The copy shares the weights; only its limit may differ.
    limit = min(translator.model.config.max_positions for translator in (first, *others))
    result.model.config = replace(first.model.config, max_positions=limit)
    result.others = (*first.others, *others)
    return result


def _vocabulary(translator: Any) -> tuple[Any, ...]:
    model, c = translator.model, translator.model.config
    tokenizers = translator.tokenizer.to_str(), translator.target_tokenizer.to_str()
    return *tokenizers, c.pad, c.start, c.end, model.source_pad
