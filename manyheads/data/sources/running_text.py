"""Data sources for running text and documents."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from manyheads.data.readers.corpus import SUFFIXES, files_of
from manyheads.data.readers.documents import Documents, document_files, is_document_file, read_documents
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.roles import find_text_splits, visible
from manyheads.data.readers.splits import HELD_OUT_FRACTION, SplitData, Splits, hold_out, only_test, same_place
from manyheads.data.readers.texts import Texts, read_texts
from manyheads.data.sources.holding_out import held_out_line, hold_out_documents, hold_out_texts
from manyheads.data.sources.report import document_report, text_report  # fmt: skip
from manyheads.data.sources.source import Share, Source

D = TypeVar("D", Texts, Documents)


@dataclass(frozen=True, kw_only=True)
class _FileSource(Source[D]):
    """Data source of the texts in a file or directory. A directory without splits is training data as a whole.

    column        name of the text column, if the files are tables
    cache_folder  directory for temporary files and for facts about the files
    """

    tuples = (("text",),)
    suffixes = SUFFIXES
    extends_embedded = True

    column: str = "text"
    cache_folder: Path | None = None

    @staticmethod
    @abstractmethod
    def below(corpus: str) -> list[Path]:
        """Return the text files of a corpus: one file, files joined by commas, or the files of a directory."""

    @abstractmethod
    def names_in(self, folder: Path) -> list[str]:
        """Return the names of the files and folders in a directory that may contain text."""

    def find(self, data: str) -> Splits:
        """Find the splits of a directory. If it contains no splits, all of it is training data."""
        return find_text_splits(data, self.names_in, self.below)

    def files(self, corpus: str) -> list[Path]:
        files = super().files(corpus)
        return self.below(corpus) if same_place(corpus, self.data) else files


@dataclass(frozen=True, kw_only=True)
class TextSource(_FileSource[Texts]):
    """Data source of running text.

    If no data are given, the source code of Python's standard library is used.

    share  fraction of the training data that is held out if there are no validation data and `fraction` is None. Whole
           texts are held out, or the end of the longest text. From the built-in corpus, the same fraction becomes test
           data
    """

    kind = "texts"
    unit = "texts"
    report = staticmethod(text_report)
    below = staticmethod(files_of)

    share: Share = 0.05

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> Texts:
        return read_texts(
            corpus, column=self.column, skip_bad_lines=self.skip_bad_lines, cache_folder=self.cache_folder
        )

    def embedded(self) -> SplitData[Texts]:
        from manyheads.data.embedded.standard_library import source_files

        texts = Texts([file.read_text(encoding="utf-8") for file in source_files()])
        # The prefix "test" gives other hashes than those that select the validation data, so that the two selections
        # are independent.
        salted = [f"test{text}" for text in texts.texts]
        train, test = hold_out(texts, salted, fraction=self.share, by_hash=True, what="text")
        if self.validation:
            validation = self.read_one(self.validation)
        else:
            # Hold out a number of whole texts, so that the splits of the built-in corpus never change.
            train, validation = hold_out_texts(train, self.share, by_number=True)
        return SplitData(train, validation, self.read_one(self.test) if self.test else test)

    def hold_out(self, train: Texts) -> tuple[Texts, Texts]:
        return hold_out_texts(train, self.fraction or self.share)

    def held_out_line(self, splits: SplitData[Texts]) -> str:
        """Return a line that states how much text was held out, and whether the end of a text was cut off."""
        sizes = [texts.facts.characters for texts in (splits.train, splits.validation)]
        part = "the end of the longest text" if splits.validation.span else f"{splits.held_out:,} texts"
        return (
            f"no validation data: held out {part} of the training data, {sizes[1] / sum(sizes):.1%} of the characters"
        )

    def content(self, data: Texts, split: str) -> list[str]:
        return data.texts

    def fingerprint(self, data: Texts, split: str) -> str:
        return data.facts.fingerprint

    def names_in(self, folder: Path) -> list[str]:
        used = files_of(str(folder))
        return [path.name for path in visible(folder) if path.is_dir() or path in used]


@dataclass(frozen=True, kw_only=True)
class DocumentSource(_FileSource[Documents]):
    """Data source of documents for pretraining, which has no test data.

    If no data are given, the documentation of Python's standard library is used.
    """

    kind = "documents"
    unit = "documents"
    report = staticmethod(document_report)
    below = staticmethod(document_files)

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> Documents:
        return read_documents(
            corpus, column=self.column, skip_bad_lines=self.skip_bad_lines, cache_folder=self.cache_folder
        )

    def embedded(self) -> SplitData[Documents]:
        from manyheads.data.embedded.standard_library import documentation

        train = documentation()
        if self.validation:
            validation = self.read_one(self.validation)
        else:
            # Hold out a number of whole documents, so that the splits of the built-in corpus never change.
            train, validation = hold_out_documents(train, by_number=True)
        return SplitData(train, validation, None)

    def hold_out(self, train: Documents) -> tuple[Documents, Documents]:
        return hold_out_documents(train, self.fraction or HELD_OUT_FRACTION)

    def held_out_line(self, splits: SplitData[Documents]) -> str:
        """Return a line that describes the held-out validation data, without a warning about few documents.

        Documents are held out by their size, so a small number of them may be enough.
        """
        return held_out_line(splits, self.unit, minimum=0)

    def names_in(self, folder: Path) -> list[str]:
        """Return the names of the document files in a folder, and of its subfolders with such files."""
        inside = [path for path in visible(folder) if path.is_file() or any(map(is_document_file, path.iterdir()))]
        return [path.name for path in inside if path.is_dir() or is_document_file(path)]

    def splits(self) -> Splits:
        """Return the paths of the training and validation data. There are no test data."""
        return super().splits()._replace(test=[])

    def test_in(self, data: str) -> str:
        """Return the corpus on which to evaluate.

        If `data` is a directory of splits, this is its test data, or its validation data if it has no test data.
        Otherwise it is `data` itself.
        """
        found = self.find(data)
        return only_test(data, found.test) or found.validation or data

    def content(self, data: Documents, split: str) -> Sequence[str]:
        return data.texts
