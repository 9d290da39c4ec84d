"""Test order: slow files first, so that two parallel processes end at about the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

LONGEST = (
    "results/test_evidence.py", "service/test_processes.py", "test_examples.py", "training/test_distributed_map.py",
    "service/test_page.py", "service/test_deploy.py", "training/test_distributed.py", "docs/test_pages.py",
    "runs/test_planning.py", "service/test_attacks.py", "test_verbs.py",
)  # fmt: skip
assert all((Path(__file__).parent / file).is_file() for file in LONGEST), "a listed file was renamed"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files before the others, which keep their order."""
    places = {f"tests/system/{file}": place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
