"""Diagrams of boxes and arrows as SVG, from a few lines of text.

Each row is a line such as "q: Q | k: K | v: V": boxes of equal width from left to right, each with a name and a label.
A box without a name has its label as name; an empty box leaves a gap. The first row is at the top. Arrows are written
as "q > s, k* > s": they go up from box to box, or to the right within a row. "x ~ n" goes around the boxes between
them. A name in an arrow may contain *.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, MARGIN = 320, 28, 26  # pixels: of the picture, of a box, at the left and right
GAP, SPACE = 16, 10  # pixels between rows, and between the boxes of a row
BLUE, PALE, INK = "#0072b2", "#e6f1f8", "#222"
HEAD = (
    '<defs><marker id="head" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
    f'<path d="M0 0 6 3 0 6z" fill="{BLUE}"/></marker></defs>'
)


class Box(NamedTuple):
    """Label, left and right edge, top, and row of a box."""

    label: str
    left: float
    right: float
    top: float
    row: int

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


def boxes(rows: Sequence[str]) -> dict[str, Box]:
    """Return the boxes by name. Raise ValueError for a name that occurs twice."""
    found: dict[str, Box] = {}
    for row, line in enumerate(rows):
        parts = [part.strip() for part in line.split("|")]
        width = (WIDTH - 2 * MARGIN + SPACE) / len(parts)
        for column, part in enumerate(parts):
            name, colon, label = part.partition(": ")
            if part:
                if name in found:
                    raise ValueError(f"diagram: two boxes have the name {name}")
                left = MARGIN + column * width
                found[name] = Box(label if colon else part, left, left + width - SPACE, 6 + row * (HEIGHT + GAP), row)
    return found


def paths(arrows: str, found: dict[str, Box]) -> Iterator[str]:
    """Yield the path of each arrow. Raise ValueError for a name without a box."""
    for arrow in filter(None, (part.strip() for part in arrows.split(","))):
        around = "~" in arrow
        names = [part.strip() for part in arrow.split("~" if around else ">")]
        first, last = ([box for name, box in found.items() if fnmatchcase(name, wanted)] for wanted in names)
        if not first or not last:
            raise ValueError(f"diagram: the arrow {arrow} has no box at an end")
        for a in first:
            for b in last:
                yield _around(a, b) if around else _straight(a, b)


def _straight(a: Box, b: Box) -> str:
    middle = HEIGHT / 2
    if a.row == b.row:
        return f"M{a.right:.0f} {a.top + middle:.0f}H{b.left - 1:.0f}"
    narrow = a if a.right - a.left <= b.right - b.left else b
    inside = a.left <= narrow.middle <= a.right and b.left <= narrow.middle <= b.right
    start, end = (narrow.middle, narrow.middle) if inside else (a.middle, b.middle)
    return f"M{start:.0f} {a.top:.0f}L{end:.0f} {b.top + HEIGHT + 1:.0f}"


def _around(a: Box, b: Box) -> str:
    y, to = a.top + HEIGHT / 4, b.top + HEIGHT * 3 / 4  # the end of one way and the start of the next are apart
    if a.middle < WIDTH / 2 - 20:  # in the left column: around its left side
        return f"M{a.left:.0f} {y:.0f}H{a.left - 16:.0f}V{to:.0f}H{b.left - 1:.0f}"
    return f"M{a.right:.0f} {y:.0f}H{a.right + 16:.0f}V{to:.0f}H{b.right + 1:.0f}"


def svg(rows: Sequence[str], arrows: str, title: str) -> str:
    """Return the diagram as the text of an SVG file."""
    found = boxes(rows)
    height = 12 + len(rows) * (HEIGHT + GAP) - GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12" text-anchor="middle">',
        f"<title>{escape(title)}</title>{HEAD}",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for path in paths(arrows, found):
        parts.append(f'<path d="{path}" fill="none" stroke="{BLUE}" marker-end="url(#head)"/>')
    for box in found.values():
        width = box.right - box.left
        parts.append(
            f'<rect x="{box.left:.1f}" y="{box.top}" width="{width:.1f}" height="{HEIGHT}" rx="4" '
            f'fill="{PALE}" stroke="{BLUE}"/>'
        )
        size = min(12, 1.75 * width / max(len(box.label), 1))
        parts.append(
            f'<text x="{box.middle:.1f}" y="{box.top + 18}" fill="{INK}" font-size="{size:.1f}">'
            f"{escape(box.label)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])
