"""What the pictures of all analyses have in common."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from manyheads.errors import MissingExtra
from manyheads.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe & Ito: for every colour vision


logger = logging.getLogger(__name__)


@contextmanager
def optional() -> Iterator[None]:
    """Log how to get the picture of a run, instead of raising an error, if matplotlib is missing."""
    try:
        yield
    except MissingExtra as error:
        logger.warning("no picture: %s", error)


def short_name(model: str | Path) -> str:
    """What a picture calls a model: the last part of its path; of one that the Hub gave, OWNER/NAME."""
    hub = re.search(r"models--(.+?)--([^/\\]+)[/\\]snapshots", str(model))
    return f"{hub[1]}/{hub[2]}" if hub else PurePath(model).name


def save(figure: Figure, path: str | Path) -> None:
    """Write a picture, PNG or SVG by the suffix, that replaces the file as a whole."""
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, dpi=150)


def save_and_report(figure: Figure, path: str | Path, elsewhere: str) -> list[str]:
    """The same; returns what matplotlib warns of, each in one line, characters that its font lacks all together.

    elsewhere  what shows such characters
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(figure, path)
    messages = [str(warning.message) for warning in caught]
    glyph = re.compile(r"Glyph (\d+) ")
    lacking = {chr(int(character[1])): None for message in messages if (character := glyph.match(message))}
    others = [message.splitlines()[0] for message in messages if not glyph.match(message)]
    notes = [f"the picture's font lacks {' '.join(lacking)}: {elsewhere} shows them"] if lacking else []
    return notes + list(dict.fromkeys(others))
