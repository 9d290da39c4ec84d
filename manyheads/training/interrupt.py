"""Ctrl-C, SIGTERM and SIGHUP (the terminal was closed): the first lets the step finish and the checkpoint be written,
the second aborts at once."""

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """The run was interrupted; its checkpoint is written. The command line exits with status 130."""


class Signals:
    """Within the context, `received` is the number of the signal that asked the run to stop.

    An abort by the second signal does no damage: files are only ever replaced whole.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python handles signals there only
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
