"""Logit lens: the prediction that the model would make if a given layer were the last one.

The residual stream after the layer passes through the final norm, if the model has one, and the output matrix. For the
last layer, the result is the model's prediction. Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.analysis.drawing import save_and_report
from manyheads.calls import checked_methods
from manyheads.core.block import Stack
from manyheads.core.recording import record
from manyheads.core.runtime import eval_mode
from manyheads.displays import html_table
from manyheads.errors import UserError, extra
from manyheads.files import JsonObject

# name of the first row of the logit lens, which shows the predictions from the embeddings, before any layer
EMBEDDING = "embedding"
LONGEST = 80  # maximum number of token positions in a picture
SHOWN = 12  # maximum number of characters of a word in a picture


@checked_methods
@dataclass(frozen=True, repr=False)
class Lens:
    """Most likely words according to each layer, at each token position.

    model          name of the model
    title          description of the input
    tokens         T tokens of the input
    layers         L names of layers: "embedding", then the indices of the layers from 0
    words          (L, T, top) most likely words of each layer and position, in descending order of probability
    probabilities  (L, T, top) probabilities of these words
    """

    model: str
    title: str
    tokens: tuple[str, ...]
    layers: tuple[str | int, ...]
    words: list[list[list[str]]]
    probabilities: NDArray[np.float32]

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.title!r} ({len(self.layers)} layers, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str:
        head, *rows = self.rows()
        return html_table(head, rows)

    def __str__(self) -> str:
        return "\n".join("\t".join(row) for row in self.rows())

    def rows(self) -> list[list[str]]:
        """Return a text table of the most likely words, one row per position and one column per layer.

        Each cell holds the most likely word and its probability.

            >>> head, *rows = gpt.lens("the cat").rows()
            >>> head[1:]
            ['embedding', 'layer 0', 'layer 1']
        """
        head = ["", *(layer if isinstance(layer, str) else f"layer {layer}" for layer in self.layers)]
        return [head] + [
            [token, *(f"{words[at][0]} {chances[at, 0]:.0%}" for words, chances in zip(
                self.words, self.probabilities, strict=True))]
            for at, token in enumerate(self.tokens)
        ]  # fmt: skip

    def document(self) -> JsonObject:
        """Return all ranked words of each layer and position as JSON data.

        >>> sorted(gpt.lens("the cat").document())
        ['layers', 'model', 'text', 'tokens']
        """

        def ranked(layer: int, at: int) -> list[JsonObject]:
            chances = self.probabilities[layer, at].tolist()
            return [{"word": word, "probability": p} for word, p in zip(self.words[layer][at], chances, strict=True)]

        return {
            "model": self.model, "text": self.title, "tokens": list(self.tokens),
            "layers": [
                {"layer": layer, "positions": [ranked(row, at) for at in range(len(self.tokens))]}
                for row, layer in enumerate(self.layers)
            ],
        }  # fmt: skip

    def draw(self, path: str | Path) -> list[str]:
        """Draw a picture, PNG or SVG, with layers from bottom to top and token positions from left to right.

        Words that the last layer predicts at the same position are bold. Returns notes about characters that the font
        lacks. Raises UserError for a text of more than LONGEST tokens.
        """
        with extra("analysis", "a picture"):
            from matplotlib.figure import Figure

        if len(self.tokens) > LONGEST:
            raise UserError(f"{len(self.tokens)} tokens are too many for a picture: shorten the text to {LONGEST}")
        likeliest = self.probabilities[..., 0]  # (L, T)
        shown = [[_short(ranked[0]) for ranked in row] for row in self.words]
        columns = max(len(word) for row in [*shown, [_short(token) for token in self.tokens]] for word in row)
        wide, high = 1.3 + len(self.tokens) * (0.2 + 0.075 * columns), 1.3 + 0.3 * len(self.layers)
        figure = Figure(figsize=(max(wide, 4.0), high), layout="constrained", facecolor="white")
        panel = figure.subplots()
        image = panel.imshow(likeliest, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
        for row, words in enumerate(shown):
            for at, word in enumerate(words):
                panel.text(
                    at, row, word, ha="center", va="center", fontsize=8, parse_math=False,
                    color="white" if likeliest[row, at] > 0.55 else "black",
                    weight="bold" if self.words[row][at][0] == self.words[-1][at][0] else "normal",
                )  # fmt: skip
        names = [layer if isinstance(layer, str) else f"layer {layer}" for layer in self.layers]
        panel.set_yticks(range(len(names)), names, fontsize=8)
        panel.set_xticks(range(len(self.tokens)), [_short(token) for token in self.tokens], fontsize=8)
        for label in panel.get_xticklabels():
            label.set_parse_math(False)
        panel.tick_params(length=0)
        title = f"{self.model}: {self.title}"
        limit = int(14 * max(wide, 4.0))
        panel.set_title(title if len(title) <= limit else f"{title[: limit - 1]}…", fontsize=9, parse_math=False)
        bar = figure.colorbar(image, ax=panel, pad=0.01)
        bar.set_label("probability", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        return save_and_report(figure, path, "the table")


def logit_lens(
    model: nn.Module, stack: str, project: Callable[[Tensor], Tensor], *inputs: Tensor | None
) -> Iterator[Tensor]:
    """Run the model once, and yield the logits (B, T, V) for the embeddings and then for the output of each layer.

    stack    name of the stack of layers, such as the decoder
    project  the model's own function from normalized states (B, T, D) to logits
    inputs   arguments of the model's `forward`

    Raises UserError for a model without a stack of this name.
    """
    layers = getattr(model, stack, None)
    if not isinstance(layers, Stack):
        raise UserError(f"the logit lens needs a stack of layers: {type(model).__name__} has none")
    with eval_mode(model), record(model, [stack, f"{stack}.blocks.*"], of="residual") as states:
        model(*inputs)
    for (state,) in states.values():
        with torch.no_grad():
            logits = project(state if layers.norm is None else layers.norm(state))
        yield logits


def _short(word: str) -> str:
    return word if len(word) <= SHOWN else f"{word[: SHOWN - 1]}…"
