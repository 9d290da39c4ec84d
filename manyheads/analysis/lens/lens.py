"""Likeliest words or labels according to each layer, as a table, JSON, picture or interactive page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from manyheads.analysis.lens.layers import LayerStates, predictions
from manyheads.analysis.lens.tuned import TunedLens
from manyheads.analysis.lens.values import LensValues
from manyheads.calls import checked_methods
from manyheads.core.tap import Grid
from manyheads.errors import UserError
from manyheads.files import write

# name of the first row of the lens, which shows the predictions from the embeddings, before any layer
EMBEDDING = "embedding"
MAX_WORDS = 1000  # maximum number of words for each position of each layer


@checked_methods
class Lens(LensValues):
    """Lens of one input: `LensValues` with a picture and a page."""

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

    def _repr_html_(self) -> str:
        from manyheads.analysis.lens.page import frame

        return frame(self)

    def page(self, path: str | Path) -> None:
        """Write an interactive HTML page that needs no other file.

        Raises UserError for a text with too many tokens for a page.

            >>> gpt.lens("the cat").page("lens.html")
        """
        from manyheads.analysis.lens.page import html_page

        write(Path(path), html_page(self))

    def draw(self, path: str | Path) -> list[str]:
        """Draw a picture, PNG, SVG or PDF by the suffix. Returns notes about characters that the font lacks.

        Of a text, layers are drawn from bottom to top and positions from left to right; answers are bold. Of an image,
        the picture shows for each layer the patches, with darker colors for a higher rank of the answer.

        Raises UserError for a text that is too long for a picture.
        """
        from manyheads.analysis.lens.picture import draw_lens

        return draw_lens(self, path)
