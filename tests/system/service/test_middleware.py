"""Access checks of the service before it reads the request body, and the settings for a proxy in front."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.services import Running, client, serving, translator

TOKEN = "0123456789abcdef"
KNOWN = f"Authorization: Bearer {TOKEN}"
ASK = {"q": "the cat", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("gate")
    with serving(folder / "log", translator(folder / "en-de"), MANYHEADS_TOKEN=TOKEN) as service:
        yield service


def answered(running: Running, request: str, *lines: str, body: bytes = b"") -> tuple[int, str, bytes]:
    """Return the status, the head and the body of the answer."""
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=15) as raw:
        told = [f"{request} HTTP/1.1", f"Host: {host}:{port}", "Content-Type: application/json", *lines]
        raw.sendall("\r\n".join([*told, "", ""]).encode() + body)
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        head = "".join(f"{name}: {value}\r\n" for name, value in answer.getheaders())
        return answer.status, head.lower(), answer.read()


@pytest.mark.parametrize("path", ["/v1/completions", "/nbest", "/classify", "/attend", "/v1/models", "/gone"])
@pytest.mark.parametrize("announced", ["Content-Length: 1073741824", "Transfer-Encoding: chunked"])
def test_no_body_is_read_without_a_token(running: Running, path: str, announced: str) -> None:
    """None is sent: the answer comes, though a gigabyte was announced."""
    for more in ((), ("Authorization: Bearer wrong",), ("Expect: 100-continue",)):
        status, head, content = answered(running, f"POST {path}", announced, *more)
        assert (status, json.loads(content)["error"]["code"]) == (401, "invalid_api_key")
        assert "connection: close" in head


def test_key_checks_read_bounded_bodies(running: Running) -> None:
    """LibreTranslate's clients send their key with the body: of one without another key little is read."""
    large = json.dumps(ASK | {"q": "the cat\n" * 9000, "api_key": TOKEN}).encode()
    assert 2**16 < len(large) < 2**22
    length = f"Content-Length: {len(large)}"
    status, head, content = answered(running, "POST /translate", length)  # rejected by Content-Length alone
    assert (status, "connection: close" in head) == (413, True)
    assert "65,536 bytes" in json.loads(content)["error"]
    status, _, _ = answered(
        running, "POST /translate", "Transfer-Encoding: chunked", body=b"1\r\n{\r\n10000\r\n" + large[: 2**16]
    )
    assert status == 413
    for request, more in (("POST /translate", (KNOWN,)), (f"POST /translate?api_key={TOKEN}", ())):
        status, _, content = answered(running, request, length, "Connection: close", *more, body=large)
        assert (status, "lines: expected at most" in json.loads(content)["error"]) == (400, True)
    with client(running) as http:
        assert http.post("/translate", json=ASK | {"api_key": "wrong"}).status_code == 401
        assert http.post("/translate", data=ASK | {"api_key": TOKEN}).status_code == 200


@pytest.mark.parametrize("request_line", ["TRACE /nbest", "POST /nbest", "POST /gone", "GET /healthz"])
def test_a_response_survives_a_late_body(running: Running, request_line: str) -> None:
    """A connection closed while its client still sends is reset, and the answer with it."""
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=15) as raw:
        raw.sendall(f"{request_line} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 300000\r\n\r\n".encode())
        raw.recv(1, socket.MSG_PEEK)  # the answer is there
        for _ in range(3):
            time.sleep(0.05)
            raw.sendall(b"x" * 100_000)
        answer = b""
        while piece := raw.recv(65536):  # to its end
            answer += piece
    head, _, content = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert json.loads(content)


def test_a_connection_is_kept_after_a_complete_read(running: Running) -> None:
    with client(running, headers={"authorization": f"Bearer {TOKEN}"}) as http:
        assert "connection" not in http.post("/translate", json=ASK).headers
        assert "connection" not in http.get("/v1/models").headers
        assert http.request("GET", "/v1/models", content=b"x").headers["connection"] == "close"  # the body is not read


def test_the_service_works_behind_a_proxy(running: Running) -> None:
    """Forwarding headers of a proxy are ignored; Host and Origin are checked as docs/how-to/deploy.md says."""
    name = running.url.removeprefix("http://")
    outer = {"authorization": f"Bearer {TOKEN}", "x-forwarded-host": "translate.example", "x-forwarded-proto": "https",
             "x-forwarded-for": "192.0.2.7", "forwarded": "host=translate.example"}  # fmt: skip
    with client(running) as http:
        assert http.post("/translate", json=ASK, headers=outer | {"host": name}).status_code == 200
        kept = http.post("/translate", json=ASK, headers=outer | {"host": "translate.example"})
        assert (kept.status_code, "expected one of localhost" in kept.json()["error"]) == (421, True)
        assert (
            http.post("/translate", json=ASK, headers=outer | {"host": name, "x-forwarded-host": ""}).status_code == 200
        )
        foreign = http.post("/translate", json=ASK, headers=outer | {"origin": "https://translate.example"})
        assert foreign.status_code == 403
        del outer["authorization"]
        assert http.get("/v1/models", headers=outer | {"x-forwarded-for": "127.0.0.1"}).status_code == 401
    assert "192.0.2.7" not in running.log.read_text()


def test_without_a_token_no_model_name_is_revealed(running: Running) -> None:
    assert json.loads(answered(running, "GET /healthz")[2]) == {"status": "ok", "models": []}
    assert json.loads(answered(running, "GET /healthz", KNOWN)[2]) == {"status": "ok", "models": ["en-de"]}
