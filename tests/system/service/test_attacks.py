"""Malformed, huge, slow and incomplete requests: each gets a clear error, and other clients are not affected."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.services import Running, bert, client, language_model, serving, translator


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("models")
    models = language_model(folder / "lm", max_positions=1024), translator(folder / "en-de"), bert(
        folder / "tell", head="sequence", labels=("en", "de"))  # fmt: skip
    with serving(folder / "log", *models, "--detect", "tell", "--max-body", "100000", "--deadline", "60") as service:
        yield service
        assert not [line for line in service.lines() if line.get("status", 0) >= 500 or "traceback" in line]
        assert service.stop() == 0


@pytest.fixture(autouse=True)
def _it_still_answers(running: Running) -> Iterator[None]:
    yield
    with client(running) as http:
        found = http.post("/v1/completions", json={"model": "lm", "prompt": "the cat", "max_tokens": 2})
        assert found.status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"model": "lm", "max_tokens": "4"}, "max_tokens"),
        ({"model": "lm", "max_tokens": 10**30}, "max_tokens"),
        ({"model": "lm", "max_tokens": True}, "max_tokens"),
        ({"model": "lm", "temperature": -1}, "temperature"),
        ({"model": "lm", "temperature": 1e-9}, "temperature"),
        ({"model": "lm", "prompt": {"a": 1}}, "prompt"),
        ({"model": "lm", "prompt": []}, "prompt"),
        ({"model": "lm", "prompt": ["a", 1]}, "prompt.1"),
        ({"model": "lm", "prompt": [10**6]}, "prompt"),
        ({"model": "lm", "prompt": ["a", "cat " * 2000]}, "prompt.1"),
        ({"model": "lm", "stop": ["a"] * 5}, "stop"),
        ({"model": "lm", "logprobs": 21}, "logprobs"),
        ({"model": "lm", "logprobs": 3, "stream": True}, "logprobs"),
        ({"model": "lm", "max_tokens": 0}, "max_tokens"),
        ({"model": "lm", "presence_penalty": 1}, "presence_penalty"),
        ({"model": "lm", "surprise": 3}, "surprise"),
        ({"prompt": "a"}, "model"),
        ({"model": "gone"}, "model"),
        ({"model": "tell"}, "model"),
    ],
)
def test_the_wrong_field_is_named(running: Running, body: dict[str, Any], field: str) -> None:
    with client(running) as http:
        found = http.post("/v1/completions", json=body)
    assert found.status_code in (400, 404), found.text
    assert found.json()["error"]["param"] == field
    assert found.headers["x-request-id"]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b'{"model": "lm", "prompt": "\\ud800"}', "application/json", 400),
        (b'{"model": "lm", "temperature": NaN}', "application/json", 400),
        (b'{"model": "lm", "prompt": "\xff"}', "application/json", 400),
        (b"[" * 90_000, "application/json", 400),
        (b'{"model":' * 9_000, "application/json", 400),
        (b"1" * 90_000, "application/json", 400),
        (b'{"model": "lm"}', "text/plain", 415),
        (b'{"model": "lm"}', "", 415),
        (b"{" + b" " * 200_000, "application/json", 413),
    ],
)
def test_invalid_bodies_are_refused(running: Running, content: bytes, kind: str, status: int) -> None:
    with client(running) as http:
        found = http.post("/v1/completions", content=content, headers={"content-type": kind})
    assert found.status_code == status, found.text
    assert found.json()["error"]["message"]


def test_an_endless_request_body_is_refused_early(running: Running) -> None:
    """A gigabyte in pieces, its length not told: refused after the first hundred kilobytes, without keeping them."""
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc to read the memory of a process from")
    before = running.megabytes()
    sent = 0
    with open_socket(running) as raw:
        raw.sendall(head("/translate", "Transfer-Encoding: chunked"))
        piece = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
        try:
            while sent < 2**30:
                raw.sendall(piece)
                sent += 0x10000
        except OSError:
            pass  # the service has hung up
    assert sent < 64 * 2**20
    assert running.megabytes() - before < 50
    with open_socket(running) as raw:
        raw.sendall(head("/v1/completions", f"Content-Length: {2**30}"))
        assert b" 413 " in raw.recv(4096)


def test_small_forms_with_many_or_wrong_fields_are_refused(running: Running) -> None:
    with client(running) as http:
        many = http.post("/translate", content="&".join(f"a{i}=1" for i in range(9000)),
                         headers={"content-type": "application/x-www-form-urlencoded"})  # fmt: skip
        assert (many.status_code, set(many.json())) == (400, {"error"})
        missing = http.post("/translate", data={"q": "the cat"})
        assert missing.json()["error"].startswith("target: ")


def test_slow_and_vanishing_clients_block_no_one(running: Running) -> None:
    long = {"model": "lm", "prompt": "the", "max_tokens": 50_000, "temperature": 0}
    slow = [open_socket(running) for _ in range(30)]
    for i, raw in enumerate(slow):
        if i % 3 == 0:
            raw.sendall(b"POST /v1/comp")  # a head that does not come
        elif i % 3 == 1:
            raw.sendall(head("/v1/completions", "Content-Length: 100") + b"{")  # a body that does not come
        else:  # a stream that is not read
            body = json.dumps({**long, "stream": True}).encode()
            raw.sendall(head("/v1/completions", f"Content-Length: {len(body)}") + body)
    began = time.monotonic()
    with client(running) as http:
        assert http.post("/translate", json={"q": "cat", "source": "en", "target": "de"}).status_code == 200
        took = time.monotonic() - began
        for raw in slow:
            raw.close()
        assert took < 30
        for _ in range(300):
            counts = http.get("/metrics").text
            if 'manyheads_cancelled_total{model="lm"} 10.0' in counts:
                break
            time.sleep(0.1)
        else:
            raise AssertionError(counts)


def test_other_hosts_methods_and_paths_are_refused(running: Running) -> None:
    with client(running) as http:
        evil = http.get("/v1/models", headers={"host": "evil.example"})
        assert (evil.status_code, evil.json()["error"]["param"]) == (421, "Host")
        assert http.get("/v1/models", headers={"host": "localhost:1"}).status_code == 200
        assert http.get("/v1/completions").status_code == 405
        for path in ("/../../etc/passwd", "/static/../../x", "/v1/models/../../etc/passwd", "/%2e%2e/x"):
            assert http.get(path).status_code == 404
        form, own = {"q": "the cat", "source": "en", "target": "de"}, running.url
        for origin, status in ((None, 200), (own, 200), ("http://x", 403), ("null", 403), (f"{own}0", 403)):
            headers = {} if origin is None else {"origin": origin}
            found = http.post("/translate", data=form, headers=headers)
            assert found.status_code == status, found.text
            assert "access-control-allow-origin" not in found.headers


def test_many_lines_are_answered_at_once(running: Running) -> None:
    """Also where source and target are one, and no model has anything to do."""
    with client(running) as http:
        blank = ([""] * 127 + ["\n" * 30_000], "\n" * 513, ["\n" * 5] * 128)  # blank lines are not translated
        for q in (*blank, ["a\n" * 5] * 128, "a\n" * 513):
            for source in ("de", "en", "auto"):
                began = time.monotonic()
                found = http.post("/translate", json={"q": q, "source": source, "target": "de", "alternatives": 10})
                assert time.monotonic() - began < 5
                if q in blank and source != "auto":
                    assert found.json()["translatedText"] == q
                else:
                    expected = "is blank" if q in blank else "lines: expected at most 512"
                    assert (found.status_code, expected in found.json()["error"]) == (400, True), found.text
        many = {"q": ["a\nb"] * 128, "source": "de", "target": "de", "alternatives": 1}
        assert http.post("/translate", json=many).json() == {
            "translatedText": many["q"], "alternatives": [["a\nb"]] * 128,
        }  # fmt: skip


@pytest.mark.slow
def test_random_requests_get_a_response(running: Running) -> None:
    """Of every kind that is wrong: none ends in a failure of the service."""
    rng = random.Random(0)
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        1,
        1e308,
        "",
        "the cat",
        "\x00",
        [],
        [[]],
        {},
        [None],
        "a" * 5000,
        ["a"] * 200,
    ]
    names = ("model", "prompt", "q", "source", "target", "texts", "top", "input", "beam", "question", "context", "n")
    paths = (
        "/v1/completions",
        "/v1/embeddings",
        "/translate",
        "/detect",
        "/classify",
        "/tag",
        "/fill",
        "/answer",
        "/nbest",
    )
    with client(running) as http:
        for _ in range(400):
            body = {name: rng.choice(values) for name in rng.sample(names, 4)}
            if rng.random() < 0.7:
                body["model"] = rng.choice(["lm", "tell", "en-de"])
            text = json.dumps(body).encode()
            if rng.random() < 0.3:
                text = text[: rng.randrange(len(text))] + bytes([rng.randrange(256)])
            found = http.post(rng.choice(paths), content=text, headers={"content-type": "application/json"})
            assert found.status_code in (200, 400, 404), found.text


def head(path: str, *lines: str) -> bytes:
    told = ["Host: localhost", "Content-Type: application/json", *lines]
    return f"POST {path} HTTP/1.1\r\n".encode() + "".join(f"{line}\r\n" for line in told).encode() + b"\r\n"


def open_socket(running: Running) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)
