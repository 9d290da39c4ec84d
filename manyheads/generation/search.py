"""Greedy and beam search over a batch. Finished sentences leave the batch; the order of the input is kept.

A limit is the largest number of tokens a sentence may have before its end. A hypothesis that has that many is closed:
the end follows, with the probability the model gives it. So every hypothesis is complete, and its log-probability is
what `score` finds for it. Closing looks at one more position: the cache must hold limit + 1.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

import torch
from torch import Tensor

from manyheads.errors import UserError
from manyheads.generation.protocol import (
    BLOCK,
    C,
    Hypothesis,
    Reduce,
    Step,
    block_maxima,
    check_alpha,
    in_blocks,
    largest,
    length_penalty,
    reduced,
)


@torch.inference_mode()
def greedy(
    step: Step[C],
    cache: C,
    *,
    start: int,
    end: int,
    limits: Tensor,
    suppress: Sequence[int] = (),
    alpha: float = 0.6,
    reduce: Reduce | None = None,
) -> list[Hypothesis]:
    """The most probable token (of equal ones the smallest id) at every position, until it is the end.

    cache     fresh, one row for each sentence.
    limits    (B,) the most tokens each sentence may have before its end.
    suppress  ids that are never generated.
    alpha     of the score that a hypothesis reports; it decides nothing here.
    reduce    in place of `reduced`, where the model comes with a faster one.
    """
    _check(cache, end, limits, suppress, alpha)
    reduce = reduce or reduced
    batch, longest, device = len(limits), int(limits.max()), cache.lengths.device
    limits = limits.to(device)
    output = torch.full((batch, longest + 1), end, device=device)  # (B, longest + 1)
    rows = torch.arange(batch, device=device)  # (R,) the sentences still in the batch
    last = torch.full((batch,), start, device=device)  # (R,)
    totals: Tensor | None = None  # (B,) in the type of the log-probabilities
    for length in range(longest + 1):
        logits, maxima, log_sums = reduce(step(last[:, None], cache)[:, -1], suppress, BLOCK)  # (R, V), ..., (R,)
        last = largest(logits, maxima).masked_fill(limits[rows] == length, end)
        totals = logits.new_zeros(batch) if totals is None else totals
        totals[rows] += logits.gather(1, last[:, None])[:, 0] - log_sums
        output[rows, length] = last
        live = last != end
        if not live.all():
            keep = live.nonzero()[:, 0]
            if not len(keep):
                break
            rows, last = rows[keep], last[keep]
            cache.select(keep)
    assert totals is not None
    return [
        Hypothesis.of(tokens[: tokens.index(end)], total, alpha)
        for tokens, total in zip(output.tolist(), totals.tolist(), strict=True)
    ]


@torch.inference_mode()
def beam_search(
    step: Step[C],
    cache: C,
    *,
    start: int,
    end: int,
    limits: Tensor,
    suppress: Sequence[int] = (),
    beam: int = 4,
    alpha: float = 0.6,
    nbest: int = 1,
    reduce: Reduce | None = None,
) -> list[list[Hypothesis]]:
    """The `nbest` best finished hypotheses of each sentence, best first; fewer where fewer exist.

    A beam is a number of places. At each position the best continuations of the live hypotheses take the places that
    are left; one that ends keeps its place for good, so the best live hypothesis cannot be crowded out by poor ones
    that end early. A sentence is done when every place has ended, or when none that lives can still enter the n best:
    log-probabilities only fall, so a live one with log-probability p scores at most p / length_penalty(limit + 1).
    One beam is therefore greedy search whatever alpha is, and a beam as wide as the number of all outputs is
    exhaustive search.

    cache   fresh, one row for each sentence; rows are added for the beams.
    alpha   length penalty, from 0 to 10.
    reduce  in place of `reduced`, where the model comes with a faster one. Others as in `greedy`.
    """
    _check(cache, end, limits, suppress, alpha)
    if not 1 <= nbest <= beam:
        raise UserError(f"nbest must be between 1 and the beam ({beam}), got {nbest}")
    reduce = reduce or reduced
    limits = limits.to(cache.lengths.device)
    finished = _Finished(limits, alpha, beam, nbest)
    rows = torch.arange(
        len(limits), device=limits.device
    )  # (R,) the sentences still searched, each with W live hypotheses
    output = torch.full((len(limits), 1, 1), start, device=limits.device)  # (R, W, 1 + length)
    totals = torch.zeros(len(limits), 1, device=limits.device)  # (R, W) log-probabilities, best first
    while True:
        length, width = output.shape[2] - 1, output.shape[1]
        logits, maxima, log_sums = reduce(step(output[:, :, -1].reshape(-1, 1), cache)[:, -1], suppress, BLOCK)
        if (closing := limits[rows] == length).any():
            logits = _only(end, logits, closing.repeat_interleave(width))  # (R * W, V)
            maxima = block_maxima(logits)
        totals, parents, tokens = _best(logits, maxima, totals - log_sums.view(len(rows), width), beam)
        placed = finished.places_for(rows, totals)
        ending = placed & (tokens == end)
        finished.add(ending, rows, output, parents, totals)

        going_on = placed & ~ending
        totals = totals.masked_fill(~going_on, -torch.inf)  # what has no place has no continuations either
        live = (~going_on).byte().argsort(dim=1, stable=True)[:, : max(1, int(going_on.sum(dim=1).max()))]
        totals = totals.gather(1, live)  # (R, W') the live ones, best first
        keep = finished.beatable(rows, totals[:, 0])  # (R',)
        if not len(keep):
            return finished.best()
        rows, totals, live = rows[keep], totals[keep], live[keep]
        parents = keep[:, None] * width + parents[keep].gather(1, live)  # (R', W') among the R * W rows of the cache
        tokens = tokens[keep].gather(1, live)
        output = torch.cat([output.flatten(0, 1)[parents], tokens[:, :, None]], dim=2)
        cache.select(parents.flatten())


class _Finished:
    """The finished hypotheses of each sentence, best first, and what a live one must still be able to score."""

    def __init__(self, limits: Tensor, alpha: float, beam: int, nbest: int) -> None:
        self._alpha, self._beam, self._nbest = alpha, beam, nbest
        self._of: list[list[Hypothesis]] = [[] for _ in limits]
        # (B,) the score that a live hypothesis must be able to beat, and the largest penalty that divides it
        self._bar = torch.full((len(limits),), -torch.inf, dtype=torch.float64, device=limits.device)
        penalties = [length_penalty(limit + 1, alpha) for limit in limits.tolist()]
        self._penalty = torch.tensor(penalties, dtype=self._bar.dtype, device=limits.device)

    def places_for(self, rows: Tensor, totals: Tensor) -> Tensor:
        """Return which of the candidates (R, K), best first, have one of the places that are left to their sentence."""
        left = torch.tensor([self._beam - len(self._of[row]) for row in rows.tolist()], device=totals.device)
        return (torch.arange(totals.shape[1], device=totals.device) < left[:, None]) & totals.isfinite()

    def add(self, ending: Tensor, rows: Tensor, output: Tensor, parents: Tensor, totals: Tensor) -> None:
        """Take up the candidates that end: those where `ending` (R, K) is true."""
        for row, rank in ending.nonzero().tolist():
            sentence = int(rows[row])
            hypotheses = self._of[sentence]
            history = output[row, parents[row, rank], 1:].tolist()
            hypothesis = Hypothesis.of(history, float(totals[row, rank]), self._alpha)
            insort(hypotheses, hypothesis, key=lambda other: -other.score)
            if len(hypotheses) >= self._nbest:
                self._bar[sentence] = hypotheses[self._nbest - 1].score

    def beatable(self, rows: Tensor, totals: Tensor) -> Tensor:
        """Return which rows (R,) have a live hypothesis that can still enter the n best; `totals` (R,) of the best."""
        return (totals / self._penalty[rows] > self._bar[rows]).nonzero()[:, 0]

    def best(self) -> list[list[Hypothesis]]:
        return [hypotheses[: self._nbest] for hypotheses in self._of]


def _only(token: int, logits: Tensor, rows: Tensor) -> Tensor:
    """Return logits (N, V) in which the rows (N,) that are true can continue with this token alone."""
    others = torch.arange(logits.shape[1], device=logits.device) != token
    return logits.masked_fill(rows[:, None] & others, -torch.inf)


def _best(logits: Tensor, maxima: Tensor, offsets: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` largest of each sentence's logits (R * W, V) plus offsets (R, W): values, which of the W, and tokens.

    Largest first, of equal ones the first. A stable sort of everything is slow, but the `count` largest lie in the
    `count` blocks with the largest maxima (R * W, blocks), so only these are sorted.
    """
    sentences, width = offsets.shape
    blocks = maxima.shape[1]
    near = _first_largest((maxima.view(sentences, width, blocks) + offsets[:, :, None]).flatten(1), count)  # (R, K)
    parents = near // blocks  # (R, K)
    rows = parents + width * torch.arange(sentences, device=near.device)[:, None]
    values, tokens = in_blocks(logits, rows, near % blocks)  # (R, K, BLOCK)
    values, ranks = (values + offsets.gather(1, parents)[:, :, None]).flatten(1).sort(descending=True, stable=True)
    ranks = ranks[:, : min(count, width * logits.shape[1])]
    return values[:, : ranks.shape[1]], parents.gather(1, ranks // BLOCK), tokens.flatten(1).gather(1, ranks)


def _first_largest(scores: Tensor, count: int) -> Tensor:
    """Where each row (R, N) has its `count` largest, of equal ones the first, in the row's order: `topk` takes any."""
    scores, count = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf), min(count, scores.shape[1])
    least = scores.topk(count).values[:, -1:]
    larger, equal = scores > least, scores == least
    chosen = larger | (equal & (equal.cumsum(1) <= count - larger.sum(1, keepdim=True)))
    return chosen.nonzero()[:, 1].view(len(scores), count)


def _check(cache: C, end: int, limits: Tensor, suppress: Sequence[int], alpha: float) -> None:
    check_alpha(alpha)
    if limits.shape != cache.lengths.shape:
        raise UserError(f"expected one limit for each of the {len(cache.lengths)} rows, got {tuple(limits.shape)}")
    if limits.numel() and int(limits.min()) < 0:
        raise UserError(f"a limit must not be negative, got {int(limits.min())}")
    if end in suppress:
        raise UserError(f"the end ({end}) must not be suppressed: nothing would finish")
