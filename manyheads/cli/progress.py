"""Display of progress on stderr: a bar on a terminal, otherwise one line every 30 seconds."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from manyheads.training.run_log import Progress

PLAIN_SECONDS = 30.0  # seconds between two lines of progress if stderr is not a terminal


class ProgressDisplay:
    """Progress callback for training. Each call displays the values that are passed to it. Also a context manager.

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
        self.show(progress.fraction, progress.text)

    def show(self, fraction: float, text: str) -> None:
        """Display the finished fraction of the work, 0 to 1, and a line of text."""
        if not self._bar.disable:
            self._bar.update(self._task, completed=fraction, text=text, visible=True)
        elif time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            self._bar.console.print(f"{fraction:4.0%}  {text}", markup=False, soft_wrap=True)
