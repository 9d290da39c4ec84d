"""Model small enough to enumerate, whose cache is a single tensor of states."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor


class States:
    """A cache: the state (B, D) of each row, and how many positions it has read."""

    def __init__(self, sentences: Tensor) -> None:
        self.states = sentences.clone()
        self.lengths = torch.zeros(len(sentences), dtype=torch.long)

    def select(self, rows: Tensor) -> None:
        self.states, self.lengths = self.states[rows], self.lengths[rows]


class Recurrent:
    """A random recurrent network: every token changes all that follows. Counts the rows of each step."""

    def __init__(self, vocabulary: int, width: int = 16, seed: int = 0, sharpness: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        everything = torch.randn(2 * vocabulary + width, width, dtype=torch.float64, generator=generator)
        embedding, recurrence, output = everything.split([vocabulary, width, vocabulary])
        self.embedding, self.recurrence = embedding, recurrence / width**0.5
        self.output = output.T * sharpness / width**0.5
        self.vocabulary, self.width = vocabulary, width
        self.rows: list[int] = []

    def start(self, batch: int, seed: int = 0) -> States:
        generator = torch.Generator().manual_seed(seed)
        return States(torch.randn(batch, self.width, dtype=torch.float64, generator=generator))

    def step(self, tokens: Tensor, cache: States) -> Tensor:
        assert tokens.shape[0] == len(cache.lengths)
        self.rows.append(tokens.shape[0])
        logits = []
        for token in tokens.unbind(dim=1):
            cache.states = torch.tanh(cache.states @ self.recurrence + self.embedding[token])
            logits.append(cache.states @ self.output)
        cache.lengths = cache.lengths + tokens.shape[1]
        return torch.stack(logits, dim=1)


class Table:
    """Language model with fixed probabilities: a table from the tokens so far to the distribution of the next token.

    Sequences that are missing in the table end with id 0. Counts the rows of each step.
    """

    def __init__(self, table: dict[tuple[int, ...], list[float]]) -> None:
        self.table = table
        self.ends = [1.0] + [0.0] * (len(table[()]) - 1)
        self.rows: list[int] = []

    def start(self, batch: int) -> States:
        return States(torch.zeros(batch, 0, dtype=torch.long))

    def step(self, tokens: Tensor, cache: States) -> Tensor:
        self.rows.append(tokens.shape[0])
        logits = []
        for token in tokens.unbind(dim=1):
            cache.states = torch.cat([cache.states, token[:, None]], dim=1)
            cache.lengths = cache.lengths + 1
            logits.append([self.table.get(tuple(row[1:]), self.ends) for row in cache.states.tolist()])
        return torch.tensor(logits, dtype=torch.float64).transpose(0, 1).log()


def enumerate_all(
    model: Recurrent, state: Tensor, start: int, end: int, limit: int, suppress: tuple[int, ...] = ()
) -> dict[tuple[int, ...], float]:
    """The log-probability of every output of at most `limit` tokens, each computed alone, with no search involved."""
    words = [token for token in range(model.vocabulary) if token != end and token not in suppress]
    allowed = torch.tensor([*words, end])
    found = {}
    for length in range(limit + 1):
        for tokens in product(words, repeat=length):
            cache, total = States(state[None]), 0.0
            for given, wanted in zip((start, *tokens), (*tokens, end), strict=True):
                probabilities = model.step(torch.tensor([[given]]), cache)[0, 0, allowed].exp()
                at = allowed.tolist().index(wanted)
                total += float((probabilities[at] / probabilities.sum()).log())
            found[tokens] = total
    return found
