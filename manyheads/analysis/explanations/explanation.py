"""Result of `explain`: a value for each token of a text, or for each patch or pixel of an image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.analysis.heat_maps import HeatMaps, Panel
from manyheads.analysis.maps import AttentionMaps
from manyheads.analysis.maps.picture_of_image import COLD, HEAT, OPAQUE, muted
from manyheads.analysis.maps.sides import Side
from manyheads.calls import checked_methods
from manyheads.files import JsonObject, replacing

STRONGEST = 10  # number of patches or pixels in the table of an image
OUTLIERS = 0.01  # fraction of the pixels of an image that may exceed the color scale
HEIGHT = 224  # minimum height in pixels of an image with its heat map


@checked_methods
@dataclass(frozen=True, repr=False)
class Explanation:
    """Contribution of each part of an input to a prediction.

    model        name of the model
    title        description of the input
    method       name of the method
    target       name of the explained output: a label or a token
    probability  probability of the target according to the model; None if the model predicts a number
    values       value of each token (T,), or of each patch or pixel (Y, X) of an image
    side         names of the T tokens; None for an image
    picture      the image as the model sees it, (Y, X) or (Y, X, 3); None for a text
    difference   score of the input minus score of the baseline, to which the values of integrated gradients sum
    """

    model: str
    title: str
    method: str
    target: str
    probability: float | None
    values: NDArray[np.float64]
    side: Side | None
    picture: NDArray[np.uint8] | None = None
    difference: float | None = None

    @property
    def error(self) -> float | None:
        """Return the completeness error: the absolute difference between the sum of the values and `difference`."""
        return None if self.difference is None else abs(float(self.values.sum()) - self.difference)

    def __repr__(self) -> str:
        probability = "" if self.probability is None else f" ({self.probability:.1%})"
        line = f"{self.method} of {self.target!r}{probability}"
        if self.difference is None:
            return line
        return f"{line}: sum {self.values.sum():.4g}, difference of scores {self.difference:.4g}"

    def __str__(self) -> str:
        return "\n".join([repr(self), *("\t".join(row) for row in self.rows())])

    def _repr_html_(self) -> str:
        from manyheads.analysis.maps.page import picture_data

        words = self.words()
        if words.side is None:
            return f"<p>{escape(repr(self))}</p><img src='{picture_data(self.overlay())}'>"
        parts = zip(words.side.tokens, words.values, words.colors(), strict=True)
        return f"<p>{escape(repr(self))}</p>" + " ".join(
            f"<span style='background: rgb({red:.0%} {green:.0%} {blue:.0%} / {alpha:.0%})' title='{value:.4g}'>"
            f"{escape(word)}</span>"
            for word, value, (red, green, blue, alpha) in parts
        )

    def words(self) -> Explanation:
        """Return the values of words, which are the sums of the values of their tokens.

        Special tokens remain as they are. An explanation of an image has no words and is returned unchanged.

            >>> classifier.explain("the cat").words().side.tokens
            ('[CLS]', 'the', 'cat', '[SEP]')
        """
        if self.side is None:
            return self
        return replace(self, side=self.side.merged(), values=self.side.groups() @ self.values)

    def rows(self) -> list[list[str]]:
        """Return a text table with the value of each token, or with the strongest patches or pixels of an image.

        >>> classifier.explain("the cat").rows()[0]
        ['token', 'value']
        """
        if self.side is not None:
            values = zip(self.side.tokens, self.values, strict=True)
            return [["token", "value"], *([token, f"{value:.4f}"] for token, value in values)]
        cells = sorted(np.ndenumerate(self.values), key=lambda cell: -abs(cell[1]))[:STRONGEST]
        return [["row", "column", "value"], *([f"{y}", f"{x}", f"{value:.4f}"] for (y, x), value in cells)]

    def document(self) -> JsonObject:
        """Return the explanation as JSON data, with a list of values, or a list of rows of an image.

        >>> list(classifier.explain("the cat").document())[:4]
        ['model', 'input', 'method', 'target']
        """
        return {
            "model": self.model, "input": self.title, "method": self.method, "target": self.target,
            "probability": self.probability, "difference": self.difference, "error": self.error,
            "tokens": None if self.side is None else list(self.side.tokens), "values": self.values.tolist(),
        }  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write an NPZ file with the fields of `document` that are not None, and the picture, without pickled objects.

        >>> classifier.explain("the cat").save("explanation.npz")
        """
        arrays = {name: np.array(value) for name, value in self.document().items() if value is not None}
        arrays |= {} if self.picture is None else {"picture": self.picture}
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    def page(self, path: str | Path, *maps: AttentionMaps) -> list[str]:
        """Write an interactive HTML page that needs no other file. Returns notes about omitted parts.

        maps  attention maps of the input, which the page shows below

            >>> notes = classifier.explain("the cat").page("words.html", classifier.attend("the cat"))
        """
        if self.side is not None:
            panel = Panel("tokens", (self.target,), self.side.tokens, self.values[None])
        else:
            rows, columns = (tuple(map(str, range(size))) for size in self.values.shape)
            panel = Panel("image", rows, columns, self.values, self.picture)
        found = HeatMaps(self.model, f"{self.title}: {self!r}", self.method, (panel,), heading="Explanation")
        return found.page(path, *maps)

    def draw(self, path: str | Path) -> list[str]:
        """Draw a picture, PNG, SVG or PDF: the words of a text, shaded by value, or the image with a heat map.

        Returns notes about characters that the font lacks.
        """
        from manyheads.analysis.explanations.picture import draw

        return draw(self, Path(path))

    @property
    def limits(self) -> tuple[float, float]:
        """Return the limits of the color scale. They are symmetric if some values are negative.

        A few extreme pixels exceed the limits, because the scale would otherwise be too wide for all others.
        """
        largest = float(np.quantile(np.abs(self.values), 1.0 if self.picture is None else 1 - OUTLIERS)) or 1.0
        return (-largest if (self.values < 0).any() else float(self.values.min()), largest)

    def colors(self) -> NDArray[np.float64]:
        """Return the color of each value as red, green, blue and opacity, (..., 4), from 0 to 1."""
        start, end = max(self.limits[0], 0.0), self.limits[1]
        opacity = OPAQUE * np.clip((np.abs(self.values) - start) / ((end - start) or 1.0), 0, 1)
        return np.concatenate([np.where(self.values[..., None] < 0, COLD, HEAT), opacity[..., None]], -1)

    def overlay(self) -> NDArray[np.uint8]:
        """Return the image in gray under its heat map, (Y, X, 3). Small images are enlarged to HEIGHT."""
        assert self.picture is not None
        gray, heat = Image.fromarray(muted(self.picture)), Image.fromarray((self.colors() * 255).astype(np.uint8))
        scale = -(-HEIGHT // gray.height)
        size = (gray.width * scale, gray.height * scale)
        layers = [layer.convert("RGBA").resize(size, Image.Resampling.NEAREST) for layer in (gray, heat)]
        return np.asarray(Image.alpha_composite(*layers).convert("RGB"))
