"""The maps of one input, which can show themselves as a page or a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyheads.analysis.maps.layers import RecordedMaps
from manyheads.analysis.maps.page import frame, page
from manyheads.analysis.maps.picture import draw
from manyheads.files import write


@dataclass(frozen=True, repr=False)
class AttentionMaps(RecordedMaps):
    """The maps of one input, by axis; `maps["cross"][0].weights` is an array (1, heads, queries, keys)."""

    def _repr_html_(self) -> str:
        return frame([self])

    def page(self, path: str | Path, *others: AttentionMaps, first: int = 0) -> list[str]:
        """One interactive page that needs nothing else; `others` stand beside. Returns what had to be left out.

        first  the token that a page begins with, of a text that is longer than a page shows; from 0

        Raises UserError for weights that are no numbers, and for a first token that no text can begin with.
        """
        html, left_out = page([self, *others], first)
        write(Path(path), html)
        return left_out

    def draw(self, path: str | Path, **choices: Any) -> list[str]:
        """A picture, PNG or SVG by the suffix; `choices` are those of `maps.picture.draw`. Returns what it lacks."""
        return draw(self, Path(path), **choices)
