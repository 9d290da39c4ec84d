"""Sampling: how the next token is chosen from its logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import UserError
from manyheads.generation.protocol import largest


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its logits; what is said first is applied first.

    repetition_penalty  divides the positive logits of tokens that the text has, and multiplies negative ones (Keskar et
                        al. 2019, section 4.1); 1 does nothing
    temperature         divides the logits; 0 takes the most probable token (of equal ones the smallest id)
    top_k               keeps the k most probable tokens, and those as probable as the last (Fan et al. 2018)
    top_p               keeps the fewest most probable tokens that together have this probability (Holtzman et al. 2020)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or 1e-3 <= self.temperature <= 1e3):  # nan neither
            raise UserError(f"temperature must be 0, or from 0.001 to 1000, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 1e-3 <= self.repetition_penalty <= 1e3:
            raise UserError(f"repetition_penalty must be from 0.001 to 1000, got {self.repetition_penalty}")

    def choose(self, logits: Tensor, seen: Tensor | None, chances: Callable[[], Tensor]) -> Tensor:
        """logits (B, V), tokens that each text has (B, V), numbers from 0 to 1 (B,) when asked for -> tokens (B,)."""
        logits = self.filtered(logits, seen)
        if self.temperature == 0:
            return largest(logits)
        # the inverse of the distribution function: one number a token, whatever the vocabulary and the batch
        heights = logits.softmax(-1).double().cumsum(-1)  # (B, V)
        return (heights <= chances().to(heights.device)[:, None] * heights[:, -1:]).sum(-1)

    def filtered(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """logits (B, V) -> logits (B, V), -inf for what is not to be chosen; `seen` (B, V) for the penalty."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if seen is not None and self.repetition_penalty != 1:
            penalised = torch.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = torch.where(seen, penalised, logits)
        if self.temperature == 0:
            return logits
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, at = logits.sort(descending=True, stable=True)
            shares = ordered.softmax(-1)
            beyond = shares.cumsum(-1) - shares >= self.top_p  # what is more probable suffices; never so for the first
            beyond[:, 0] = False
            logits = logits.masked_fill(beyond.scatter(-1, at, beyond), -torch.inf)
        return logits
