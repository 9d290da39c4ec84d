"""Malformed requests from a seeded generator: the bytes of each, and the client's behavior after sending."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "lm", "prompt": "the cat", "max_tokens": 8, "seed": 3, "temperature": 0.8},
    "/translate": {"q": "the cat sat", "source": "en", "target": "de"},
    "/nbest": {"model": "en-de", "texts": ["the cat", "the mat"], "count": 2},
    "/classify": {"model": "tell", "texts": ["the dog"], "top": 2},
    "/detect": {"q": "the dog"},
    "/attend": {"model": "tell", "text": "the cat"},
}
WRONG: tuple[Any, ...] = (None, True, -1, 0.5, "", "1", [], [[]], {}, [None], {"a": []}, ["a", 1], "\x00",
                          "a" * 200_000, ["a"] * 5000)  # fmt: skip
HUGE = ("1e400", "-1e400", "9" * 400, "-" + "9" * 4000, "1" + "0" * 90_000, "NaN", "Infinity", "1e-400", "0.1e99999999")
REQUEST = "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{lines}\r\n"
WAIT, LEAVE, SLOW = "wait", "leave", "slow"  # behavior of a client after sending
Made = tuple[bytes, str]


def message(path: str, body: bytes, *, kind: str = "application/json", lines: str | None = None) -> bytes:
    lines = f"Content-Length: {len(body)}\r\n" if lines is None else lines
    return REQUEST.format(path=path, kind=kind, lines=lines).encode("latin-1") + body


def good(rng: random.Random) -> tuple[str, dict[str, Any]]:
    path = rng.choice(list(GOOD))
    return path, dict(GOOD[path])


def no_json(rng: random.Random) -> Made:
    path, body = good(rng)
    text = bytearray(json.dumps(body).encode())
    if rng.random() < 0.5:
        del text[rng.randrange(len(text)) :]
    for _ in range(rng.randrange(1, 4)):
        text.insert(rng.randrange(len(text) + 1), rng.randrange(256))
    return message(path, bytes(text)), WAIT


def wrong_types(rng: random.Random) -> Made:
    path, body = good(rng)
    for field in rng.sample([*body, "surprise", "\ud800"], 2):
        body[field] = rng.choice(WRONG)
    if rng.random() < 0.2:
        return message(path, json.dumps(rng.choice([body, list(body), [body], "x", 1])).encode(), kind="text/xml"), WAIT
    return message(path, json.dumps(rng.choice([body, body, list(body), [body]])).encode()), WAIT


def huge_numbers(rng: random.Random) -> Made:
    path, body = good(rng)
    field = rng.choice([*body, "max_tokens", "top", "count", "beam", "alternatives"])
    return message(path, json.dumps(body | {field: "@"}).replace('"@"', rng.choice(HUGE)).encode()), WAIT


def deep_nesting(rng: random.Random) -> Made:
    path, body = good(rng)
    depth = int(10 ** rng.uniform(2, 5.5))
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}"), ('[{"a":[', "]}]")])
    nested = opening * depth + "1" + closing * depth * rng.randrange(2)
    return message(path, json.dumps(body | {rng.choice(list(body)): "@"}).replace('"@"', nested).encode()), WAIT


def wrong_lengths(rng: random.Random) -> Made:
    path, body = good(rng)
    text = json.dumps(body).encode()
    size = len(text)
    lengths = (
        -1,
        "",
        "abc",
        "1e3",
        f"+{size}",
        f"{size} ",
        f"{size}, {size + 1}",
        "9" * 5000,
        "0x10",
        "²",
        size - 9,
        size + 9,
    )
    length = rng.choice(lengths)
    lines = f"Content-Length: {length}\r\n" + ("Content-Length: 3\r\n" if rng.random() < 0.2 else "")
    return message(path, text, lines=lines), LEAVE if length == size + 9 else WAIT


def chunked_nonsense(rng: random.Random) -> Made:
    path, body = good(rng)
    text = json.dumps(body).encode()
    size = b"%x" % len(text)
    bodies = (
        b"zz\r\n", b"-5\r\nabc\r\n", b"f" * 40 + b"\r\n", b"ffffffff\r\nabc", size + b"\r\n" + text, b"0" * 90_000,
        size + b";" + b"x" * 90_000 + b"\r\n" + text, b"1\r\n{\r\n" * 2000 + b"0\r\n\r\n", b"5\r\n{}\r\n0\r\n\r\n",
        size + b"\r\n" + text + b"\r\n0\r\nContent-Length: 3\r\n" + b"a: b\r\n" * 3000 + b"\r\n", b"\r\n" * 500,
    )  # fmt: skip
    codings = ("chunked", "chunked", "chunked, chunked", "gzip", "gzip, chunked", "chunked\r\nContent-Length: 4", "x")
    return message(path, rng.choice(bodies), lines=f"Transfer-Encoding: {rng.choice(codings)}\r\n"), LEAVE


def nuls(rng: random.Random) -> Made:
    path, body = good(rng)
    text = message(path, json.dumps(body).encode())
    at = rng.randrange(len(text))
    return text[:at] + b"\x00" * rng.choice([1, 1, 3, 5000]) + text[at:], LEAVE


def not_utf8(rng: random.Random) -> Made:
    path, body = good(rng)
    broken = bytes(rng.randrange(128, 256) for _ in range(rng.choice([1, 2, 4, 3000])))
    text = json.dumps(body | {rng.choice(list(body)): "@"}).encode().replace(b"@", broken)
    kind = rng.choice(
        ["application/json", "application/x-www-form-urlencoded", "\xff\xfe", "application/json; charset=utf-7"]
    )
    wrong = f"{path}/{broken[:4].decode('latin-1')}" if rng.random() < 0.2 else path
    return message(wrong, text if rng.random() < 0.5 else b"q=%ff%" + broken, kind=kind), WAIT


def a_gigabyte(rng: random.Random) -> Made:
    path, _ = good(rng)
    return message(
        path, b"{" * rng.choice([0, 1, 90_000]), lines=f"Content-Length: {2**30 + rng.randrange(9)}\r\n"
    ), WAIT


def no_http(rng: random.Random) -> Made:
    path, _ = good(rng)
    noise = bytes(rng.randrange(256) for _ in range(rng.choice([1, 30, 3000])))
    start = f"{rng.choice(['GET', 'PUT', 'post', 'X' * 9000, 'GET /x'])} {path}"
    return rng.choice([
        noise, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        f"{start} HTTP/{rng.choice(['9.9', '0.9', '1.1 1.1', ''])}\r\n\r\n".encode(), b"\r\n" * 9000,
        f"{start} HTTP/1.1\r\n\r\n".encode(),
        b"GET /" + b"a" * 90_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET http:// HTTP/1.1\r\nHost: \r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * rng.choice([90, 9000]) + b" fold\r\nno colon\r\n\r\n",
        b"GET /page/../../../etc/passwd%00 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + noise + b"\r\n\r\n",
    ]), LEAVE  # fmt: skip


def vanishing(rng: random.Random) -> Made:
    """Request work and disconnect before the answer."""
    long = {"model": "lm", "prompt": "the", "max_tokens": 900, "stream": rng.random() < 0.5}
    path, body = rng.choice([("/v1/completions", long), good(rng)])
    text = message(path, json.dumps(body).encode())
    return text[: rng.choice([len(text), len(text), rng.randrange(len(text))])], LEAVE


def slow(rng: random.Random) -> Made:
    path, body = good(rng)
    text = message(path, json.dumps(body).encode())
    return text[: rng.choice([9, text.index(b"{") + 2])], SLOW


KINDS: dict[str, Callable[[random.Random], Made]] = {
    "no JSON": no_json, "wrong types": wrong_types, "huge numbers": huge_numbers, "deep nesting": deep_nesting,
    "wrong lengths": wrong_lengths, "chunked nonsense": chunked_nonsense, "NULs": nuls, "not UTF-8": not_utf8,
    "a gigabyte announced": a_gigabyte, "no HTTP": no_http, "vanishing clients": vanishing, "slow clients": slow,
}  # fmt: skip
