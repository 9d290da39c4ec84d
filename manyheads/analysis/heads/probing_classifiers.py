"""Parsers that see attention weights alone, to probe the syntax in all heads (Clark et al. 2019, section 5).

The probability that word i is the syntactic head of word j, where a_k(i, j) is the attention of head k from i to j:

    attention          p(i | j) ~ exp( sum_k  w_k a_k(i, j) + u_k a_k(j, i) )
    attention + words  p(i | j) ~ exp( sum_k  W_k (v_i, v_j, 1) a_k(i, j) + U_k (v_i, v_j, 1) a_k(j, i) )

The vectors v are without context (GloVe in the paper; here the model's own embeddings). The constant makes the first
a special case of the second. The baseline "distances + words" is the same parser with distances between words instead
of attention. The model itself is not trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.errors import UserError

REACH = 10  # maximum distance in words that the baseline distinguishes
BATCH = 32  # sentences per batch


class Parsed(NamedTuple):
    """A sentence with its tree: input and target of a parser.

    maps     (K, W, W) attention of K heads between words, any float type
    heads    index of each word's syntactic head, from 0; negative for words without a target (the root)
    vectors  (W, V) word vectors, None for a parser without them
    """

    maps: Tensor
    heads: Sequence[int]
    vectors: Tensor | None = None


class HeadParser(nn.Module):
    """Scores of each word as the head of each other word; all equal at initialization.

    maps     number of attention maps, K
    vectors  size of the word vectors, V; 0 for attention alone
    """

    def __init__(self, maps: int, vectors: int = 0) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.zeros(2, maps))
        # (direction, vector of the head or the dependent, K, V)
        self.words = nn.Parameter(torch.zeros(2, 2, maps, vectors)) if vectors else None

    def forward(self, maps: Tensor, lengths: Tensor, vectors: Tensor | None = None) -> Tensor:
        """Return log-probabilities (B, W, W) of the second word as the head of the first.

        maps (B, K, W, W), lengths (B,), vectors (B, W, V)
        """
        words = maps.shape[-1]
        # direction 0: the head attends to the dependent, a(i, j), the transposed map; 1: the opposite
        scores = torch.zeros((), device=maps.device)
        for direction, views in enumerate((maps.transpose(-1, -2), maps)):  # (B, K, W dependents, W heads)
            if self.words is None:
                scores = scores + torch.einsum("bkji,k->bji", views, self.constant[direction])
            else:
                assert vectors is not None
                of_head, of_dependent = (torch.einsum("bwv,kv->bkw", vectors, w) for w in self.words[direction])
                of_dependent = of_dependent + self.constant[direction][:, None]
                weights = of_head[:, :, None, :] + of_dependent[:, :, :, None]  # (B, K, W, W)
                scores = scores + (views * weights).sum(1)
        outside = torch.arange(words, device=maps.device) >= lengths[:, None]  # (B, W)
        itself = torch.eye(words, dtype=torch.bool, device=maps.device)
        return scores.masked_fill(outside[:, None, :] | itself, -1e9).log_softmax(-1)


def train_parser(
    sentences: Sequence[Parsed], *, epochs: int = 10, rate: float | None = None, seed: int = 1
) -> HeadParser:
    """Train a parser to maximize the likelihood of the trees, by Adam with a learning rate that decays to zero.

    rate   initial learning rate; default: 0.3 for attention alone, whose weights grow large, and 0.01 with words
    """
    if not sentences:
        raise UserError("no sentences to train a parser on")
    first = sentences[0]
    size = 0 if first.vectors is None else first.vectors.shape[1]
    generator = torch.Generator().manual_seed(seed)
    parser = HeadParser(first.maps.shape[0], size)
    rate = rate or (0.01 if size else 0.3)
    optimiser = torch.optim.Adam(parser.parameters(), lr=rate)
    batches = list(_batches(sentences))
    steps = epochs * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    for _ in range(epochs):
        for number in torch.randperm(len(batches), generator=generator).tolist():
            maps, lengths, vectors, heads = _padded([sentences[i] for i in batches[number]])
            scores = parser(maps, lengths, vectors)
            loss = F.nll_loss(scores.flatten(0, 1), heads.flatten(), ignore_index=-1)
            optimiser.zero_grad()
            if loss.isfinite():  # not finite for a batch that contains only roots
                loss.backward()
                optimiser.step()
            schedule.step()
    return parser


@torch.no_grad()
def parse(parser: HeadParser, sentences: Sequence[Parsed]) -> list[list[int]]:
    """Return the most likely head of every word, in the order of the sentences.

    As in the paper, they may not form trees.
    """
    heads: list[list[int]] = [[] for _ in sentences]
    for rows in _batches(sentences):
        maps, lengths, vectors, _ = _padded([sentences[i] for i in rows])
        best = parser(maps, lengths, vectors).argmax(-1)
        for i, row, length in zip(rows, best.tolist(), lengths.tolist(), strict=True):
            heads[i] = row[:length]
    return heads


def attachment(parser: HeadParser, sentences: Sequence[Parsed]) -> list[list[bool]]:
    """Return, for every word with a head, whether the parser finds it. The mean over words is the UAS."""
    return [
        [guess == head for guess, head in zip(guesses, sentence.heads, strict=True) if head >= 0]
        for guesses, sentence in zip(parse(parser, sentences), sentences, strict=True)
    ]


def distances(words: int) -> Tensor:
    """Return the input of the baseline, (2 * REACH + 1, W, W): a one-hot encoding of the distance between two words."""
    at = torch.arange(words)
    apart = (at - at[:, None]).clamp(-REACH, REACH) + REACH
    return F.one_hot(apart, 2 * REACH + 1).permute(2, 0, 1).half()


def _batches(sentences: Sequence[Parsed]) -> Iterator[list[int]]:
    """Yield the indices of sentences with similar lengths."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].heads))
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


def _padded(sentences: Sequence[Parsed]) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return maps (B, K, W, W), lengths (B,), vectors (B, W, V), heads (B, W), with -1 for words without a target."""
    lengths = [len(sentence.heads) for sentence in sentences]
    room = [(max(lengths) - length) for length in lengths]
    maps = torch.stack([F.pad(s.maps.float(), (0, more, 0, more)) for s, more in zip(sentences, room, strict=True)])
    heads = torch.tensor(
        [[*(max(h, -1) for h in s.heads), *[-1] * more] for s, more in zip(sentences, room, strict=True)]
    )
    vectors = None
    if sentences[0].vectors is not None:
        rows = [
            F.pad(s.vectors, (0, 0, 0, more)) for s, more in zip(sentences, room, strict=True) if s.vectors is not None
        ]
        vectors = torch.stack(rows)
    return maps, torch.tensor(lengths), vectors, heads
