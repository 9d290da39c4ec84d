"""Attention maps of one input, with methods that write an interactive page or a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from manyheads.analysis.maps.layers import RecordedMaps
from manyheads.calls import checked_methods
from manyheads.files import write

if TYPE_CHECKING:
    from PIL import Image


@checked_methods
@dataclass(frozen=True, repr=False)
class AttentionMaps(RecordedMaps):
    """Attention maps of one input, grouped by kind of attention (axis).

    The axes are "encoder", "decoder" and "cross", or only "self". For example, `maps["cross"][0].weights` is the first
    cross-attention map, an array (1, heads, queries, keys).
    """

    def _repr_html_(self) -> str:
        from manyheads.analysis.maps.page import frame

        return frame([self])

    def page(self, path: str | Path, *others: AttentionMaps, first: int = 0) -> list[str]:
        """Write an interactive HTML page that needs no other file. Returns notes about the parts that the page omits.

        others  attention maps of other inputs or models, shown side by side with these maps
        first   if the text is too long for a page: index, from 0, of the first token that the page shows

        Raises UserError for weights that are not finite, and for `first` outside the text.

            >>> notes = bert.attend("the cat sat").page("attention.html")
        """
        from manyheads.analysis.maps.page import page

        html, left_out = page([self, *others], first)
        write(Path(path), html)
        return left_out

    def image(
        self, *, axis: str | None = None, style: Literal["matrix", "lines"] = "matrix", query: int | None = None
    ) -> Image.Image:
        """Return a static picture of the attention maps, which notebooks show as PNG.

        The options are those of `draw`. The method `attend` selects the layers and heads.

            >>> maps = translator.attend("the cat", layers=[0], heads=[1])
            >>> maps.image(axis="cross").format
            'PNG'
        """
        from PIL import Image

        with TemporaryDirectory() as folder:
            self.draw(path := Path(folder) / "maps.png", axis=axis, style=style, query=query)
            with Image.open(path) as image:
                image.load()
                return image

    def draw(
        self, path: str | Path, *, axis: str | None = None, style: Literal["matrix", "lines"] = "matrix",
        query: int | None = None,
    ) -> list[str]:  # fmt: skip
        """Write a picture of the attention maps, PNG, SVG or PDF by the suffix.

        Returns notes about characters that the font lacks.

        axis   "encoder", "decoder", "cross" or "self"; default: cross-attention if present, otherwise the first axis
        style  "lines": one panel per layer, with lines from each query to its keys and a color per head; texts only
        query  for an image: index of the query token; default: the class token, otherwise the patch in the middle

            >>> notes = translator.attend("the cat", heads=[0]).draw("cross.png", axis="cross")
        """
        from manyheads.analysis.maps.picture import draw

        return draw(self, Path(path), axis=axis, style=style, query=query)
