"""Display of progress on stderr: a bar on a terminal, otherwise one line every 30 seconds."""

from __future__ import annotations

import time
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

PLAIN_SECONDS = 30.0  # seconds between two lines of progress if stderr is not a terminal


class Progress(Protocol):
    """Finished fraction of a run, 0 to 1, and its progress line. Converted to a string, it is both in one line."""

    @property
    def fraction(self) -> float: ...
    @property
    def text(self) -> str: ...


class ProgressDisplay:
    """Progress callback. Each call displays the values that are passed to it. Also a context manager.

    name  name of the work in front of the bar
    """

    def __init__(self, name: str = "training") -> None:
        console = Console(stderr=True, highlight=False)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"),
            console=console, refresh_per_second=2, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(name, total=1.0, text="", visible=False)
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        if not self._bar.disable:
            self._bar.update(self._task, completed=progress.fraction, text=progress.text, visible=True)
        elif time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            self._bar.console.print(str(progress), markup=False, soft_wrap=True)
