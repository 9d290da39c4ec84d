"""Test order: slow files first, so that two parallel processes end at about the same time."""

from __future__ import annotations

import pytest

LONGEST = (
    "results/test_evidence.py", "service/test_processes.py", "test_examples.py", "training/test_division.py",
    "service/test_page.py", "service/test_deploy.py", "training/test_ranks.py", "docs/test_pages.py",
    "runs/test_planning.py", "service/test_attacks.py", "test_verbs.py",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files before the others, which keep their order."""
    places = {f"tests/system/{file}": place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
