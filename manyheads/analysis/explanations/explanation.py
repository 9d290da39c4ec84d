"""Result of `explain`: a value for each token of a text, or for each patch or pixel of an image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.analysis.drawing import save_and_report, short_name
from manyheads.analysis.heat_maps import HeatMaps
from manyheads.analysis.maps.picture_of_image import COLD, HEAT, OPAQUE, Color, heat_scale, muted
from manyheads.analysis.maps.sides import Side
from manyheads.calls import checked_methods
from manyheads.errors import UserError, extra
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LISTED = 20  # number of values that the text form lists
OUTLIERS = 0.01  # fraction of the pixels of an image that may exceed the color scale
HEIGHT = 224  # minimum height in pixels of an image with its heat map
CHARACTERS = 80  # maximum number of characters in a line of a picture
MAX_LINES = 60  # maximum number of lines in a picture
WIDTH, LINE = 7.0, 0.4  # width of a picture and height of a line, in inches
CELLS = 32  # maximum number of rows and columns that a page shows over an image


@checked_methods
@dataclass(frozen=True, repr=False)
class Explanation(HeatMaps):
    """Contribution of each part of an input to a prediction, as one heat map.

    panels       the heat map: one row of tokens of a text, or the patches or pixels of an image
    method       name of the method
    target       name of the explained output: a label or a token
    probability  probability of the target according to the model; None if the model predicts a number
    difference   score of the input minus score of the baseline. The values of integrated gradients sum to it
    side         names of the tokens, and the words to which they belong; None for an image
    """

    heading: ClassVar = "Explanation"

    method: str
    target: str
    probability: float | None
    difference: float | None
    side: Side | None

    @property
    def values(self) -> NDArray[np.float64]:
        """Return the value of each token (T,), or of each patch or pixel (Y, X) of an image."""
        values = self.panels[0].values
        return values if self.side is None else values[0]

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
        return f"{self!r}\n{super().__str__()}"

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
        side, values = self.side.merged(), self.panels[0].values @ self.side.groups().T
        return replace(self, side=side, panels=(self.panels[0]._replace(columns=side.tokens, values=values),))

    def rows(self, count: int = LISTED) -> list[list[str]]:
        """Return a text table of the largest values: tokens in their order, or patches or pixels, largest first.

        >>> classifier.explain("the cat").rows()[0]
        ['token', 'value']
        """
        if self.side is None:
            cells = self.panels[0].largest(count)
            return [["row", "column", "value"], *([row, column, f"{value:.4f}"] for row, column, value in cells)]
        largest = sorted(np.argsort(-np.abs(self.values), kind="stable")[:count])
        return [["token", "value"], *([self.side.tokens[at], f"{self.values[at]:.4f}"] for at in largest)]

    def document(self) -> JsonObject:
        """Return the explanation as JSON data.

        >>> classifier.explain("the cat", target="positive").document()["target"]
        'positive'
        """
        values = {"method": self.method, "target": self.target, "probability": self.probability}
        return {**super().document(), **values, "difference": self.difference, "error": self.error}

    def finding(self) -> JsonObject:
        """Return the heat map as data of a page. Neighboring pixels of an image are added, up to CELLS rows."""
        panel = self.panels[0]
        by = -(-max(panel.values.shape) // CELLS) if self.side is None else 1
        (rows, columns), (high, wide) = panel.values.shape, (-(-count // by) for count in panel.values.shape)
        padded = np.pad(panel.values, ((0, high * by - rows), (0, wide * by - columns)))
        panel = panel._replace(
            rows=panel.rows[::by], columns=panel.columns[::by], cover=(high * by / rows, wide * by / columns),
            values=padded.reshape(high, by, wide, by).sum((1, 3)),
        )  # fmt: skip
        return HeatMaps.finding(replace(self, panels=(panel,)))

    def draw(self, path: str | Path) -> list[str]:
        """Draw a picture, PNG, SVG or PDF: the words of a text, shaded by value, or the image with a heat map.

        Returns notes about characters that the font lacks. Raises UserError for a text of more than MAX_LINES lines.
        """
        with extra("analysis", "a picture"):
            from matplotlib.colors import Normalize
            from matplotlib.figure import Figure

        figure = Figure((WIDTH, 3.5), layout="constrained", facecolor="white")
        title = f"{self!r}\n{short_name(self.model)}"
        if self.side is None:
            panels, place, shape = figure.subplots(1, 2), "right", 20
            panels[0].imshow(self.panels[0].picture, cmap="gray", interpolation="nearest")
            panels[1].imshow(self.overlay(), interpolation="nearest")
            title = f"{title}: {self.title}"
        else:
            panels, place, shape = [figure.subplots()], "bottom", 50
            figure.set_figheight(LINE * _write(panels[0], self.words()) + 1.2)
        for panel in panels:
            panel.axis("off")
        figure.suptitle(title, fontsize=9, parse_math=False)
        scale = heat_scale(Normalize(*self.limits), *self.hues)
        figure.colorbar(scale, ax=panels, location=place, shrink=0.7, aspect=shape).ax.tick_params(labelsize=7)
        return save_and_report(figure, path, "the table")

    @property
    def limits(self) -> tuple[float, float]:
        """Return the limits of the color scale. They are symmetric if some values are negative.

        A few extreme pixels exceed the limits, because the scale would otherwise be too wide for all others.
        """
        largest = float(np.quantile(np.abs(self.values), 1 - OUTLIERS if self.side is None else 1.0)) or 1.0
        low = float(self.values.min())
        return (-largest if low < 0 else low if low < largest else 0.0, largest)

    @property
    def hues(self) -> tuple[Color, Color]:
        """Return the colors of positive and negative values, as on the page."""
        return (HEAT, COLD) if self.side is None else (COLD, HEAT)

    def colors(self) -> NDArray[np.float64]:
        """Return the color of each value as red, green, blue and opacity, (..., 4), from 0 to 1."""
        start, end = max(self.limits[0], 0.0), self.limits[1]
        opacity = OPAQUE * np.clip((np.abs(self.values) - start) / ((end - start) or 1.0), 0, 1)
        return np.concatenate([np.where(self.values[..., None] < 0, *self.hues[::-1]), opacity[..., None]], -1)

    def overlay(self) -> NDArray[np.uint8]:
        """Return the image in gray under its heat map, (Y, X, 3). Small images are enlarged to HEIGHT."""
        assert self.panels[0].picture is not None
        gray, heat = Image.fromarray(muted(self.panels[0].picture)), Image.fromarray((self.colors() * 255).astype("u1"))
        scale = -(-HEIGHT // gray.height)
        size = (gray.width * scale, gray.height * scale)
        layers = [layer.convert("RGBA").resize(size, Image.Resampling.NEAREST) for layer in (gray, heat)]
        return np.asarray(Image.alpha_composite(*layers).convert("RGB"))


def _write(panel: Axes, explanation: Explanation) -> int:
    """Write the words of a text, each above its value, and return the number of lines."""
    from matplotlib.patches import Rectangle

    assert explanation.side is not None
    line, start = 0, 0
    for name, value, color in zip(explanation.side.tokens, explanation.values, explanation.colors(), strict=True):
        text, number = name if len(name) < CHARACTERS else f"{name[: CHARACTERS - 2]}…", f"{value:.2g}"
        width = max(len(text), len(number) * 2 // 3) + 1
        line, start = (line + 1, 0) if start + width > CHARACTERS else (line, start)
        if line >= MAX_LINES:
            raise UserError(f"the text takes more than {MAX_LINES} lines of a picture: shorten it")
        panel.add_patch(Rectangle((start, line + 0.05), width, 0.55, color=color, lw=0))
        for word, down, size in ((text, 0.32, 9), (number, 0.78, 6)):
            panel.text(start + width / 2, line + down, word, fontsize=size, ha="center", va="center",
                       family="monospace", parse_math=False)  # fmt: skip
        start += width + 1
    panel.set(xlim=(0, CHARACTERS), ylim=(line + 1, 0))
    return line + 1
