"""The command `manyheads serve`: serve models over HTTP."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from manyheads.cli.loading import PRECISION
from manyheads.cli.parser import Option, Positional, Verbs, number, whole
from manyheads.errors import UserError

TOKEN = "MANYHEADS_TOKEN"
NEEDED = ("starlette", "uvicorn", "prometheus_client")
SHORTEST_TOKEN = 16


def add(verbs: Verbs) -> None:
    verbs.add(
        "serve", _serve, "serve models over HTTP with the APIs of OpenAI and LibreTranslate",
        Positional("[NAME=]MODEL", "model to serve, which clients call NAME (default: the directory's name)",
                   "models", nargs="*"),
        Option("--watch", "[NAME=]RUN", "show this run's training curves on the web page; repeatable", repeatable=True),
        Option("--host", "ADDRESS", "address to listen on (default: 127.0.0.1)", default="127.0.0.1"),
        Option("--port", "N", "port, or 0 for any free one (default: 8000)", whole(0, 65_535), default=8000),
        Option("--token-file", "FILE", "file with the token that clients send as 'Authorization: Bearer' (or: "
               f"${TOKEN})"),
        Option("--workers", "N", "number of processes, each with all models (default: 1)", whole(1, 64), default=1),
        Option("--threads", "N", "threads per process (default: all, shared)", whole(1, 1024)),
        Option("--languages", "NAME=SOURCE:TARGET", "languages of a translator without languages in its result.json; "
               "repeatable", repeatable=True),
        Option("--detect", "NAME", "name of the served classifier that detects languages"),
        Option("--max-body", "BYTES", "maximum size of a request (default: 4194304)",
               whole(1, 2**30), default=4 * 2**20),
        Option("--max-waiting", "N", "maximum queue length of a model (default: 512)", whole(1, 100_000), default=512),
        Option("--deadline", "S", "seconds until a request times out (default: 300)",
               number(0.1, 86_400), default=300.0),
        Option("--grace", "S", "seconds to finish accepted requests on shutdown (default: 30)",
               number(0, 86_400), default=30.0),
        Option("--log", "LEVEL", "debug, info (one line per request), warning or error (default: info)",
               choices=("debug", "info", "warning", "error"), default="info"),
        PRECISION, example="manyheads serve runs/translation --port 8000",
    )  # fmt: skip


def _serve(options: argparse.Namespace) -> None:
    models, watched = _models_by_name(options.models), _models_by_name(options.watch)
    if not models and not watched:
        raise UserError("nothing to serve: expected a MODEL, or --watch RUN")
    languages = _languages(options.languages, models)
    if options.detect is not None and options.detect not in models:
        raise UserError(f"--detect {options.detect}: expected one of {', '.join(models)}")
    token = _read_token(options.token_file)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(f"serve needs {', '.join(missing)}: pip install 'manyheads[serve]'")
    from manyheads.service.server import Settings, run
    from manyheads.service.state import Limits

    limits = Limits(body=options.max_body, max_waiting=options.max_waiting, deadline=options.deadline)
    run(
        Settings(
            models, options.host, options.port, options.workers, options.precision, options.threads, token, languages,
            options.detect, watched, limits, options.grace, options.log,
        ),
        announce=lambda line: print(line, flush=True),
    )  # fmt: skip


def _models_by_name(given: list[str]) -> dict[str, str]:
    """Return the models to serve, as a dictionary from name to model directory."""
    pairs = []
    for text in given:
        name, equals, model = text.partition("=")
        if not equals or Path(text).exists():
            name, model = text.removeprefix("hub:").partition("@")[0] if text.startswith("hub:") else "", text
        if not model or (equals and not name and not Path(text).exists() and not text.startswith("hub:")):
            raise UserError(f"{text}: expected NAME=MODEL")
        # The name as typed: a symbolic link keeps its name when it is set to another model.
        pairs.append((name or Path(os.path.abspath(model)).name or model, model))
    names = Counter(name for name, _ in pairs)
    if twice := [name for name, count in names.items() if count > 1]:
        raise UserError(f"two models have the name {twice[0]}: rename one, as in {twice[0]}-2=MODEL")
    return dict(pairs)


def _languages(given: list[str], models: dict[str, str]) -> dict[str, tuple[str, str]]:
    pairs = {}
    for text in given:
        name, _, both = text.partition("=")
        source, colon, target = both.partition(":")
        if name not in models or not (colon and source and target):
            raise UserError(f"--languages {text}: expected NAME=SOURCE:TARGET, NAME one of {', '.join(models)}")
        pairs[name] = (source, target)
    return pairs


def _read_token(file: str | None) -> str | None:
    token = os.environ.get(TOKEN, "").strip() or None
    where = f"${TOKEN}"
    if file is not None:
        where = f"--token-file {file}"
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:
            token = ""
    if token is not None and not (len(token) >= SHORTEST_TOKEN and token.isascii() and token.isprintable()):
        raise UserError(f"{where}: expected one line of at least {SHORTEST_TOKEN} printable ASCII characters")
    return token
