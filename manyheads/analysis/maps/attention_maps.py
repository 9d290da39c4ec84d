"""Attention maps of one input, with methods to write a page or a picture."""

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
    """Attention maps of one input, by axis. `maps["cross"][0].weights` is an array (1, heads, queries, keys)."""

    def _repr_html_(self) -> str:
        return frame([self])

    def page(self, path: str | Path, *others: AttentionMaps, first: int = 0) -> list[str]:
        """Write a self-contained interactive page. Return notes about omitted parts.

        others  maps of other inputs or models, shown side by side
        first   index of the first token shown, from 0, for a text that is too long for a page

        Raises UserError for weights that are not finite, and for `first` outside the text.
        """
        html, left_out = page([self, *others], first)
        write(Path(path), html)
        return left_out

    def draw(self, path: str | Path, **choices: Any) -> list[str]:
        """Write a picture, PNG or SVG by the suffix. Return notes about missing characters.

        choices  keyword arguments of `maps.picture.draw`
        """
        return draw(self, Path(path), **choices)
