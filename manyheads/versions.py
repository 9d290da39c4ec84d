"""Records and model directories of other versions of Manyheads. No other module knows an earlier form.

No version has been released yet, so nothing has to stay readable. From version 1.0 on, `upgrade` converts what each
released version wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from manyheads.errors import UserError, shown

LAST_READER = "ee15057a"  # last commit that reads the files of unreleased versions

R = TypeVar("R")


class EarlierVersion(UserError):
    """Error for a file that an unreleased version of Manyheads wrote, and that this version does not read.

    place    the file or directory
    missing  entries that this version always writes, and that the file lacks
    """

    def __init__(self, place: object, missing: Iterable[str]) -> None:
        super().__init__(
            f"{place}: expected {shown(missing)}, found none: an earlier, unreleased version wrote it. "
            f"Commit {LAST_READER} of Manyheads is the last that reads it"
        )


def check_complete(place: object, missing: Iterable[str]) -> None:
    """Raise EarlierVersion if a file lacks entries that this version always writes."""
    if missing := list(missing):
        raise EarlierVersion(place, missing)


def upgrade(record: R) -> R:
    """Return the content of a file in the form of this version: a record of a run, a checkpoint, or a config.json.

    Every reader of these files calls this function. No released version wrote another form, so the content is returned
    unchanged.
    """
    return record
