"""What a service manager is told where one listens (systemd, sd_notify(3)): ready, alive, stopping."""

from __future__ import annotations

import logging
import os
import socket
import time

from manyheads.service.logs import tell

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


def notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            try:
                manager.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
            except OSError as error:  # whom it was inherited from may be gone
                tell("nobody listens at NOTIFY_SOCKET", logging.WARNING, state=state, error=str(error))


class Pulse:
    """Says that this process is alive, twice in the time after which its manager believes that it is not."""

    def __init__(self) -> None:
        self._every = int(os.environ.get("WATCHDOG_USEC", 0)) / 2e6  # zero: nobody waits for it
        self._last = time.monotonic()

    def beat(self) -> None:
        now = time.monotonic()
        if self._every and now - self._last >= self._every:
            self._last = now
            notify(ALIVE)
