"""`python -m lab.figures_page`: draw the small pictures of docs/tutorials/figures.md; its tables.

Each figure of a source (`lab/concordance_page.py`) has a picture of ours: a diagram, a file of docs/images, or the
first picture after its mark in the executed notebook. Nothing is copied from the sources.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

from lab import diagrams
from lab.concordance_page import DOCS, SOURCES, Item, Place, homes, link, marks, read_items

IMAGES = DOCS / "images"
PICTURES = IMAGES / "figures"
WIDTH = 320  # pixels of a small picture
COLORS = 48


def picture(item: Item) -> Path:
    """Return the file of the small picture of a figure. A diagram of docs/images is shown as it is."""
    if item.picture.endswith(".svg"):
        return IMAGES / item.picture
    return PICTURES / f"{item.key}.{'svg' if item.rows else 'png'}"


def png_after(place: Place) -> bytes:
    """Return the first picture of a notebook after a place. Raise ValueError if there is none."""
    notebook = json.loads((DOCS / place.heading.path).read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in code[place.code_cells :]:
        for output in cell["outputs"]:
            if png := output.get("data", {}).get("image/png"):
                return base64.b64decode("".join(png))
    raise ValueError(f"{place.heading.url}: expected a picture after the mark")


def small(png: bytes) -> bytes:
    """Return a PNG with at most WIDTH pixels in a row and a palette."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.quantize(COLORS, dither=Image.Dither.NONE).save(data, "PNG", optimize=True)
    return data.getvalue()


def figures() -> list[Item]:
    return [item for _, items in read_items().values() for item in items if item.kind == "figure"]


def draw() -> None:
    """Write the small pictures."""
    PICTURES.mkdir(exist_ok=True)
    placed = marks()
    for item in figures():
        if item.rows:
            picture(item).write_text(diagrams.svg(item.rows, item.arrows, item.name), encoding="utf-8")
        elif not item.picture.endswith(".svg"):
            png = (IMAGES / item.picture).read_bytes() if item.picture else png_after(placed[item.key][0])
            picture(item).write_bytes(small(png))


def table(name: str) -> str:
    """Return the heading and the figures of a source."""
    title, items = read_items()[name]
    placed = marks()
    rows = ["| our drawing | figure, and where we show it |", "| --- | --- |"]
    for item in items:
        if item.kind == "figure":
            shown = f"![{item.name}](../{picture(item).relative_to(DOCS).as_posix()})"
            places = "<br>".join(link(heading) for heading in homes(item, placed))
            rows.append(f"| {shown} | {item.place}: {item.name}<br>{places} |")
    return "\n".join([f"## {title}", "", *rows])


def tables() -> str:
    return "\n\n".join(table(name) for name in SOURCES)


PARTS = (tables,)

if __name__ == "__main__":
    draw()
