"""Continuous batching: several texts are generated together, and texts may join or leave the batch between steps.

Source: Yu et al. 2022. Texts of unequal length share a batch. Prompts are padded on the right, and the cache drops the
padding, so that each text is the same as if it were generated alone. Each text has a separate random generator, which
gives one random number per token. Therefore a text depends on its seed, but not on the other texts.
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
from manyheads.generation.scoring import TokenScore, token_scores

# The capacity of the key-value cache is a multiple of this number of positions, so that it is rarely resized when texts
# join or leave.
CAPACITY_UNIT = 128


class RewindableCache(Cache, Protocol):
    """Key-value cache whose rows can drop their last positions."""

    def advance(self, count: Tensor) -> None:
        """Change the number of cached positions of each row by `count` (B,).

        Negative numbers drop the last positions.
        """

    def replace(self, rows: Tensor, other: Self) -> None:
        """Copy the N rows of another cache to the rows with the given indices (N,)."""


F = TypeVar("F", bound=RewindableCache)
F_contra = TypeVar("F_contra", bound=RewindableCache, contravariant=True)


class StepAt(Protocol[F_contra]):
    """Protocol of a `Step` function with an additional argument `at`, the only position whose logits are needed.

    For a long prompt, this avoids computing logits over the whole vocabulary at every position.
    """

    def __call__(self, tokens: Tensor, cache: F_contra, at: Tensor | None = None, /) -> Tensor:
        """Return logits (B, 1, V) for one position of each row only: the next token after the position `at` (B,)."""


@dataclass(eq=False)
class Text:
    """Text that is generated in a `ContinuousBatch`.

    ids       token ids so far. At first, these are the prompt, which has at least one token and at most the context
              length of the model
    sampling  settings for sampling the next token
    limit     maximum number of generated tokens
    seed      seed of the random generator that samples the tokens
    first     index of the first token in `ids` that the model reads. Earlier tokens no longer fit into its context
    top       number of likeliest tokens that `scores` lists for each generated token. If None, `scores` is empty
    """

    ids: list[int]
    sampling: Sampling
    limit: int
    seed: int
    first: int = 0
    top: int | None = None
    scores: list[TokenScore] = field(default_factory=list, init=False)
    prompt: int = field(init=False)
    ended: bool = field(default=False, init=False)
    seen: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)
        self.generator = torch.Generator().manual_seed(self.seed)

    @property
    def added(self) -> int:
        """Return the number of generated tokens."""
        return len(self.ids) - self.prompt


class ContinuousBatch(Generic[F]):
    """Batch of texts in which each step generates one token for every text whose prompt has been read.

    start       function of (rows, capacity) that returns an empty key-value cache
    step        function of the model that returns logits (see `StepAt`)
    context     context length of the model. If a text becomes longer, the model reads its second half again, as if the
                text began there, and continues
    end         token that ends a text; it is not added to the text
    chunk       maximum number of prompt tokens that are read in a step while other texts are generated. If None, whole
                prompts are read in one step
    rows        maximum number of texts in the batch. If None, it is not limited
    max_cached  maximum total capacity of all rows of the cache, in positions. Further texts wait in order. A text that
                needs a larger capacity is generated alone
    unit        number to whose multiple the capacity of a row is rounded up. It is 1 if no text will join later,
                because no padding is needed then
    suppressed  ids that are never generated, such as ids without a token
    """

    def __init__(
        self, start: Callable[[int, int], F], step: StepAt[F], *, context: int, end: int | None = None,
        chunk: int | None = None, rows: int | None = None, max_cached: int | None = None, unit: int = CAPACITY_UNIT,
        suppressed: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._start, self._step, self._context, self._end, self._unit = start, step, context, end, unit
        self._chunk, self._rows, self._max_cached = chunk, rows, max_cached
        self._suppressed = torch.tensor(suppressed) if suppressed else None
        self.waiting: deque[Text] = deque()
        self.texts: list[Text] = []  # text in each row of the key-value cache
        self._reading: _Reading[F] | None = None
        # texts that the caller has stopped before they were finished
        self._finished: set[Text] = set()
        self._cache: F | None = None
        self._capacity = 0

    @property
    def busy(self) -> bool:
        """Return True if another step would generate tokens or read a prompt."""
        rows = len(self.texts) + (len(self._reading.texts) if self._reading else 0)
        return bool(self.waiting) or rows > len(self._finished)

    def admit(self, texts: Sequence[Text]) -> None:
        """Add texts to the queue. They join the batch at the next step, or as soon as the limits allow."""
        assert all(0 < len(text.ids) <= self._context for text in texts), (
            "expected prompts with at least one token and at most the context length"
        )
        self.waiting.extend(text for text in texts if text.limit > 0)

    def drop(self, texts: Collection[Text]) -> None:
        """Stop generating the given texts."""
        if any(text in self.waiting for text in texts):
            self.waiting = deque(text for text in self.waiting if text not in texts)
        self._finished |= {t for t in texts if t in self.texts or (self._reading and t in self._reading.texts)}

    @torch.inference_mode()
    def step(self) -> list[tuple[Text, int]]:
        """Generate and return the next token of every text whose prompt has been read.

        Finished texts leave the batch.
        """
        self._remove_finished()
        self._start_reading()
        logits = [self._next_logits()] if self.texts else []  # (R, V)
        if self._reading is not None and self._reading.read(self._step, self._chunk):
            logits += self._append_read(self._reading)
            self._reading = None
        if not logits:
            return []
        sampled = []
        joined = torch.cat(logits)  # (R, V)
        if self._suppressed is not None:
            joined[:, self._suppressed.to(joined.device)] = -torch.inf
        for row, (text, token) in enumerate(zip(self.texts, self._sample(joined), strict=True)):
            if token == self._end:
                text.ended = True
            else:
                if text.top is not None:
                    text.scores += token_scores(joined[row : row + 1], [token], text.top)
                text.ids.append(token)
                sampled.append((text, token))
            if text.ended or text.added == text.limit:
                self._finished.add(text)
        return sampled

    def _remove_finished(self) -> None:
        """Remove the finished texts from the batch.

        The last rows of the key-value cache move into the free rows. All other rows remain in place.
        """
        if self._reading is not None and self._finished.issuperset(self._reading.texts):
            self._finished -= {*self._reading.texts}
            self._reading = None
        if not self._finished.intersection(self.texts):
            return
        keep = [row for row, text in enumerate(self.texts) if text not in self._finished]
        self._finished -= {*self.texts}
        if not keep:
            self.texts, self._cache = [], None
            return
        rows, movable = [*range(len(keep))], [row for row in keep if row >= len(keep)]
        for free in set(rows) - set(keep):
            rows[free] = movable.pop()
        self.texts = [self.texts[row] for row in rows]
        assert self._cache is not None
        self._cache.select(torch.tensor(rows, device=self._cache.lengths.device))

    def _start_reading(self) -> None:
        """Start reading the prompts of the waiting texts that fit into the batch."""
        if self._reading is not None or not self.waiting:
            return
        selected: list[Text] = []
        # capacity of a row that the current texts need; less than the current capacity if longer texts have left
        capacity = max(map(self._row_capacity, self.texts), default=0)
        while self.waiting and (self._rows is None or len(self.texts) + len(selected) < self._rows):
            required = max(capacity, self._row_capacity(self.waiting[0]))
            rows = len(self.texts) + len(selected)
            if rows and self._max_cached is not None and (rows + 1) * required > self._max_cached:
                break
            capacity = required
            selected.append(self.waiting.popleft())
        if selected:
            self._reading = _Reading(selected, self._start(len(selected), capacity))
            self._resize(capacity)

    def _row_capacity(self, text: Text) -> int:
        """Return the number of cache positions that a text needs at most."""
        return min(self._context, -(-(text.prompt + text.limit) // self._unit) * self._unit)

    def _resize(self, capacity: int) -> None:
        """Change the capacity of all rows of the key-value cache and keep their content."""
        if self._cache is not None and capacity != self._capacity:
            old, self._cache = self._cache, self._start(len(self.texts), capacity)
            self._cache.replace(torch.arange(len(self.texts), device=old.lengths.device), old)
        self._capacity = capacity

    def _next_logits(self) -> Tensor:
        """Return the logits of the next token of each text in the batch, (R, V) for R texts."""
        cache = self._cache
        assert cache is not None
        device = cache.lengths.device
        firsts = [_first_read(len(text.ids), self._context) for text in self.texts]
        if shifted := [row for row, text in enumerate(self.texts) if firsts[row] != text.first]:
            fresh = self._start(len(shifted), self._capacity)
            if self._context > 1:
                rereads = [Text(self.texts[row].ids[firsts[row] : -1], Sampling(), 0, 0) for row in shifted]
                _Reading(rereads, fresh).read(self._step, None)
            cache.replace(torch.tensor(shifted, device=device), fresh)
            for row in shifted:
                self.texts[row].first = firsts[row]
        last = torch.tensor([[text.ids[-1]] for text in self.texts], device=device)
        return self._step(last, cache)[:, -1]

    def _append_read(self, reading: _Reading[F]) -> list[Tensor]:
        """Add the texts whose prompts have been read to the batch, and their rows to the key-value cache.

        Returns the logits (R, V) of the next token of each of these texts.
        """
        keep = [row for row, text in enumerate(reading.texts) if text not in self._finished]
        self._finished -= {*reading.texts}
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

    def _sample(self, logits: Tensor) -> list[int]:
        """Return the next token of each text, (R,), sampled from logits (R, V).

        Texts with equal settings are sampled together.
        """
        by_sampling: dict[Sampling, list[int]] = {}
        for row, text in enumerate(self.texts):
            by_sampling.setdefault(text.sampling, []).append(row)
        tokens = [0] * len(self.texts)
        for sampling, rows in by_sampling.items():
            seen = None
            if sampling.repetition_penalty != 1:
                seen = torch.stack([_token_mask(self.texts[row], logits) for row in rows])  # (N, V)

            def chances(rows: list[int] = rows) -> Tensor:
                draws = [torch.rand(1, dtype=torch.float64, generator=self.texts[row].generator) for row in rows]
                return torch.cat(draws)

            part = logits if len(rows) == len(self.texts) else logits[rows]
            for row, token in zip(rows, sampling.choose(part, seen, chances).tolist(), strict=True):
                tokens[row] = token
        return tokens


class _Reading(Generic[F]):
    """Group of texts whose prompts are read into an empty key-value cache, in chunks."""

    def __init__(self, texts: Sequence[Text], cache: F) -> None:
        self.texts, self.cache = texts, cache
        device, longest = cache.lengths.device, max(len(text.ids) for text in texts)
        rows = [[*text.ids, *text.ids[-1:] * (longest - len(text.ids))] for text in texts]
        self._tokens = torch.tensor(rows, device=device)  # (B, longest)
        self._lengths = torch.tensor([len(text.ids) for text in texts], device=device)
        self._done = 0  # number of token columns of the prompts that have been read
        self.logits: dict[int, Tensor] = {}  # logits of the next token, (V,), by row

    def read(self, step: StepAt[F], chunk: int | None) -> bool:
        """Read the next part of the prompts: at most `chunk` tokens in total, but at least one token of each text.

        Returns True after the last token.
        """
        rows, longest = self._tokens.shape
        stop = longest if chunk is None else min(longest, self._done + max(1, chunk // rows))
        last = self._lengths - 1 - self._done  # (B,)
        logits = step(self._tokens[:, self._done : stop], self.cache, last.clamp(0, stop - self._done - 1))
        for row, at in enumerate(last.tolist()):
            if 0 <= at < stop - self._done:
                self.logits[row] = logits[row, 0]
        self._done = stop
        if stop < longest:
            return False
        self.cache.advance(self._lengths - longest)  # Drop the padding from the cache. No token has attended to it.
        return True


def _token_mask(text: Text, logits: Tensor) -> Tensor:
    """Return a mask (V,) over the vocabulary, True for every token that occurs in a text."""
    if text.seen is None:
        text.seen = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        text.seen[text.ids] = True
    text.seen[text.ids[-1]] = True
    return text.seen


def _first_read(length: int, context: int) -> int:
    """Return the index of the first token that fits into the model's context, for a text with `length` tokens.

    The index is 0 while the whole text fits into the context, then always a multiple of half the context.
    """
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
    suppressed: Sequence[int] = (),
    over: Callable[[int, int], bool] = lambda row, token: False,
) -> Iterator[list[tuple[int, int]]]:
    """Generate a continuation of every prompt, and yield the new tokens of each step.

    A step yields a list of (row, token) pairs, one for each unfinished text.

    limits  maximum number of generated tokens of each text
    seeds   seed of the random generator of each text
    over    function that is called with every row and token, and returns True if the text of this row is finished

    The other arguments are those of `ContinuousBatch`.
    """
    texts = [Text([*ids], sampling, n, seed) for ids, n, seed in zip(prompts, limits, seeds, strict=True)]
    rows = {text: row for row, text in enumerate(texts)}
    batch = ContinuousBatch(start, step, context=context, end=end, unit=1, suppressed=suppressed)
    batch.admit(texts)
    while batch.busy:
        sampled = batch.step()
        batch.drop([text for text, token in sampled if over(rows[text], token)])
        yield [(rows[text], token) for text, token in sampled]
