"""Dependency parsers that see only attention weights, to probe the syntax in all heads (Clark et al. 2019, section 5).

The parser predicts p(i | j), the probability that word i is the syntactic head of word j. With the attention a_k(i, j)
of head k from word i to word j, and trained weights w, u, W and U, the probability is:

    attention          p(i | j) ~ exp( sum_k  w_k a_k(i, j) + u_k a_k(j, i) )
    attention + words  p(i | j) ~ exp( sum_k  W_k (v_i, v_j, 1) a_k(i, j) + U_k (v_i, v_j, 1) a_k(j, i) )

The word vectors v are without context (GloVe in the paper; here the model's own embeddings). The constant 1 makes the
first parser a special case of the second. The baseline "distances + words" is the same parser with distances between
words instead of attention. The model itself is not trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.errors import UserError

REACH = 10  # maximum distance between two words, in words, that the baseline distinguishes
BATCH = 32  # sentences per batch


class Parsed(NamedTuple):
    """Input and target of a dependency parser, for one sentence.

    maps     attention of K heads between the W words, (K, W, W), any float type
    heads    index of each word's syntactic head, from 0; negative for words without a target (the root)
    vectors  vectors of the words, (W, V); None for a parser that does not use them
    """

    maps: Tensor
    heads: Sequence[int]
    vectors: Tensor | None = None


class HeadParser(nn.Module):
    """Dependency parser that scores each word of a sentence as the syntactic head of each other word.

    The scores are all equal at initialization.

    maps     number of attention maps, K
    vectors  size of the word vectors, V; 0 for a parser that uses attention alone
    """

    def __init__(self, maps: int, vectors: int = 0) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.zeros(2, maps))
        # weights by direction, vector of the head or of the dependent, attention map and component of the vector, (2,
        # 2, K, V)
        self.words = nn.Parameter(torch.zeros(2, 2, maps, vectors)) if vectors else None

    def forward(self, maps: Tensor, lengths: Tensor, vectors: Tensor | None = None) -> Tensor:
        """Return log-probabilities (B, W, W) that the second word is the syntactic head of the first word.

        maps (B, K, W, W), lengths (B,), vectors (B, W, V)
        """
        words = maps.shape[-1]
        # In direction 0, the syntactic head attends to its dependent, a(i, j), which is the transposed map. In
        # direction 1, the dependent attends to its syntactic head.
        scores = torch.zeros((), device=maps.device)
        # attention by dependent and syntactic head, (B, K, W dependents, W heads)
        for direction, views in enumerate((maps.transpose(-1, -2), maps)):
            if self.words is None:
                scores = scores + torch.einsum("bkji,k->bji", views, self.constant[direction])
            else:
                assert vectors is not None
                of_head, of_dependent = (torch.einsum("bwv,kv->bkw", vectors, w) for w in self.words[direction])
                of_dependent = of_dependent + self.constant[direction][:, None]
                weights = of_head[:, :, None, :] + of_dependent[:, :, :, None]
                scores = scores + (views * weights).sum(1)
        outside = torch.arange(words, device=maps.device) >= lengths[:, None]  # (B, W)
        itself = torch.eye(words, dtype=torch.bool, device=maps.device)
        return scores.masked_fill(outside[:, None, :] | itself, -1e9).log_softmax(-1)


def train_parser(
    sentences: Sequence[Parsed], *, epochs: int = 10, rate: float | None = None, seed: int = 1
) -> HeadParser:
    """Train a parser to maximize the likelihood of the syntactic trees.

    The optimizer is Adam, with a learning rate that decays to zero.

    rate   initial learning rate; default: 0.3 for attention alone, whose weights grow large, and 0.01 with words
    """
    if not sentences:
        raise UserError("no sentences to train a parser on")
    first = sentences[0]
    size = 0 if first.vectors is None else first.vectors.shape[1]
    generator = torch.Generator().manual_seed(seed)
    parser = HeadParser(first.maps.shape[0], size)
    rate = rate or (0.01 if size else 0.3)
    optimizer = torch.optim.Adam(parser.parameters(), lr=rate)
    batches = list(_batches(sentences))
    steps = epochs * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(epochs):
        for number in torch.randperm(len(batches), generator=generator).tolist():
            maps, lengths, vectors, heads = _padded([sentences[i] for i in batches[number]])
            scores = parser(maps, lengths, vectors)
            loss = F.nll_loss(scores.flatten(0, 1), heads.flatten(), ignore_index=-1)
            optimizer.zero_grad()
            if loss.isfinite():  # The loss is not finite if the only words in a batch are roots, which have no target.
                loss.backward()
                optimizer.step()
            schedule.step()
    return parser


@torch.no_grad()
def parse(parser: HeadParser, sentences: Sequence[Parsed]) -> list[list[int]]:
    """Return the most likely syntactic head of every word, for all sentences in the given order.

    As in the paper, the predicted heads of a sentence need not form a tree.
    """
    heads: list[list[int]] = [[] for _ in sentences]
    for rows in _batches(sentences):
        maps, lengths, vectors, _ = _padded([sentences[i] for i in rows])
        best = parser(maps, lengths, vectors).argmax(-1)
        for i, row, length in zip(rows, best.tolist(), lengths.tolist(), strict=True):
            heads[i] = row[:length]
    return heads


def attachment(parser: HeadParser, sentences: Sequence[Parsed]) -> list[list[bool]]:
    """Return, for every word with a syntactic head, true if the parser finds this head.

    The mean over words is the unlabeled attachment score (UAS).
    """
    return [
        [guess == head for guess, head in zip(guesses, sentence.heads, strict=True) if head >= 0]
        for guesses, sentence in zip(parse(parser, sentences), sentences, strict=True)
    ]


def distances(words: int) -> Tensor:
    """Return the distance between two words as a one-hot encoding, (2 * REACH + 1, W, W).

    It is the input of the baseline parser, which uses distances instead of attention.
    """
    at = torch.arange(words)
    apart = (at - at[:, None]).clamp(-REACH, REACH) + REACH
    return F.one_hot(apart, 2 * REACH + 1).permute(2, 0, 1).half()


def _batches(sentences: Sequence[Parsed]) -> Iterator[list[int]]:
    """Yield batches of sentence indices, where the sentences of a batch have similar lengths."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].heads))
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


def _padded(sentences: Sequence[Parsed]) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return the sentences of a batch as padded tensors.

    They are maps (B, K, W, W), lengths (B,), vectors (B, W, V), and syntactic heads (B, W) with -1 for words without a
    target.
    """
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
