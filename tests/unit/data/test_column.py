"""Text columns in files equal lists and use no memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pytest

from manyheads.data.readers import column
from manyheads.data.readers.column import Column, ConcatenatedTexts, SpillingTextBuffer
from manyheads.data.sources.corpora import ParallelSource
from manyheads.data.sources.running_text import DocumentSource
from manyheads.files import WriteError

TEXTS = ["a", "", "häuser", "世界\n", "x" * 100]


def in_a_file(folder: Path | None, texts: list[str] = TEXTS) -> Column:
    gathering = SpillingTextBuffer(folder)
    for text in texts:
        gathering.append(text)
    texts_there = gathering.finish()
    assert isinstance(texts_there, Column)
    return texts_there


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the memory limit to 2 characters, so that every text is written to a file."""
    monkeypatch.setattr(column, "MAX_CHARACTERS_IN_MEMORY", 2)


def test_texts_of_a_file_equal_a_list(small: None, tmp_path: Path) -> None:
    texts = in_a_file(tmp_path)
    assert [*texts] == [texts[i] for i in range(len(TEXTS))] == [texts[i - 5] for i in range(5)] == TEXTS
    some = texts.select([3, 0, 3])
    assert [*some] == [TEXTS[3], TEXTS[0], TEXTS[3]]
    assert [*some.select([2, 1])] == [TEXTS[3], TEXTS[0]]
    assert some[-1] == TEXTS[3]
    for index in (5, -6):
        with pytest.raises(IndexError):
            texts[index]
    joined = ConcatenatedTexts((texts, some))
    assert [*joined] == [*joined] == [*TEXTS, *some]
    assert len(joined) == 8


def test_a_few_texts_stay_a_list() -> None:
    gathering = SpillingTextBuffer()
    gathering.append("a")
    assert gathering.finish() == ["a"]


def test_a_full_disk_is_reported_in_one_line(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(
        WriteError, match=rf"{tmp_path}: failed to write texts to a temporary file: No space left on device; free"
    ):
        in_a_file(tmp_path)


def pairs(folder: Path, count: int = 300) -> Path:
    rng = Random(1)
    folder.mkdir()
    words = ["cat", "Katze", "sat", "saß", "on", "auf", "mat.", "Matte."]
    for language in ("en", "de"):
        lines = (f"{rng.randrange(200)} " + " ".join(rng.choices(words, k=9)) for _ in range(count))
        (folder / f"train.{language}").write_text("\n".join(lines) + "\n")
    return folder


def test_pairs_on_disk_equal_pairs_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ParallelSource(data=str(pairs(tmp_path / "data")), cache_folder=tmp_path / "kept")
    held = source.read()
    monkeypatch.setattr(column, "MAX_CHARACTERS_IN_MEMORY", 2)
    filed = source.read()
    assert isinstance(filed.train.sources, Column)
    for split in ("train", "validation"):
        assert [*filed.known[split].sources] == held.known[split].sources
        assert [*filed.known[split].targets] == held.known[split].targets
        assert filed.known[split].place(3) == held.known[split].place(3)
    assert source.report(filed) == source.report(held)
    assert source.describe(filed) == source.describe(held)


def test_documents_are_packed_likewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"Document {i}. It ends.\nHere." for i in range(200)))
    source = DocumentSource(data=str(tmp_path / "a.txt"), cache_folder=tmp_path / "kept")
    held = source.read()
    monkeypatch.setattr(column, "MAX_CHARACTERS_IN_MEMORY", 2)
    filed = source.read()
    assert isinstance(filed.train.texts, Column)
    assert [*filed.train.documents] == [*held.train.documents]
    assert filed.train.documents[0][1:] == ["It ends.", "Here."]
    assert source.report(filed) == source.report(held)
    assert source.describe(filed) == source.describe(held)
