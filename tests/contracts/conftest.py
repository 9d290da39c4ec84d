"""Fixtures shared by the contract tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


@pytest.fixture
def stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Give a text as the standard input of the verbs."""
    with ExitStack() as opened:

        def give(text: str) -> None:
            file = tmp_path / "standard-input"
            file.write_text(text, encoding="utf-8")
            monkeypatch.setattr(sys, "stdin", opened.enter_context(file.open(encoding="utf-8")))

        yield give
