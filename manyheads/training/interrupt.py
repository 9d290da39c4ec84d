"""Handling of Ctrl-C, SIGTERM and SIGHUP (closed terminal).

After the first signal, the current step finishes and a checkpoint is written. The second signal aborts at once.
"""

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """Interrupted run whose checkpoint is written. The command line exits with status 130."""


class Signals:
    """Context manager that records a signal to stop the run in `received`.

    The second signal aborts without damage, because files are only replaced atomically. A signal that the process
    ignores (as with nohup) stays ignored. A handler that was not installed from Python stays, because Python cannot
    restore it.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python handles signals only in the main thread
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
