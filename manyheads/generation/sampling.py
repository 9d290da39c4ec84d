"""Sampling of the next token from its logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import UserError
from manyheads.generation.protocol import argmax_rows


@dataclass(frozen=True)
class Sampling:
    """Settings for sampling the next token from its logits, listed in the order in which they are applied.

    repetition_penalty  divides positive logits and multiplies negative logits of tokens that the text already contains
                        (Keskar et al. 2019, section 4.1); 1 has no effect
    temperature         divides the logits; 0 selects the most probable token (of equal ones the smallest id)
    top_k               keeps the k most probable tokens, and further tokens that are as probable as the k-th one (Fan
                        et al. 2018)
    top_p               keeps the smallest set of most probable tokens whose total probability reaches this value
                        (Holtzman et al. 2020)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        # The condition has this form so that it is also true for NaN.
        if not (self.temperature == 0 or 1e-3 <= self.temperature <= 1e3):
            raise UserError(f"temperature is {self.temperature}: expected 0, or a number from 0.001 to 1000")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k is {self.top_k}: expected at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}: expected a number above 0 and at most 1")
        if not 1e-3 <= self.repetition_penalty <= 1e3:
            raise UserError(f"repetition_penalty is {self.repetition_penalty}: expected a number from 0.001 to 1000")

    def choose(self, logits: Tensor, seen: Tensor | None, chances: Callable[[], Tensor]) -> Tensor:
        """Return the next tokens (B,) for logits (B, V).

        seen     mask (B, V), True for the tokens that each text already contains
        chances  function that returns one random number from 0 to 1 for each row, (B,). Called only if needed
        """
        logits = self.filtered(logits, seen)
        if self.temperature == 0:
            return argmax_rows(logits)
        # Inverse transform sampling needs one random number per token, whatever the size of vocabulary and batch.
        cumulative = logits.softmax(-1).double().cumsum(-1)  # (B, V)
        return (cumulative <= chances().to(cumulative.device)[:, None] * cumulative[:, -1:]).sum(-1)

    def filtered(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return the logits (B, V) after applying the settings, with minus infinity for excluded tokens.

        seen  mask (B, V), True for the tokens that each text already contains, for the repetition penalty
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if seen is not None and self.repetition_penalty != 1:
            penalized = torch.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = torch.where(seen, penalized, logits)
        if self.temperature == 0:
            return logits
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            threshold = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < threshold, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, at = logits.sort(descending=True, stable=True)
            probabilities = ordered.softmax(-1)
            excluded = (
                probabilities.cumsum(-1) - probabilities >= self.top_p
            )  # Exclude the tokens after the total probability reaches top_p, but never the first token.
            excluded[:, 0] = False
            logits = logits.masked_fill(excluded.scatter(-1, at, excluded), -torch.inf)
        return logits
