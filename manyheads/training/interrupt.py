"""Handling of Ctrl-C, SIGTERM and SIGHUP (closed terminal).

After the first signal, the current step finishes and a checkpoint is written. The second signal aborts at once.
"""

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """Error raised when a run was interrupted after writing a checkpoint. The command line exits with status 130."""


class Signals:
    """Context manager that handles the first interrupting signal by storing it in `received`. The training loop then
    stops.

    A second signal aborts the process at once. This is safe because files are only replaced atomically. Signals that
    the process ignores (as with nohup) stay ignored. A signal handler that was not installed from Python stays in
    place, because Python could not restore it afterwards.
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
