"""Texts in a file are what they are in a list, and take no memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest

from manyheads.data.readers import column
from manyheads.data.readers.column import Column, Gathering, Joined
from manyheads.data.sources.corpora import ParallelSource
from manyheads.data.sources.running_text import DocumentSource
from manyheads.files import WriteError

TEXTS = ["a", "", "häuser", "世界\n", "x" * 100]


def in_a_file(folder: Path | None, texts: list[str] = TEXTS) -> Column:
    gathering = Gathering(folder)
    for text in texts:
        gathering.append(text)
    texts_there = gathering.gathered()
    assert isinstance(texts_there, Column)
    return texts_there


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is held in memory."""
    monkeypatch.setattr(column, "HELD", 2)


def test_the_texts_of_a_file_are_those_of_a_list(small: None, tmp_path: Path) -> None:
    texts = in_a_file(tmp_path)
    assert [*texts] == [texts[i] for i in range(len(TEXTS))] == [texts[i - 5] for i in range(5)] == TEXTS
    some = texts.chosen([3, 0, 3])
    assert [*some] == [TEXTS[3], TEXTS[0], TEXTS[3]]
    assert [*some.chosen([2, 1])] == [TEXTS[3], TEXTS[0]]
    assert some[-1] == TEXTS[3]
    for index in (5, -6):
        with pytest.raises(IndexError):
            texts[index]
    joined = Joined((texts, some))
    assert [*joined] == [*joined] == [*TEXTS, *some]
    assert len(joined) == 8


def test_the_file_has_no_name_and_goes_with_the_last_column(small: None, tmp_path: Path) -> None:
    gc.collect()  # of what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    texts = in_a_file(tmp_path / "new")
    some = texts.chosen([1, 2])
    assert not list((tmp_path / "new").iterdir())
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del texts
    gc.collect()
    assert [*some] == TEXTS[1:3]
    del some
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_few_texts_are_a_list() -> None:
    gathering = Gathering()
    gathering.append("a")
    assert gathering.gathered() == ["a"]


def test_a_full_disk_is_told_in_a_line(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(WriteError, match=rf"{tmp_path}: cannot write the texts there: No space left on device; make"):
        in_a_file(tmp_path)


def pairs(folder: Path, count: int = 300) -> Path:
    dice = Random(1)
    folder.mkdir()
    words = ["cat", "Katze", "sat", "saß", "on", "auf", "mat.", "Matte."]
    for language in ("en", "de"):
        lines = (f"{dice.randrange(200)} " + " ".join(dice.choices(words, k=9)) for _ in range(count))
        (folder / f"train.{language}").write_text("\n".join(lines) + "\n")
    return folder


def test_pairs_are_reported_held_out_and_told_apart_as_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ParallelSource(data=str(pairs(tmp_path / "data")), kept=tmp_path / "kept")
    held = source.read()
    monkeypatch.setattr(column, "HELD", 2)
    filed = source.read()
    assert isinstance(filed.train.sources, Column)
    for split in ("train", "validation"):
        assert [*filed.known[split].sources] == held.known[split].sources
        assert [*filed.known[split].targets] == held.known[split].targets
        assert filed.known[split].place(3) == held.known[split].place(3)
    assert source.report(filed) == source.report(held)
    assert source.describe(filed) == source.describe(held)


def test_documents_likewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"Document {i}. It ends.\nHere." for i in range(200)))
    source = DocumentSource(data=str(tmp_path / "a.txt"), kept=tmp_path / "kept")
    held = source.read()
    monkeypatch.setattr(column, "HELD", 2)
    filed = source.read()
    assert isinstance(filed.train.texts, Column)
    assert [*filed.train.documents] == [*held.train.documents]
    assert filed.train.documents[0][1:] == ["It ends.", "Here."]
    assert source.report(filed) == source.report(held)
    assert source.describe(filed) == source.describe(held)


READ = """
import sys
from pathlib import Path
from manyheads.data.readers import column
from manyheads.data.text import store
column.HELD, store._CHUNK = 2**16, 1000
from manyheads.data.readers.column import Joined
from manyheads.data.sources.corpora import ParallelSource
from manyheads.data.sources.running_text import DocumentSource
from manyheads.data.text.pretraining import TokenisedDocuments
from manyheads.data.text.store import TokenStore
from manyheads.data.text.tokenizers import train_bpe, train_wordpiece
kind, data, kept = sys.argv[1], sys.argv[2], Path(sys.argv[3])
source = (ParallelSource if kind == "pairs" else DocumentSource)(data=data, kept=kept)
splits = source.read()
source.describe(splits)
source.report(splits)
if kind == "pairs":
    tokenizer = train_bpe(Joined((splits.train.sources, splits.train.targets)), 400)
    stores = [TokenStore.of(texts, tokenizer, kept) for texts in (splits.train.sources, splits.train.targets)]
else:
    tokenizer = train_wordpiece(Joined(splits.train.documents), 400)
    TokenisedDocuments.of(splits.train.documents, tokenizer, kept)
print("".join(line for line in Path("/proc/self/status").read_text().splitlines(True) if "VmHWM" in line))
"""


@pytest.mark.parametrize("kind", ["pairs", "documents"])
def test_memory_hardly_grows_with_the_corpus(tmp_path: Path, kind: str) -> None:
    peaks = []
    for count in (10_000, 100_000):
        data = pairs(tmp_path / str(count), count)
        if kind == "documents":
            text = (data / "train.en").read_text().replace("\n", "\n\n")
            data = data / "documents.txt"
            data.write_text(text)
        command = [sys.executable, "-W", "ignore", "-c", READ, kind, str(data), str(tmp_path / f"kept{count}")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        peaks.append(int(said.split("VmHWM:")[1].split()[0]) * 1024)
    assert (peaks[1] - peaks[0]) / 90_000 < 230, "bytes for each, which has two texts of 45 to 50 characters"
