"""The service conforms to its OpenAPI document, as checked by schemathesis."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyheads.service.app import ENDPOINTS
from tests.stress.attack_service import schemathesis
from tests.support.services import bert, client, language_model, serving, translator


def test_every_route_is_documented(tmp_path: Path) -> None:
    with serving(tmp_path / "log", bert(tmp_path / "m", head="none")) as running, client(running) as http:
        paths = http.get("/openapi.json").json()["paths"]
    assert {(e.method.lower(), e.path) for e in ENDPOINTS} == {(m, path) for path, all in paths.items() for m in all}
    assert all("requestBody" in paths[e.path]["post"] for e in ENDPOINTS if e.method == "POST")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    models = [language_model(tmp_path / "lm"), translator(tmp_path / "en-de"), bert(tmp_path / "enc", head="none")]
    models += [bert(tmp_path / "tell", head="sequence", labels=("en", "de")), bert(tmp_path / "mask", head="masked_lm")]
    with serving(tmp_path / "log", *models, "--detect", "tell") as running:
        assert schemathesis(running.url, 150, 1, tmp_path / "told").wait() == 0, (tmp_path / "told").read_text()[-6000:]
        assert not [line for line in running.lines() if line.get("status", 0) >= 500 or "traceback" in line]
        assert len([line for line in running.lines() if line["event"] == "request"]) > 1000
