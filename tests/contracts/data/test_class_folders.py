"""Scan of many files in class folders."""

from pathlib import Path

import pytest

from manyheads.data.sources.corpora import LabeledSource


def test_peeking_sees_every_class(tmp_path: Path) -> None:
    for label in ("a", "b", "c"):
        (tmp_path / label).mkdir()
        for i in range(500):
            (tmp_path / label / f"{i}.txt").write_text(f"{label} {i}")
    first = LabeledSource(data=str(tmp_path)).peek()
    assert first is not None
    assert [first.labels.count(label) for label in ("a", "b", "c")] == [334, 334, 332]
    (tmp_path / "c" / "0.txt").write_text(" ")
    with pytest.raises(ValueError, match=r"c/0\.txt:1: the text is blank"):
        LabeledSource(data=str(tmp_path)).peek()
