"""Requests to a model: lines on stdin, command-line arguments, and requests to the service."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from manyheads.cli import main
from manyheads.cli.reporting import BAD_INPUT
from tests.stress.fuzzing.inputs import Files
from tests.stress.fuzzing.targets.models import SIZES, saved
from tests.stress.fuzzing.targets.target import Refused, Target

_MADE: dict[str, Path] = {}  # our models, unchanged: only the requests are mutated
VERBS = {
    "translate": ("transformer", b"the cat\nthe dog sat\n"),
    "classify": ("bert", b"the cat\n"),
    "tag": ("bert-features", b"the cat, the mat\n"),
    "generate": ("gpt2", b"the cat\n"),
}
WORDS = {
    "translate": ["--beam", "2", "--nbest", "2"],
    "classify": ["--top", "2"],
    "tag": [],
    "generate": ["--max-tokens", "3", "--temperature", "0"],
}

MOST_WORDS = 1000  # tens of thousands of texts take their time: that is no finding


def _models(folder: Path) -> dict[str, Path]:
    if not _MADE:
        for family in ("transformer", "bert", "bert-features", "gpt2", "vit"):
            saved(folder / family, family)
            _MADE[family] = folder / family
        saved(folder / "encoder", "bert", head="pooler", labels=())
        _MADE["encoder"] = folder / "encoder"
    return _MADE


def _lines(folder: Path) -> list[Files]:
    _models(folder)
    return [
        {"verb.txt": verb.encode(), "words.txt": "\n".join(WORDS[verb]).encode(), "stdin": stdin}
        for verb, (_, stdin) in VERBS.items()
    ]


class Unclean(Exception):
    """The command ended with another status than 0 or 2."""


def _verb(folder: Path) -> None:
    def text(name: str) -> str:
        return (
            (folder / name).read_text(encoding="utf-8", errors="surrogateescape") if (folder / name).is_file() else ""
        )

    verb = text("verb.txt") if text("verb.txt") in VERBS else "translate"
    words = [word for word in text("words.txt").split("\n") if word and "\0" not in word][:MOST_WORDS]
    if any(word.startswith(("--html", "--out", "--file", "--in")) for word in words):
        return  # a user may name any file
    old = sys.stdin
    try:
        with (folder / "stdin").open() if (folder / "stdin").is_file() else open("/dev/null") as sys.stdin:
            try:
                status = main([verb, str(_MADE[VERBS[verb][0]]), *words])
            except SystemExit as error:  # of argparse
                status = error.code if isinstance(error.code, int) else 1
    finally:
        sys.stdin = old
    if status == BAD_INPUT:
        raise Refused
    if status != 0:
        raise Unclean(f"{verb} {words!r} ended with status {status}")


@cache
def _service() -> Any:
    from manyheads.service.app import application
    from manyheads.service.server import Settings, service_of
    from manyheads.service.state import Limits

    models = {
        "lm": "gpt2",
        "en-de": "transformer",
        "tell": "bert",
        "tag": "bert-features",
        "see": "vit",
        "mean": "encoder",
    }
    languages = {"en-de": ("en", "de")}
    limits = Limits(body=2**20, characters=10_000, deadline=60)
    return application(
        service_of(
            Settings(
                {n: str(_MADE[f]) for n, f in models.items()},
                languages=languages,
                detector="tell",
                threads=1,
                limits=limits,
            )
        )
    )


BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "model": "lm",
        "prompt": "the cat",
        "max_tokens": 2,
        "temperature": 0.5,
        "seed": 1,
        "stop": ["x"],
        "n": 1,
    },
    "/v1/embeddings": {"model": "mean", "input": "the cat"},
    "/translate": {"q": "the cat", "source": "en", "target": "de", "format": "text"},
    "/detect": {"q": "the cat"},
    "/nbest": {"model": "en-de", "texts": ["the cat"], "count": 2},
    "/classify": {"model": "tell", "texts": ["the cat"], "top": 1},
    "/tag": {"model": "tag", "texts": ["the cat"]},
    "/objects": {"model": "see", "images": ["AAAA"], "threshold": 0.5},
    "/attend": {"model": "tell", "text": "the cat"},
}


def _requests(folder: Path) -> list[Files]:
    _models(folder)
    _service()
    return [
        {
            "path.txt": f"POST {path}".encode(),
            "body.json": json.dumps(body).encode(),
            "headers.json": b'{"content-type": "application/json"}',
        }
        for path, body in BODIES.items()
    ]


class ServerError(Exception):
    """The service answered with a status of 500 or above."""


def _request(folder: Path) -> None:
    def content(name: str) -> bytes:
        return (folder / name).read_bytes() if (folder / name).is_file() else b""

    method, _, path = content("path.txt").decode(errors="replace").partition(" ")
    try:
        stated = json.loads(content("headers.json"))
        headers = [(str(k).lower().encode()[:200], str(v).encode()[:2000]) for k, v in stated.items()]
    except Exception:  # uvicorn lets none through that are no headers
        headers = [(b"content-type", b"application/json")]
    status = asyncio.run(_asked(method[:10] or "GET", path or "/", headers, content("body.json")))
    if status >= 500:
        raise ServerError(f"{method} {path}: {status}")
    if status >= 400:
        raise Refused(f"refused with {status}")


async def _asked(method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    """Return the status of the service's answer, without a socket."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path if path.startswith("/") else f"/{path}",
        "raw_path": path.encode(errors="replace"),
        "root_path": "",
        "query_string": query.encode(errors="replace"),
        "headers": [(b"host", b"localhost:8000"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    waiting, statuses = [{"type": "http.request", "body": body, "more_body": False}], list[int]()
    ended = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await _service()(scope, receive, send)
    ended.set()
    return statuses[0]


TARGETS = {"lines": Target(_lines, _verb), "requests": Target(_requests, _request)}
assert all(family in SIZES for family, _ in VERBS.values())
