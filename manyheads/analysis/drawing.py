"""What the pictures of all analyses have in common."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from manyheads.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe & Ito: for every colour vision


def short_name(model: str | Path) -> str:
    """What a picture calls a model: the last part of its path; of one that the Hub gave, OWNER/NAME."""
    hub = re.search(r"models--(.+?)--([^/\\]+)[/\\]snapshots", str(model))
    return f"{hub[1]}/{hub[2]}" if hub else PurePath(model).name


def save(figure: Figure, path: str | Path) -> None:
    """Write a picture, PNG or SVG by the suffix, that replaces the file as a whole."""
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, dpi=150)
