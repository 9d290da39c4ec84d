"""Values of a lens, as a table and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manyheads.core.tap import Grid
from manyheads.files import JsonObject


@dataclass(frozen=True, repr=False)
class LensValues:
    """Most likely words according to each layer, at each token position; for an image, labels at each patch.

    The answer at a position is the most likely word according to the last layer. For an image, the answer at all
    positions is the label that the last layer predicts from the class token, and so is the distribution of `kl`.

    model          name of the model
    title          description of the input
    tokens         T tokens of the input
    layers         L names of layers: "embedding", then the indices of the layers from 0
    words          (L, T, top) most likely words of each layer and position, in descending order of probability
    probabilities  (L, T, top) probabilities of these words
    answers        T answers
    ranks          (L, T) rank of the answer among all words, from 1
    kl             (L, T) Kullback-Leibler divergence KL(last layer || layer) over all words, in nats
    tuned          True for a tuned lens
    grid, picture  grid of the patches, and the preprocessed image, (Y, X, C) uint8; None for a text
    """

    model: str
    title: str
    tokens: tuple[str, ...]
    layers: tuple[str | int, ...]
    words: list[list[list[str]]]
    probabilities: NDArray[np.float32]
    answers: tuple[str, ...]
    ranks: NDArray[np.int64]
    kl: NDArray[np.float32]
    tuned: bool = False
    grid: Grid | None = None
    picture: NDArray[np.uint8] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.title!r} ({len(self.layers)} layers, {len(self.tokens)} tokens)"

    def __str__(self) -> str:
        return "\n".join("\t".join(row) for row in self.rows())

    @property
    def names(self) -> list[str]:
        """Names of the layers for display, such as "layer 0"."""
        return [layer if isinstance(layer, str) else f"layer {layer}" for layer in self.layers]

    def rows(self) -> list[list[str]]:
        """Return a text table of the most likely words, one row per position and one column per layer.

        Each cell holds the most likely word and its probability. For an image, the table has one row per layer, with
        the label of the class token, the rank of the answer, and the divergence from the last layer.

            >>> head, *rows = gpt.lens("the cat").rows()
            >>> head[1:]
            ['embedding', 'layer 0', 'layer 1']
        """
        cells = [[f"{ranked[0]} {p[0]:.0%}" for ranked, p in zip(words, chances, strict=True)]
                 for words, chances in zip(self.words, self.probabilities, strict=True)]  # fmt: skip
        if self.grid is not None:
            numbers = zip(self.names, cells, self.ranks[:, 0], self.kl[:, 0], strict=True)
            head = ["", self.tokens[0], f"rank of {self.answers[0]}", "KL (nats)"]
            return [head, *([name, words[0], str(rank), f"{kl:.2f}"] for name, words, rank, kl in numbers)]
        return [["", *self.names], *([token, *column] for token, *column in zip(self.tokens, *cells, strict=True))]

    def document(self) -> JsonObject:
        """Return all ranked words of each layer and position, the ranks of the answers, and the divergences as JSON.

        >>> sorted(gpt.lens("the cat").document())
        ['answers', 'layers', 'model', 'text', 'tokens', 'tuned']
        """

        def ranked(layer: int, at: int) -> list[JsonObject]:
            chances = self.probabilities[layer, at].tolist()
            return [{"word": word, "probability": p} for word, p in zip(self.words[layer][at], chances, strict=True)]

        return {
            "model": self.model, "text": self.title, "tuned": self.tuned, "tokens": list(self.tokens),
            "answers": list(self.answers),
            "layers": [
                {"layer": layer, "positions": [ranked(row, at) for at in range(len(self.tokens))],
                 "ranks": self.ranks[row].tolist(), "kl": self.kl[row].tolist()}
                for row, layer in enumerate(self.layers)
            ],
        }  # fmt: skip
