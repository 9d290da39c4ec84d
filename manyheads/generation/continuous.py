"""Texts that are continued together, and come and go between steps (iteration-level scheduling, Yu et al. 2022).

Texts of unequal length share a batch: they are read padded on the right, and the cache forgets the padding, so that a
row computes what it would compute alone. A row draws one number a token from a generator of its own, so what it becomes
depends on its seed and not on its neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from manyheads.generation.protocol import Cache
from manyheads.generation.sampling import Sampling

ROUND = 128  # a cache has a multiple of so many positions: few that come make all rows grow, or shrink


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


@dataclass(eq=False)
class Text:
    """One of the texts of a `ContinuousBatch`.

    ids    so far, at least one, and at first no more than the model takes
    limit  the most tokens that it may get; `seed` of the generator that chooses them
    first  the first of its tokens that is read
    """

    ids: list[int]
    sampling: Sampling
    limit: int
    seed: int
    first: int = 0
    prompt: int = field(init=False)
    ended: bool = field(default=False, init=False)
    seen: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)
        self.generator = torch.Generator().manual_seed(self.seed)

    @property
    def added(self) -> int:
        """Tokens that it got."""
        return len(self.ids) - self.prompt


class ContinuousBatch(Generic[F]):
    """Continues texts; each step gives one token to all that have been read.

    start      (rows, capacity) -> an empty cache.
    context    positions that the model takes. A text that grows beyond them goes on from its latter half: its tokens
               are read again, as if it began there.
    end        ends a text; it is not among its tokens.
    chunk      tokens of new texts that are read in one step, while the others go on; None: all at once.
    rows       texts at once; `positions` that these may hold together. The others wait in their order; one that needs
               more than that is continued alone.
    unit       of a row's positions; 1 where nobody comes later, for whom the others would have to grow.
    """

    def __init__(
        self, start: Callable[[int, int], F], step: StepAt[F], *, context: int, end: int | None = None,
        chunk: int | None = None, rows: int | None = None, positions: int | None = None, unit: int = ROUND,
    ) -> None:  # fmt: skip
        self._start, self._step, self._context, self._end, self._unit = start, step, context, end, unit
        self._chunk, self._rows, self._positions = chunk, rows, positions
        self.waiting: deque[Text] = deque()
        self.texts: list[Text] = []  # row by row of the cache
        self._reading: _Reading[F] | None = None
        self._gone: set[Text] = set()  # of both, those that get no more tokens
        self._cache: F | None = None
        self._capacity = 0

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        rows = len(self.texts) + (len(self._reading.texts) if self._reading else 0)
        return bool(self.waiting) or rows > len(self._gone)

    def admit(self, texts: Sequence[Text]) -> None:
        """From the next step on, or as soon as there is room."""
        assert all(0 < len(text.ids) <= self._context for text in texts), "the caller checks the prompts"
        self.waiting.extend(text for text in texts if text.limit > 0)

    def drop(self, texts: Collection[Text]) -> None:
        """These get no more tokens."""
        if any(text in self.waiting for text in texts):
            self.waiting = deque(text for text in self.waiting if text not in texts)
        self._gone |= {text for text in texts if text in self.texts or (self._reading and text in self._reading.texts)}

    @torch.inference_mode()
    def step(self) -> list[tuple[Text, int]]:
        """The next token of every text that has been read; one that has ended, or reached its limit, leaves."""
        self._leave()
        self._begin()
        logits = [self._next()] if self.texts else []  # (R, V)
        if self._reading is not None and self._reading.read(self._step, self._chunk):
            logits += self._join(self._reading)
            self._reading = None
        if not logits:
            return []
        sampled = []
        for text, token in zip(self.texts, self._choose(torch.cat(logits)), strict=True):
            if token == self._end:
                text.ended = True
            else:
                text.ids.append(token)
                sampled.append((text, token))
            if text.ended or text.added == text.limit:
                self._gone.add(text)
        return sampled

    def _leave(self) -> None:
        """The last rows take the places of those that have left: nothing else moves."""
        if self._reading is not None and self._gone.issuperset(self._reading.texts):
            self._gone -= {*self._reading.texts}
            self._reading = None
        if not self._gone.intersection(self.texts):
            return
        keep = [row for row, text in enumerate(self.texts) if text not in self._gone]
        self._gone -= {*self.texts}
        if not keep:
            self.texts, self._cache = [], None
            return
        rows, behind = [*range(len(keep))], [row for row in keep if row >= len(keep)]
        for hole in set(rows) - set(keep):
            rows[hole] = behind.pop()
        self.texts = [self.texts[row] for row in rows]
        assert self._cache is not None
        self._cache.select(torch.tensor(rows, device=self._cache.lengths.device))

    def _begin(self) -> None:
        """Those that wait and for which there is room are read, together."""
        if self._reading is not None or not self.waiting:
            return
        chosen: list[Text] = []
        capacity = max(map(self._needed, self.texts), default=0)  # less than it is, where the longest have left
        while self.waiting and (self._rows is None or len(self.texts) + len(chosen) < self._rows):
            needed = max(capacity, self._needed(self.waiting[0]))
            rows = len(self.texts) + len(chosen)
            if rows and self._positions is not None and (rows + 1) * needed > self._positions:
                break
            capacity = needed
            chosen.append(self.waiting.popleft())
        if chosen:
            self._reading = _Reading(chosen, self._start(len(chosen), capacity))
            self._resize(capacity)

    def _needed(self, text: Text) -> int:
        """Positions of a row for this text with all that it may get."""
        return min(self._context, -(-(text.prompt + text.limit) // self._unit) * self._unit)

    def _resize(self, capacity: int) -> None:
        """Rows that hold so much; what they hold stays."""
        if self._cache is not None and capacity != self._capacity:
            old, self._cache = self._cache, self._start(len(self.texts), capacity)
            self._cache.replace(torch.arange(len(self.texts), device=old.lengths.device), old)
        self._capacity = capacity

    def _next(self) -> Tensor:
        """The logits (R, V) of what follows each text."""
        cache = self._cache
        assert cache is not None
        device = cache.lengths.device
        wanted = [_first(len(text.ids), self._context) for text in self.texts]
        if moved := [row for row, text in enumerate(self.texts) if wanted[row] != text.first]:
            fresh = self._start(len(moved), self._capacity)
            if self._context > 1:
                again = [Text(self.texts[row].ids[wanted[row] : -1], Sampling(), 0, 0) for row in moved]
                _Reading(again, fresh).read(self._step, None)
            cache.replace(torch.tensor(moved, device=device), fresh)
            for row in moved:
                self.texts[row].first = wanted[row]
        last = torch.tensor([[text.ids[-1]] for text in self.texts], device=device)
        return self._step(last, cache)[:, -1]

    def _join(self, reading: _Reading[F]) -> list[Tensor]:
        """Texts that have been read take rows behind the others; the logits (R, V) of what follows each."""
        keep = [row for row, text in enumerate(reading.texts) if text not in self._gone]
        self._gone -= {*reading.texts}
        if not keep:
            return []
        device = reading.cache.lengths.device
        if len(keep) < len(reading.texts):
            reading.cache.select(torch.tensor(keep, device=device))
        if self._cache is None:
            self._cache = reading.cache
        else:
            before, count = len(self.texts), len(keep)
            self._cache.select(torch.tensor([*range(before), *[0] * count], device=device))
            self._cache.replace(torch.arange(before, before + count, device=device), reading.cache)
        self.texts += [reading.texts[row] for row in keep]
        return [torch.stack([reading.logits[row] for row in keep])]

    def _choose(self, logits: Tensor) -> list[int]:
        """Tokens (R,) for logits (R, V): those of texts with the same settings together."""
        alike: dict[Sampling, list[int]] = {}
        for row, text in enumerate(self.texts):
            alike.setdefault(text.sampling, []).append(row)
        chosen = [0] * len(self.texts)
        for sampling, rows in alike.items():
            seen = None
            if sampling.repetition_penalty != 1:
                seen = torch.stack([_seen(self.texts[row], logits) for row in rows])  # (N, V)

            def chances(rows: list[int] = rows) -> Tensor:
                draws = [torch.rand(1, dtype=torch.float64, generator=self.texts[row].generator) for row in rows]
                return torch.cat(draws)

            some = logits if len(rows) == len(self.texts) else logits[rows]
            for row, token in zip(rows, sampling.choose(some, seen, chances).tolist(), strict=True):
                chosen[row] = token
        return chosen


class _Reading(Generic[F]):
    """Texts of unequal length that are read into an empty cache, a part of each at a time."""

    def __init__(self, texts: Sequence[Text], cache: F) -> None:
        self.texts, self.cache = texts, cache
        device, longest = cache.lengths.device, max(len(text.ids) for text in texts)
        rows = [[*text.ids, *text.ids[-1:] * (longest - len(text.ids))] for text in texts]
        self._tokens = torch.tensor(rows, device=device)  # (B, longest)
        self._lengths = torch.tensor([len(text.ids) for text in texts], device=device)
        self._done = 0  # columns that have been read
        self.logits: dict[int, Tensor] = {}  # of each row (V,), what follows it

    def read(self, step: StepAt[F], chunk: int | None) -> bool:
        """At most so many tokens, and at least one of each text; whether all have been read."""
        rows, longest = self._tokens.shape
        until = longest if chunk is None else min(longest, self._done + max(1, chunk // rows))
        last = self._lengths - 1 - self._done  # (B,)
        logits = step(self._tokens[:, self._done : until], self.cache, last.clamp(0, until - self._done - 1))
        for row, at in enumerate(last.tolist()):
            if 0 <= at < until - self._done:
                self.logits[row] = logits[row, 0]
        self._done = until
        if until < longest:
            return False
        self.cache.advance(self._lengths - longest)  # nothing real has looked at the padding
        return True


def _seen(text: Text, logits: Tensor) -> Tensor:
    """Which tokens (V,) a text has."""
    if text.seen is None:
        text.seen = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        text.seen[text.ids] = True
    text.seen[text.ids[-1]] = True
    return text.seen


def _first(length: int, context: int) -> int:
    """The first token that a text of so many reads: 0 while it fits, then always a multiple of half the context."""
    half = max(1, context // 2)
    return 0 if length <= context else -(-(length - context) // half) * half


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

    limits   the most tokens that each row may get; `seeds` of their generators.
    over     is called with every row and token; a row for which it returns True gets no more.
    The others are those of `ContinuousBatch`.
    """
    texts = [Text([*ids], sampling, n, seed) for ids, n, seed in zip(prompts, limits, seeds, strict=True)]
    rows = {text: row for row, text in enumerate(texts)}
    batch = ContinuousBatch(start, step, context=context, end=end, unit=1)
    batch.admit(texts)
    while batch.busy:
        sampled = batch.step()
        batch.drop([text for text, token in sampled if over(rows[text], token)])
        yield [(rows[text], token) for text, token in sampled]
