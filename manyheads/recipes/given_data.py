"""A run's data from the functions that read, report and describe them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from manyheads.data.splits import SplitData


@dataclass(frozen=True)
class GivenData:
    path: str | None
    reader: Callable[[], Any]
    reporter: Callable[[Any], str]
    describer: Callable[[Any], dict[str, Any]]
    what: str = "items"

    def peek(self) -> None:
        hub = self.path is not None and self.path.startswith("hub:")  # only training fetches data
        first = None if self.path is None or hub else Path(self.path.split(",")[0])
        if first is not None and not any(first.parent.glob(f"{escape(first.name)}*")):
            raise ValueError(f"data={self.path}: no such file or directory")

    def read(self) -> Any:
        splits = self.reader()
        if isinstance(splits, SplitData):
            if splits.held_out:
                print(
                    f"no validation data: {splits.held_out:,} {self.what} of the training data are held out",
                    file=sys.stderr,
                )
            skips = {
                reason: count for data in splits.known.values() for reason, count in getattr(data, "skips", {}).items()
            }
            for reason, count in skips.items():
                print(f"skipped {count:,} {self.what} of {reason}", file=sys.stderr)
        return splits

    def report(self, splits: Any) -> str:
        return self.reporter(splits)

    def describe(self, splits: Any) -> dict[str, Any]:
        return self.describer(splits)
