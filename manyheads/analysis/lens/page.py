"""Interactive page of a lens, with the style sheet and the colors of the page with attention maps."""

from __future__ import annotations

from manyheads.analysis.drawing import short_name
from manyheads.analysis.lens.values import LensValues
from manyheads.analysis.maps.page import assemble, framed, picture_fields
from manyheads.errors import UserError

CELLS = 30_000  # maximum number of cells of a page, which are layers times positions


def html_page(lens: LensValues) -> str:
    """Return the HTML page of a lens. Raises UserError if it has more than CELLS cells."""
    if (cells := len(lens.layers) * len(lens.tokens)) > CELLS:
        raise UserError(
            f"the page has {cells:,} cells, layers times tokens: expected at most {CELLS:,}. Shorten the text"
        )
    document, name = lens.document(), short_name(lens.model)
    if lens.grid is not None and lens.picture is not None:
        document |= {"grid": lens.grid._asdict(), **picture_fields(lens.picture)}
    heading = "Tuned lens" if lens.tuned else "Lens"
    scripts = "common.js", "lens.js"
    return assemble(heading, "lens-help.html", scripts, f"Lens of {name}", document | {"model": name})


def frame(lens: LensValues) -> str:
    """Return the page as an HTML element for a notebook."""
    return framed(html_page(lens), "Lens")
