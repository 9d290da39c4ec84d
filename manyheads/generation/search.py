"""Greedy and beam search over a batch of sentences. Finished sentences leave the batch; results keep the input order.

A limit is the maximum number of tokens of a sentence before its end token. After a hypothesis of this length, the end
token follows, with its probability under the model. Therefore every hypothesis is complete, and its log-probability
equals the result of `score`. The end token needs one more position, so the cache needs a capacity of limit + 1.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from manyheads.core.logits import BLOCK, Reduce, block_maxima, reduce_logits
from manyheads.errors import UserError
from manyheads.generation.constraints import Constraints
from manyheads.generation.protocol import C, Hypothesis, Step, argmax_rows, check_alpha, gather_blocks, length_penalty

# A function that returns the next tokens (R,) of sentences, given their logits (R, V) and their indices (R,).
Choose: TypeAlias = Callable[[Tensor, Tensor], Tensor]


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
    reduce: Reduce = reduce_logits,
    constraints: Constraints | None = None,
    choose: Choose | None = None,
) -> list[Hypothesis]:
    """Return the hypothesis of greedy search for each sentence: the most probable token at every position.

    Of equally probable tokens, the smallest id is taken.

    cache        empty cache with one row per sentence
    start, end   ids of the tokens before and after each output
    limits       maximum number of tokens of each sentence before its end token, (B,)
    suppress     ids that are never generated
    alpha        exponent of the length penalty in the scores; it does not affect the search
    reduce       function that suppresses ids and computes maxima and log-sum-exp of the logits. A compiled model has a
                 faster one
    constraints  constraints on the generated tokens
    choose       function that selects the next tokens in place of the most probable ones, for example at random
    """
    _check(cache, end, limits, suppress, alpha)
    batch, longest, device = len(limits), int(limits.max()), cache.lengths.device
    limits = limits.to(device)
    output = torch.full((batch, longest + 1), end, device=device)  # generated tokens, (B, longest + 1)
    rows = torch.arange(batch, device=device)  # indices of the sentences that are not finished, (R,)
    last = torch.full((batch,), start, device=device)  # (R,)
    totals: Tensor | None = None  # log-probability of each sentence, (B,), in the dtype of the log-probabilities
    for length in range(longest + 1):
        # logits (R, V), block maxima, and log-sum-exp (R,)
        logits, maxima, log_sums = reduce(step(last[:, None], cache)[:, -1], suppress)
        allowed = logits
        if constraints is not None:
            allowed = constraints.apply(logits, output[rows, :length], end)
            maxima = block_maxima(allowed)
        last = argmax_rows(allowed, maxima) if choose is None else choose(allowed, rows)
        last = last.masked_fill(limits[rows] == length, end)
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
    reduce: Reduce = reduce_logits,
    constraints: Constraints | None = None,
) -> list[list[Hypothesis]]:
    """Return the `nbest` best finished hypotheses of each sentence by beam search, best first; fewer if fewer exist.

    At each position, the best continuations of the unfinished hypotheses fill the beam. A hypothesis that ends keeps
    its slot in the beam, so that poor hypotheses with an early end cannot displace the best unfinished one. The search
    for a sentence ends when all slots are finished, or when no unfinished hypothesis can enter the n best.
    Log-probabilities only decrease, so an unfinished hypothesis with log-probability p scores at most p /
    length_penalty(limit + 1). A beam of 1 is greedy search for any alpha, and a beam as large as the number of possible
    outputs is exhaustive search.

    cache  empty cache with one row per sentence; the search adds rows for the beams
    beam   number of hypotheses per sentence
    alpha  exponent of the length penalty, from 0 to 10

    The other arguments are those of `greedy`.
    """
    _check(cache, end, limits, suppress, alpha)
    if not 1 <= nbest <= beam:
        raise UserError(f"nbest is {nbest}: expected a number from 1 to the beam size ({beam})")
    limits = limits.to(cache.lengths.device)
    finished = _Finished(limits, alpha, beam, nbest)
    # The search keeps R unfinished sentences with W unfinished hypotheses each, best first.
    rows = torch.arange(len(limits), device=limits.device)  # indices of the sentences, (R,)
    output = torch.full((len(limits), 1, 1), start, device=limits.device)  # tokens, (R, W, 1 + length)
    totals = torch.zeros(len(limits), 1, device=limits.device)  # log-probabilities, (R, W)
    while True:
        length, width = output.shape[2] - 1, output.shape[1]
        logits, maxima, log_sums = reduce(step(output[:, :, -1].reshape(-1, 1), cache)[:, -1], suppress)
        closing = (limits[rows] == length).repeat_interleave(width)  # (R * W,)
        if constraints is not None or closing.any():
            logits = _restricted(logits, output.flatten(0, 1)[:, 1:], closing, end, constraints)
            maxima = block_maxima(logits)
        totals, parents, tokens = _top_continuations(logits, maxima, totals - log_sums.view(len(rows), width), beam)
        in_beam = finished.in_beam(rows, totals)
        ending = in_beam & (tokens == end)
        finished.add(ending, rows, output, parents, totals)
        continuing = in_beam & ~ending
        totals = totals.masked_fill(
            ~continuing, -torch.inf
        )  # A slot of the beam without a hypothesis is never continued.
        live = (~continuing).byte().argsort(dim=1, stable=True)[:, : max(1, int(continuing.sum(dim=1).max()))]
        totals = totals.gather(1, live)  # unfinished hypotheses after this step, (R, W'), best first
        keep = finished.beatable(rows, totals[:, 0])  # (R',)
        if not len(keep):
            return finished.best()
        rows, totals, live = rows[keep], totals[keep], live[keep]
        # index of the cache row that each hypothesis continues, (R', W'), among the R * W rows of the cache
        parents = keep[:, None] * width + parents[keep].gather(1, live)
        tokens = tokens[keep].gather(1, live)
        output = torch.cat([output.flatten(0, 1)[parents], tokens[:, :, None]], dim=2)
        cache.select(parents.flatten())


class _Finished:
    """Finished hypotheses of each sentence, best first, and the score that an unfinished hypothesis must exceed."""

    def __init__(self, limits: Tensor, alpha: float, beam: int, nbest: int) -> None:
        self._alpha, self._beam, self._nbest = alpha, beam, nbest
        self._hypotheses: list[list[Hypothesis]] = [[] for _ in limits]
        # Two numbers per sentence, (B,) each: the score that an unfinished hypothesis must exceed, and the maximum
        # length penalty that may divide its log-probability.
        self._threshold = torch.full((len(limits),), -torch.inf, dtype=torch.float64, device=limits.device)
        penalties = [length_penalty(limit + 1, alpha) for limit in limits.tolist()]
        self._penalty = torch.tensor(penalties, dtype=self._threshold.dtype, device=limits.device)

    def in_beam(self, rows: Tensor, totals: Tensor) -> Tensor:
        """Return a mask of the candidates (R, K) that get a free slot in the beam of their sentence.

        The candidates of each sentence are sorted, best first.
        """
        left = torch.tensor([self._beam - len(self._hypotheses[row]) for row in rows.tolist()], device=totals.device)
        return (torch.arange(totals.shape[1], device=totals.device) < left[:, None]) & totals.isfinite()

    def add(self, ending: Tensor, rows: Tensor, output: Tensor, parents: Tensor, totals: Tensor) -> None:
        """Add the candidates that end in this step to the finished hypotheses.

        ending   (R, K) True for the candidates that end
        rows     (R,) indices of the sentences
        output   tokens of the hypotheses before this step
        parents  (R, K) index of the hypothesis that each candidate continues
        totals   (R, K) log-probability of each candidate
        """
        for row, rank in ending.nonzero().tolist():
            sentence = int(rows[row])
            hypotheses = self._hypotheses[sentence]
            history = output[row, parents[row, rank], 1:].tolist()
            hypothesis = Hypothesis.of(history, float(totals[row, rank]), self._alpha)
            insort(hypotheses, hypothesis, key=lambda other: -other.score)
            if len(hypotheses) >= self._nbest:
                self._threshold[sentence] = hypotheses[self._nbest - 1].score

    def beatable(self, rows: Tensor, totals: Tensor) -> Tensor:
        """Return a mask of the sentences (R,): True if the best unfinished hypothesis can still enter the n best.

        totals  log-probability of the best unfinished hypothesis of each sentence, (R,)
        """
        return (totals / self._penalty[rows] > self._threshold[rows]).nonzero()[:, 0]

    def best(self) -> list[list[Hypothesis]]:
        return [hypotheses[: self._nbest] for hypotheses in self._hypotheses]


def _restricted(logits: Tensor, history: Tensor, closing: Tensor, end: int, constraints: Constraints | None) -> Tensor:
    """Return logits (N, V) that respect the constraints, and in which hypotheses at their limit can only end.

    history  tokens so far, (N, T)
    closing  True for a hypothesis at its limit, (N,)
    """
    if constraints is not None and not closing.all():
        logits = constraints.apply(logits, history, end)
    return _force_token(end, logits, closing) if closing.any() else logits


def _force_token(token: int, logits: Tensor, rows: Tensor) -> Tensor:
    """Return logits (N, V) in which some rows can only continue with the given token.

    rows  (N,) True for these rows
    """
    others = torch.arange(logits.shape[1], device=logits.device) != token
    return logits.masked_fill(rows[:, None] & others, -torch.inf)


def _top_continuations(logits: Tensor, maxima: Tensor, offsets: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` best continuations of each sentence, best first, in three tensors (R, count).

    The tensors contain log-probabilities, hypotheses and tokens. The log-probability of a continuation is the sum of a
    logit and the offset of its hypothesis. A hypothesis is given as its index among the W hypotheses of the sentence.
    Continuations with equal log-probability keep their order. A stable sort of all values would be slow. The `count`
    largest values are in the `count` blocks with the largest maxima, so only these blocks are sorted.

    logits   (R * W, V)
    maxima   (R * W, blocks) maximum of each block of logits
    offsets  (R, W)
    """
    sentences, width = offsets.shape
    blocks = maxima.shape[1]
    # indices of the K blocks with the largest maxima in each row, (R, K)
    top_blocks = _top_columns((maxima.view(sentences, width, blocks) + offsets[:, :, None]).flatten(1), count)
    parents = top_blocks // blocks  # hypothesis of each block, (R, K)
    rows = parents + width * torch.arange(sentences, device=top_blocks.device)[:, None]
    values, tokens = gather_blocks(logits, rows, top_blocks % blocks)  # values in the best blocks, (R, K, BLOCK)
    values, ranks = (values + offsets.gather(1, parents)[:, :, None]).flatten(1).sort(descending=True, stable=True)
    ranks = ranks[:, : min(count, width * logits.shape[1])]
    return values[:, : ranks.shape[1]], parents.gather(1, ranks // BLOCK), tokens.flatten(1).gather(1, ranks)


def _top_columns(scores: Tensor, count: int) -> Tensor:
    """Return the columns of the `count` largest values in each row (R, N), in ascending order of the columns.

    Of equal values, the values in the first columns are selected, whereas `torch.topk` may select any of them.
    """
    scores, count = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf), min(count, scores.shape[1])
    threshold = scores.topk(count).values[:, -1:]
    larger, equal = scores > threshold, scores == threshold
    selected = larger | (equal & (equal.cumsum(1) <= count - larger.sum(1, keepdim=True)))
    return selected.nonzero()[:, 1].view(len(scores), count)


def _check(cache: C, end: int, limits: Tensor, suppress: Sequence[int], alpha: float) -> None:
    check_alpha(alpha)
    if limits.shape != cache.lengths.shape:
        raise UserError(f"expected {len(cache.lengths)} limits, one per row, found {tuple(limits.shape)}")
    if limits.numel() and int(limits.min()) < 0:
        raise UserError(f"expected limits of 0 or more, found {int(limits.min())}")
    if end in suppress:
        raise UserError(f"cannot suppress the end token {end}: no text would end")
