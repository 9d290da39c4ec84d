"""Compatibility with records and model directories that other versions of Manyheads wrote.

Only this module contains formats of other versions. No version has been released yet, so there is no older format to
read. From version 1.0 on, `upgrade` converts the formats of all released versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from manyheads.errors import UserError, shown

LAST_READER = "ee15057a"  # last commit that reads the files of unreleased versions

R = TypeVar("R")


class EarlierVersion(UserError):
    """Error for a file that an unreleased version of Manyheads wrote, and that this version does not read.

    place    path of the file or directory
    missing  names of entries that this version always writes, and that the file does not contain
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
