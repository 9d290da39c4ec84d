"""Handlers of the service's web page at the path `/`: a fixed table of its files, and its security headers.

The page shows attention maps with the same scripts as the pages that the command `manyheads attend` writes.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response

from manyheads.analysis.maps.page import SCRIPTS
from manyheads.service.endpoint import Reply
from manyheads.service.errors import Refused
from manyheads.service.state import Service

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
MIMES = (KINDS[".js"], KINDS[".css"])
PAGE_FILES = (
    "page.css", "page.js", "address.js", "attention.js", "curves.js", "fields.js", "results.js", "service.js",
    "verbs.js",
)  # fmt: skip
ATTEND_FILES = ("page.css", *(script for script in SCRIPTS if script != "page.js"))
# The page may load, run and request only resources of this service, and data is never executed as code. This protects
# users from malicious texts and model outputs even if a script has a bug.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def _contents() -> dict[str, bytes]:
    page, attend = files("manyheads.service") / "assets", files("manyheads.analysis.maps") / "assets"
    contents = {name: (page / name).read_bytes() for name in ("index.html", *PAGE_FILES)}
    return contents | {f"attend/{name}": (attend / name).read_bytes() for name in ATTEND_FILES}


# Content of each file that a request may name. The path in a request is never used to open a file.
CONTENTS = _contents()


async def start(service: Service, payload: None, request: Request) -> Reply:
    return _response("index.html")


async def part(service: Service, payload: None, request: Request) -> Reply:
    name = request.path_params["name"]
    if name not in CONTENTS or name == "index.html":
        raise Refused(404, "found no such file of the page", code="not_found")
    return _response(name)


def _response(name: str) -> Response:
    return Response(CONTENTS[name], headers=HEADERS, media_type=KINDS[PurePath(name).suffix])
