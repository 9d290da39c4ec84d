"""Shared functions for drawing figures with matplotlib, which is an optional dependency."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from manyheads.errors import MissingExtra, extra
from manyheads.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# color palette of Okabe & Ito, whose colors remain distinguishable for color-blind readers
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SHOWN = 12  # maximum number of characters of a name in a picture


logger = logging.getLogger(__name__)


@contextmanager
def optional() -> Iterator[None]:
    """Context manager for drawing a picture that is optional.

    If matplotlib is missing, log how to install it instead of raising an error.
    """
    try:
        yield
    except MissingExtra as error:
        logger.warning("no picture: %s", error)


def short_name(model: str | Path) -> str:
    """Return the short model name for a figure: the last part of its path, or OWNER/NAME for a model of the Hub."""
    hub = re.search(r"models--(.+?)--([^/\\]+)[/\\]snapshots", str(model))
    return f"{hub[1]}/{hub[2]}" if hub else PurePath(model).name


def shortened(text: str, length: int = SHOWN) -> str:
    """Return a text of at most `length` characters, which ends in an ellipsis if it was longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, whose size is in inches. Raises MissingExtra without matplotlib."""
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained", facecolor="white")


def save(figure: Figure, path: str | Path) -> None:
    """Save a matplotlib figure as PNG, SVG or PDF, by the suffix of the path, atomically."""
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, dpi=150)


def save_and_report(figure: Figure, path: str | Path, elsewhere: str) -> list[str]:
    """Save a matplotlib figure, and return matplotlib's warnings, one line each.

    All warnings about characters that the font lacks are joined into one line.

    elsewhere  name of another output format that can show these characters, which the warning recommends
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(figure, path)
    messages = [str(warning.message) for warning in caught]
    glyph = re.compile(r"Glyph (\d+) ")
    lacking = {chr(int(character[1])): None for message in messages if (character := glyph.match(message))}
    others = [message.splitlines()[0] for message in messages if not glyph.match(message)]
    notes = [f"the picture's font lacks {' '.join(lacking)}: use {elsewhere} to see them"] if lacking else []
    return notes + list(dict.fromkeys(others))
