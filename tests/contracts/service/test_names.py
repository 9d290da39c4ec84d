"""Names of the models of a service."""

from pathlib import Path
from typing import Any

import pytest

from manyheads import cli
from manyheads.service import server
from tests.support import services


def test_a_link_is_served_under_its_own_name_and_follows_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mt1", "mt2"):
        services.bert(tmp_path / name)
    (link := Path("current")).symlink_to("mt1")
    found: list[Any] = []
    monkeypatch.setattr(server, "run", lambda settings, **_: found.append(settings))
    for typed in ("current", "./current/", "mt1/../current"):
        assert cli.main(["serve", typed, "--threads", "1"]) == 0
    assert [dict(settings.models) for settings in found] == [
        {"current": typed} for typed in ("current", "./current/", "mt1/../current")
    ]
    service = server.service_of(found[0])
    link.unlink()
    link.symlink_to("mt2")
    before = service.registry.of("current", "embed")
    service.registry.reload()
    after = service.registry.of("current", "embed")
    assert (after.name, str(after.predictor.path)) == ("current", "current")
    assert after is not before
    queues: tuple[Any, ...] = (service.registry, service.image_queue, service.attention_queue)
    for queue in queues:
        queue.close()
