"""Time limits of the service for clients that read their answers slowly, or not at all."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from manyheads.service import protocol
from manyheads.service.protocol import BoundedProtocol

SIZE = 48 * 2**20  # more than the sockets of both sides hold


async def _large(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", str(SIZE).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(SIZE)})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(protocol, "STALLED_SECONDS", 1.0)
    server = uvicorn.Server(uvicorn.Config(_large, http=BoundedProtocol, lifespan="off", log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


def _received(port: int, *, pause: float, size: int, before: float = 0.0) -> int:
    """Return the number of bytes received, reading `size` bytes at a time with a pause after each read."""
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(before)
        received = 0
        try:
            while part := raw.recv(size, socket.MSG_WAITALL):
                received += len(part)
                time.sleep(pause)
        except ConnectionResetError:
            pass
    return received


def test_slow_steady_clients_get_the_whole_response(port: int) -> None:
    """Reading the whole response takes several times the limit for a read without progress."""
    began = time.monotonic()
    assert _received(port, pause=0.1, size=2**20) > SIZE
    assert time.monotonic() - began > 4


def test_clients_that_do_not_read_are_disconnected(port: int) -> None:
    assert _received(port, pause=0.0, size=2**20, before=3.0) < SIZE
