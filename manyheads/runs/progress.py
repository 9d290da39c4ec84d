"""Display of progress: a bar on a terminal or in a notebook, otherwise one line every 30 seconds on stderr."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from manyheads.training.run_log import Progress

PLAIN_SECONDS = 30.0  # seconds between two lines of progress if there is no bar
WIDE = 100  # columns of a terminal from which the bar is twice as long


class ProgressLines:
    """Progress callback that writes one line every 30 seconds.

    write  function that receives each line, such as `print`
    delay  seconds before the first line
    """

    def __init__(self, write: Callable[[str], object], delay: float = 0.0) -> None:
        self._write, self._due = write, time.monotonic() + delay

    def __call__(self, progress: object) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PLAIN_SECONDS
            self._write(str(progress))


class ProgressDisplay:
    """Progress callback for training. Each call displays the values that are passed to it. Also a context manager.

    The bar has the finished percentage and the remaining time. If the terminal is narrow, details are left out.

    name  name of the work in front of the bar
    """

    def __init__(self, name: str = "training") -> None:
        self._name, self._console = name, Console(stderr=True, highlight=False)
        # A notebook keeps every version of a line that a command in a cell draws again.
        in_cell = "JPY_PARENT_PID" in os.environ
        plain = in_cell or not self._console.is_terminal or self._console.is_dumb_terminal
        self._bar_width = 40 if self._console.width >= WIDE else 20
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(self._bar_width), TextColumn("{task.percentage:3.0f}%"),
            TextColumn("{task.fields[text]}"), console=self._console, refresh_per_second=2, disable=plain,
        )  # fmt: skip
        self._task = self._bar.add_task(name, total=1.0, text="", visible=False)
        self._cell = _Cell() if self._console.is_jupyter else None
        self._lines = ProgressLines(self._print, PLAIN_SECONDS)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        self.show(progress.fraction, progress.left, progress.details)

    def show(self, fraction: float, left: str, details: Sequence[str]) -> None:
        """Display the finished fraction of the work, 0 to 1, the remaining time, and details in order of importance."""
        if self._cell is not None:
            self._cell.show(self._name, fraction, [left, *details])
        elif self._bar.disable:
            self._lines("  ".join([f"{fraction:4.0%}", *details, left]))
        else:
            text, room = left, self._console.width - len(f"{self._name}  100% ") - self._bar_width
            for detail in details:
                text += f"  {detail}" if len(f"{text}  {detail}") <= room else ""
            self._bar.update(self._task, completed=fraction, text=text, visible=True)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


class _Cell:
    """Progress bar in the output of a notebook's cell."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._display = HTML, display
        self._handle = None

    def show(self, name: str, fraction: float, words: Sequence[str]) -> None:
        bar = f"<progress value='{fraction:.4f}' max='1'></progress>"
        html = self._html(f"{escape(name)} {bar} {fraction:.0%} &nbsp; {escape(' · '.join(words))}")
        if self._handle is None:
            self._handle = self._display(html, display_id=True)
        else:
            self._handle.update(html)


class _Keeper(logging.Handler):
    """Log handler that keeps all records, and passes those from a level on to the handlers that were there before."""

    def __init__(self, passed: logging.Logger, level: int) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._passed, self._level = passed, level

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if record.levelno >= self._level:
            self._passed.callHandlers(record)


@contextmanager
def kept_messages(*, quiet: bool) -> Iterator[list[logging.LogRecord]]:
    """Context manager that keeps the log messages of the package, from level INFO on, in the list that it returns.

    Messages are also logged as the user has configured it.

    quiet  True: log only errors
    """
    logger = logging.getLogger("manyheads")
    level, propagate, before = logger.level, logger.propagate, logging.Logger(logger.name)
    before.parent, before.propagate, before.handlers = logger.parent, propagate, logger.handlers
    keeper = _Keeper(before, logging.ERROR if quiet else logger.getEffectiveLevel())
    logger.handlers, logger.propagate = [keeper], False
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
    try:
        yield keeper.records
    finally:
        logger.handlers, logger.propagate = before.handlers, propagate
        logger.setLevel(level)
