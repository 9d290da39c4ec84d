"""Files of the page at `/`: the service returns its own files from a fixed table, without external resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest

from tests.support.services import Running, client, language_model, serving


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("files")
    with serving(folder / "log", language_model(folder / "lm")) as service:
        yield service


def test_parts_come_from_a_fixed_table(running: Running) -> None:
    with client(running) as http:
        for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "attend/../../page.py", "index.html",
                     "attend/page.html", "/etc/passwd", "", "page.js/", "page.js%00"):  # fmt: skip
            assert http.get(f"/page/{path}").status_code == 404, path
        for path, kind in (
            ("/", "text/html"),
            ("/page/page.js", "text/javascript"),
            ("/page/attend/page.css", "text/css"),
        ):
            found = http.get(path)
            assert (found.status_code, found.headers["content-type"]) == (200, f"{kind}; charset=utf-8")
            assert found.headers["x-content-type-options"] == "nosniff"
            policy = found.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy


def test_page_files_are_served_locally(running: Running) -> None:
    own = files("manyheads.service") / "assets"
    names = {each.name for each in own.iterdir()}
    allowed = {"http://www.w3.org/2000/svg"}  # XML namespace; no request is sent to this address
    with client(running) as http:
        for name in names:
            text = (own / name).read_text()
            assert http.get("/" if name == "index.html" else f"/page/{name}").text == text
            assert set(re.findall(r"\w+://[^\s\"']+", text)) <= allowed
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        start = http.get("/").text
        assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", start)
        for path in re.findall(r"(?:src|href)=\"(page/[^\"]+)\"", start):
            assert http.get(f"/{path}").status_code == 200
