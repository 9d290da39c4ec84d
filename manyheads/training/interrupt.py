"""Ctrl-C, SIGTERM and SIGHUP (the terminal was closed). After the first signal the step finishes and a checkpoint is
written; the second aborts at once."""

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """The run was interrupted; its checkpoint is written. The command line exits with status 130."""


class Signals:
    """Within the context, `received` is the number of the signal that asked the run to stop.

    An abort by the second signal does no damage: files are only ever replaced whole. A signal that is ignored (as nohup
    does) stays ignored. A handler that was not installed from Python stays: Python cannot put it back.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python handles signals there only
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                if handler is not None and handler != signal.SIG_IGN:
                    self._previous[number] = handler
                    signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
