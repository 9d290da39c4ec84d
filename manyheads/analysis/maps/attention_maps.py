"""Attention maps of one input, with methods that write an interactive page or a picture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, Self

from manyheads.analysis.maps.layers import RecordedMaps
from manyheads.calls import checked_methods
from manyheads.errors import UserError
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

    def opened(
        self, *, axis: str | None = None, layer: int | None = None, head: int | None = None,
        view: Literal["lines", "matrix", "picture"] | None = None,
    ) -> Self:  # fmt: skip
        """Return the same maps with another initial view of the interactive page, which notebooks also display.

        axis   kind of attention. By default, "cross" if present, otherwise the first kind
        layer  index of the layer, from 0, or the step of a layer that is applied several times, from 1
        head   index of the head. By default, the mean over all heads of the layer
        view   "lines" or "matrix" for a text, "picture" or "matrix" for an image

            >>> maps = bert.attend("the cat sat").opened(layer=1, head=0)
            >>> notes = maps.page("attention.html")
        """
        layers = self[axis or ("cross" if "cross" in self.axes else next(iter(self)))]
        by_number = {each.number if each.step is None else each.step: each for each in layers}
        if layer is not None and layer not in by_number:
            raise UserError(f"layer is {layer}: expected one of {', '.join(map(str, by_number))}")
        heads = by_number[layer].heads if layer is not None else ()
        if head is not None and head not in heads:
            raise UserError(f"head is {head}: expected {f'one of {heads}' if heads else 'a layer as well'}")
        asked = {"axis": axis, "layer": layer, "head": head, "view": view}
        return replace(self, opening={name: value for name, value in asked.items() if value is not None})

    def page(self, path: str | Path, *others: AttentionMaps, first: int = 0) -> list[str]:
        """Write an interactive HTML page that needs no other file. Return notes about the parts that the page omits.

        others  attention maps of other inputs or models, which are shown side by side with these maps
        first   index, from 0, of the first token that the page shows, for a text that is too long for a page

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

        axis   "encoder", "decoder", "cross" or "self". By default, cross-attention if present, otherwise the first axis
        style  "matrix" for one heat map per head. "lines" for one panel per layer, with lines from each query to its
               keys and a color per head, for texts only
        query  index of the query token, for an image. By default, the class token, otherwise the patch in the middle

            >>> notes = translator.attend("the cat", heads=[0]).draw("cross.png", axis="cross")
        """
        from manyheads.analysis.maps.picture import draw

        return draw(self, Path(path), axis=axis, style=style, query=query)
