"""HTTP protocol of uvicorn, with timeouts for clients that send headers or read responses slowly."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

# A client must send the headers of its first request within this number of seconds after it connects, and the headers
# of a later request within this number of seconds after their first byte.
HEAD_SECONDS = 10.0
# A client must read at least SLOWEST bytes in this number of seconds while a part of the response is still unsent.
STALLED_SECONDS = 30.0
SLOWEST = 2**15


class BoundedProtocol(H11Protocol):
    """HTTP protocol that closes the connection to a client that is too slow.

    The client is too slow if its headers do not arrive in time, or if it does not read the response.
    """

    _head: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn expects a transport with writes
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._head is None and self._idle:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
        super().data_received(data)
        if self._head is not None and not self._idle:
            self._head.cancel()
            self._head = None

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._start_timer()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _start_timer(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self._check_progress, unread)

    def _check_progress(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() > unread - SLOWEST:
            self.transport.abort()
        else:
            self._start_timer()

    @property
    def _idle(self) -> bool:
        """True if the connection is not processing a request."""
        return self.cycle is None or self.cycle.response_complete
