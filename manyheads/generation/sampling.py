"""Sampling: the next token of many texts at once, each with a random generator of its own.

Texts of unequal length share a batch: they are read padded on the right, and the cache forgets the padding, so that a
row computes what it would compute alone. A row draws one number a token from a generator of its own, so what it becomes
depends on its seed and not on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from manyheads.generation.protocol import Cache, largest


class RewindableCache(Cache, Protocol):
    """A cache whose rows can forget."""

    def advance(self, positions: Tensor) -> None:
        """Count so many positions more for each row (B,), or fewer."""

    def replace(self, rows: Tensor, other: Self) -> None:
        """Rows (N,) hold what the N rows of another cache hold."""


F = TypeVar("F", bound=RewindableCache)
F_contra = TypeVar("F_contra", bound=RewindableCache, contravariant=True)


class StepAt(Protocol[F_contra]):
    """A `Step` that can be told which position of each row is wanted: a vocabulary is large, and a prompt is long."""

    def __call__(self, tokens: Tensor, cache: F_contra, at: Tensor | None = None, /) -> Tensor:
        """at (B,) -> logits (B, 1, V) of those alone."""


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
            raise ValueError(f"temperature must be 0, or from 0.001 to 1000, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 1e-3 <= self.repetition_penalty <= 1e3:
            raise ValueError(f"repetition_penalty must be from 0.001 to 1000, got {self.repetition_penalty}")

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


@torch.inference_mode()
def sample(
    start: Callable[[int, int], F],
    step: StepAt[F],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    context: int,
    limits: Sequence[int],
    seeds: Sequence[int],
    end: int | None = None,
    over: Callable[[int, int], bool] = lambda row, token: False,
) -> Iterator[list[tuple[int, int]]]:
    """Continue every prompt: yields, position by position, the (row, token) of all rows that go on.

    start    (rows, capacity) -> an empty cache.
    prompts  ids, at least one each and at most `context`.
    context  positions that the model takes. A text that grows beyond them goes on from its latter half: its tokens are
             read again, as if it began there.
    limits   the most tokens that each row may get; `seeds` of their generators.
    end      ends a row; it is not yielded.
    over     is called with every row and token; a row for which it returns True gets no more.
    """
    assert all(0 < len(prompt) <= context for prompt in prompts), "the caller checks the prompts"
    texts = [[*prompt] for prompt in prompts]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    rows = [row for row, limit in enumerate(limits) if limit > 0]
    firsts: list[int] = []  # of each row, the first token that it reads
    seen: Tensor | None = None
    cache: F | None = None
    while rows:
        wanted = [_first(len(texts[row]), context) for row in rows]
        if cache is None:
            capacity = min(context, max(len(texts[row]) + limits[row] for row in rows))
            cache = start(len(rows), capacity)
            logits = _prefill(step, cache, [texts[row] for row in rows])
        else:
            if moved := [i for i, first in enumerate(wanted) if first != firsts[i]]:
                fresh = start(len(moved), capacity)
                if context > 1:
                    _prefill(step, fresh, [texts[rows[i]][wanted[i] : -1] for i in moved])
                cache.replace(torch.tensor(moved, device=cache.lengths.device), fresh)
            last = torch.tensor([[texts[row][-1]] for row in rows], device=cache.lengths.device)
            logits = step(last, cache)[:, -1]  # (R, V)
        firsts = wanted
        if sampling.repetition_penalty != 1:
            if seen is None:
                seen = torch.zeros(len(texts), logits.shape[-1], dtype=torch.bool, device=logits.device)
                for row, text in enumerate(texts):
                    seen[row, text] = True
            for row in rows:
                seen[row, texts[row][-1]] = True

        def chances(rows: list[int] = rows) -> Tensor:
            return torch.cat([torch.rand(1, dtype=torch.float64, generator=generators[row]) for row in rows])

        chosen = sampling.choose(logits, None if seen is None else seen[rows], chances).tolist()
        sampled = [(row, token) for row, token in zip(rows, chosen, strict=True) if token != end]
        for row, token in sampled:
            texts[row].append(token)
        going_on = {row for row, token in sampled if not over(row, token)}
        going_on = {row for row in going_on if len(texts[row]) - len(prompts[row]) < limits[row]}
        keep = [i for i, row in enumerate(rows) if row in going_on]
        yield sampled
        if len(keep) < len(rows):
            rows, firsts = [rows[i] for i in keep], [firsts[i] for i in keep]
            cache.select(torch.tensor(keep, dtype=torch.long, device=cache.lengths.device))


def _first(length: int, context: int) -> int:
    """The first token that a text of so many reads: 0 while it fits, then always a multiple of half the context."""
    half = max(1, context // 2)
    return 0 if length <= context else -(-(length - context) // half) * half


def _prefill(step: StepAt[F], cache: F, texts: Sequence[Sequence[int]]) -> Tensor:
    """Read texts of unequal length into an empty cache: the logits (B, V) of what follows each."""
    device, longest = cache.lengths.device, max(map(len, texts))
    tokens = torch.tensor([[*text, *[text[-1]] * (longest - len(text))] for text in texts], device=device)
    lengths = torch.tensor([len(text) for text in texts], device=device)
    logits = step(tokens, cache, lengths - 1)  # (B, 1, V); nothing real looks at the padding behind it
    cache.advance(lengths - longest)
    return logits[:, 0]
