"""What the pictures of all analyses have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: str | Path) -> None:
    """Write a picture, PNG or SVG by the suffix, that replaces the file as a whole."""
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, dpi=150)
