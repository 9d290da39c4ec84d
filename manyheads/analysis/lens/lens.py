"""Likeliest words or labels according to each layer, as a table, JSON, picture or interactive page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from manyheads.analysis.lens.layers import LayerStates, predictions
from manyheads.analysis.lens.tuned import TunedLens
from manyheads.calls import checked_methods
from manyheads.core.tap import Grid
from manyheads.errors import UserError
from manyheads.files import JsonObject, write

# name of the first row of the lens, which shows the predictions from the embeddings, before any layer
EMBEDDING = "embedding"
MAX_WORDS = 1000  # maximum number of words for each position of each layer


@checked_methods
@dataclass(frozen=True, repr=False)
class Lens:
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

    @classmethod
    def of(
        cls, states: LayerStates, model: str, title: str, tokens: Sequence[str], name: Callable[[int], str], top: int,
        *, tuned: TunedLens | None = None, grid: Grid | None = None, picture: NDArray[np.uint8] | None = None,
    ) -> Self:  # fmt: skip
        """Return the lens of one input.

        states  states of all layers
        name    function from the index of an output to its name
        top     number of words for each layer and position, at most 1000
        tuned   tuned lens; None: the logit lens
        """
        if not 1 <= top <= MAX_WORDS:
            raise UserError(f"top is {top}: expected 1 to {MAX_WORDS}")
        translate = None if tuned is None else tuned.translate
        found = predictions(states, top, translate, first=grid is not None)
        names = {index: name(index) for index in {*found.ids.ravel().tolist(), *found.answers.tolist()}}
        words = [[[names[index] for index in ranked] for ranked in layer] for layer in found.ids.tolist()]
        answers = tuple(names[index] for index in found.answers.tolist())
        layers = (EMBEDDING, *range(len(words) - 1))
        return cls(
            model, title, tuple(tokens), layers, words, found.probabilities, answers, found.ranks, found.kl,
            tuned is not None, grid, picture,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.title!r} ({len(self.layers)} layers, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str:
        from manyheads.analysis.lens.page import frame

        return frame(self)

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

    def page(self, path: str | Path) -> None:
        """Write an interactive HTML page that needs no other file.

        Raises UserError for a text with too many tokens for a page.

            >>> gpt.lens("the cat").page("lens.html")
        """
        from manyheads.analysis.lens.page import page

        write(Path(path), page(self))

    def draw(self, path: str | Path) -> list[str]:
        """Draw a picture, PNG, SVG or PDF by the suffix. Returns notes about characters that the font lacks.

        Of a text, layers are drawn from bottom to top and positions from left to right; answers are bold. Of an image,
        the picture shows for each layer the patches, with darker colors for a higher rank of the answer.

        Raises UserError for a text that is too long for a picture.
        """
        from manyheads.analysis.lens.picture import draw

        return draw(self, path)
