"""Notifications for a service manager such as systemd that the service is ready, alive or stopping (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket
import time

from manyheads.service.logs import log_event

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


def notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            try:
                manager.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
            except OSError as error:  # The service manager, which sets NOTIFY_SOCKET, may no longer run.
                log_event("cannot reach NOTIFY_SOCKET", logging.WARNING, state=state, error=str(error))


class Pulse:
    """Watchdog signal to the service manager, which restarts the process if no signal arrives within an interval.

    The signal is sent twice per interval.
    """

    def __init__(self) -> None:
        # The variable is not set if the service manager expects no watchdog signal; the interval is then 0.
        self._every = int(os.environ.get("WATCHDOG_USEC", 0)) / 2e6
        self._last = time.monotonic()

    def beat(self) -> None:
        now = time.monotonic()
        if self._every and now - self._last >= self._every:
            self._last = now
            notify(ALIVE)
