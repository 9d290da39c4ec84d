"""Unnamed scratch files, deleted with the last column that uses them."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from manyheads.data.readers import column
from tests.unit.data.test_column import TEXTS, in_a_file


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the memory limit to 2 characters, so that every text is written to a file."""
    monkeypatch.setattr(column, "MAX_CHARACTERS_IN_MEMORY", 2)


def test_the_scratch_file_is_unnamed_and_deleted_with_the_last_column(small: None, tmp_path: Path) -> None:
    gc.collect()  # of what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    texts = in_a_file(tmp_path / "new")
    some = texts.select([1, 2])
    assert not list((tmp_path / "new").iterdir())
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del texts
    gc.collect()
    assert [*some] == TEXTS[1:3]
    del some
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
