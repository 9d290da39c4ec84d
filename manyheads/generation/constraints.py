"""Constraints on the tokens that a search may generate, and a search that generates given words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from manyheads.core.logits import suppress_ids
from manyheads.errors import UserError
from manyheads.generation.protocol import C, Hypothesis, Step, length_penalty


@dataclass(frozen=True)
class Constraints:
    """Constraints on generated token ids.

    prefix      tokens with which every output begins
    banned      sequences of tokens that no output may contain
    no_repeat   length of token sequences that may occur only once in an output. If 0, sequences may repeat
    min_length  minimum number of tokens before the end token
    forced      sequences of tokens that every output must contain, in any order (`forced_search`)
    """

    prefix: tuple[int, ...] = ()
    banned: tuple[tuple[int, ...], ...] = ()
    no_repeat: int = 0
    min_length: int = 0
    forced: tuple[tuple[int, ...], ...] = ()

    def apply(self, logits: Tensor, history: Tensor, end: int) -> Tensor:
        """Return the logits (R, V) of the next tokens, with minus infinity for tokens that the constraints exclude.

        history  tokens so far, (R, T)
        end      id of the end token
        """
        length = history.shape[1]
        if length < len(self.prefix):
            token, kept = self.prefix[length], torch.full_like(logits, -torch.inf)
            kept[:, token] = logits[:, token]
            return kept
        logits = logits.clone()
        if length < self.min_length:
            logits[:, end] = -torch.inf
        for *begin, last in self.banned:
            if length >= len(begin):
                follows = (history[:, length - len(begin) :] == history.new_tensor(begin)).all(1)
                logits[follows, last] = -torch.inf
        if 0 < self.no_repeat <= length:
            windows = history.unfold(1, self.no_repeat, 1)  # (R, windows, no_repeat)
            repeats = (windows[..., :-1] == history[:, None, length - self.no_repeat + 1 :]).all(-1)
            rows, at = repeats.nonzero(as_tuple=True)
            logits[rows, windows[rows, at, -1]] = -torch.inf
        return logits


@dataclass(frozen=True)
class _Candidate:
    """Unfinished output of a search with forced sequences.

    tokens  tokens so far
    total   log-probability of these tokens
    row     index of the row in the key-value cache
    met     indices of the forced sequences that the output contains
    begun   (index of a forced sequence, number of its tokens so far) if the output ends within this sequence; or None
    """

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    row: int = 0
    met: frozenset[int] = frozenset()
    begun: tuple[int, int] | None = None

    def progress(self, forced: Sequence[Sequence[int]]) -> int:
        return sum(len(forced[i]) for i in self.met) + (self.begun[1] if self.begun else 0)

    def wanted(self, forced: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """Return (sequence, position) of each forced token that may come next."""
        return [self.begun] if self.begun else [(i, 0) for i in range(len(forced)) if i not in self.met]

    def extended(self, token: int, value: float, row: int, forced: Sequence[Sequence[int]]) -> _Candidate:
        met, begun = self.met, None
        starts = [(i, 0) for i in range(len(forced)) if i not in self.met]
        for index, position in (*self.wanted(forced), *starts):
            if forced[index][position] == token:
                done = position + 1 == len(forced[index])
                met, begun = (met | {index}, None) if done else (met, (index, position + 1))
                break
        return _Candidate((*self.tokens, token), self.total + value, row, met, begun)


@torch.inference_mode()
def forced_search(
    step: Step[C],
    cache: C,
    constraints: Constraints,
    *,
    start: int,
    end: int,
    limit: int,
    suppress: Sequence[int] = (),
    beam: int = 4,
    alpha: float = 0.6,
    nbest: int = 1,
) -> list[Hypothesis]:
    """Return the `nbest` best outputs of one sentence that contain all forced sequences, best first.

    The method is beam search with dynamic beam allocation (Post & Vilar 2018). The beam is divided among groups of
    unfinished outputs with an equal number of forced tokens, so that outputs with few forced tokens do not displace the
    others. Only an output with all forced sequences may end.

    cache  empty key-value cache with one row
    limit  maximum number of tokens before the end token

    The other arguments are those of `beam_search`. Raises UserError if the forced sequences do not fit into `limit`
    tokens.
    """
    forced = constraints.forced
    if len(constraints.prefix) + sum(map(len, forced)) > limit:
        raise UserError(f"the forced words have {sum(map(len, forced))} tokens: expected at most {limit}")
    live, finished = [_Candidate()], list[Hypothesis]()
    for length in range(limit + 1):
        last = torch.tensor([[c.tokens[-1] if c.tokens else start] for c in live], device=cache.lengths.device)
        logits = suppress_ids(step(last, cache)[:, -1], suppress)
        history = torch.tensor([c.tokens for c in live], dtype=torch.long, device=logits.device).view(len(live), length)
        scores = constraints.apply(logits, history, end) - logits.logsumexp(-1, keepdim=True)
        closed = scores[:, end].tolist()
        for candidate, value in zip(live, closed, strict=True):
            if len(candidate.met) == len(forced) and value > -torch.inf:
                finished.append(Hypothesis.of([*candidate.tokens], candidate.total + value, alpha))
        finished = sorted(finished, key=lambda h: -h.score)[:nbest]
        scores[:, end] = -torch.inf
        live = _allocated(_continued(live, scores, forced, beam), forced, beam)
        bound = length_penalty(limit + 1, alpha)
        beaten = len(finished) == nbest and all(c.total / bound <= finished[-1].score for c in live)
        if not live or beaten or length == limit:
            break
        cache.select(torch.tensor([c.row for c in live], device=cache.lengths.device))
    return finished


def _continued(live: list[_Candidate], scores: Tensor, forced: Sequence[Sequence[int]], beam: int) -> list[_Candidate]:
    """Return candidates for the next beam.

    These are the best continuations of all outputs together, the best continuation of each output, and the
    continuations of each output by a forced token.
    """
    totals = scores + scores.new_tensor([c.total for c in live])[:, None]
    best = totals.flatten().topk(min(beam, totals.numel())).indices.tolist()
    pairs = {divmod(i, scores.shape[1]) for i in best} | set(enumerate(scores.argmax(1).tolist()))
    for row, candidate in enumerate(live):
        pairs |= {(row, forced[index][position]) for index, position in candidate.wanted(forced)}
    values = {(row, token): float(scores[row, token]) for row, token in pairs}
    return [live[r].extended(t, value, r, forced) for (r, t), value in values.items() if value > -torch.inf]


def _allocated(candidates: list[_Candidate], forced: Sequence[Sequence[int]], beam: int) -> list[_Candidate]:
    """Return `beam` candidates, selected in turn from groups with an equal number of forced tokens.

    Each turn takes the best remaining candidate of each group, beginning with the group with the most forced tokens.
    """
    groups = defaultdict[int, list[_Candidate]](list)
    for candidate in sorted(candidates, key=lambda c: (-c.total, c.tokens)):
        groups[candidate.progress(forced)].append(candidate)
    in_turn = zip_longest(*(groups[progress] for progress in sorted(groups, reverse=True)))
    return [candidate for turn in in_turn for candidate in turn if candidate is not None][:beam]
