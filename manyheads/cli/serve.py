"""The command `manyheads serve`: serve models over HTTP."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from manyheads.cli.loading import add_precision
from manyheads.cli.parser import Verbs, number, whole
from manyheads.errors import UserError

TOKEN = "MANYHEADS_TOKEN"
NEEDED = ("starlette", "uvicorn", "prometheus_client")
SHORTEST_TOKEN = 16


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "serve",
        _serve,
        "serve models over HTTP with the APIs of OpenAI and LibreTranslate",
        example="manyheads serve runs/translation --port 8000",
    )
    verb.add_argument("models", nargs="*", metavar="[NAME=]MODEL",
                      help="model to serve, which clients call NAME (default: the directory's name)")  # fmt: skip
    verb.add_argument("--watch", action="append", default=[], metavar="[NAME=]RUN",
                      help="show this run's training curves on the web page; repeatable")  # fmt: skip
    verb.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                      help="address to listen on (default: 127.0.0.1)")  # fmt: skip
    verb.add_argument(
        "--port", type=whole(0, 65_535), default=8000, metavar="N", help="port, or 0 for any free one (default: 8000)"
    )
    verb.add_argument("--token-file", metavar="FILE",
                      help="file with the token that clients send as 'Authorization: Bearer' (or:"
                           f" ${TOKEN})")  # fmt: skip
    verb.add_argument("--workers", type=whole(1, 64), default=1, metavar="N",
                      help="number of processes, each with all models (default: 1)")  # fmt: skip
    verb.add_argument("--threads", type=whole(1, 1024), metavar="N", help="threads per process (default: all, shared)")
    verb.add_argument("--languages", action="append", default=[], metavar="NAME=SOURCE:TARGET",
                      help="languages of a translator without languages in its result.json; repeatable")  # fmt: skip
    verb.add_argument("--detect", metavar="NAME", help="name of the served classifier that detects languages")
    verb.add_argument("--max-body", type=whole(1, 2**30), default=4 * 2**20, metavar="BYTES",
                      help="maximum size of a request (default: 4194304)")  # fmt: skip
    verb.add_argument("--max-waiting", type=whole(1, 100_000), default=512, metavar="N",
                      help="maximum queue length of a model (default: 512)")  # fmt: skip
    verb.add_argument("--deadline", type=number("seconds from 0.1 to 86400", lambda s: 0.1 <= s <= 86_400),
                      default=300.0, metavar="S", help="seconds until a request times out (default: 300)")  # fmt: skip
    verb.add_argument("--grace", type=number("seconds from 0 to 86400", lambda s: 0 <= s <= 86_400), default=30.0,
                      metavar="S", help="seconds to finish accepted requests on shutdown (default: 30)")  # fmt: skip
    verb.add_argument("--log", choices=("debug", "info", "warning", "error"), default="info", metavar="LEVEL",
                      help="debug, info (one line per request), warning or error (default: info)")  # fmt: skip
    add_precision(verb)


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
