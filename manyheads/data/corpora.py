"""The data of runs, a class for each kind: how one corpus is read, held out, checked, and what is embedded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from manyheads.data import conll, squad
from manyheads.data.class_folders import class_folder_splits
from manyheads.data.column import Joined
from manyheads.data.compressed import kind
from manyheads.data.conll import Tagged, read_conll
from manyheads.data.corpus import files_of
from manyheads.data.documents import Documents, document_files, is_document_file, read_documents
from manyheads.data.embedded.digit_strings import Algorithm, algorithmic_pairs
from manyheads.data.holding_out import hold_out_documents, hold_out_questions, hold_out_texts
from manyheads.data.labelled import Columns, Labelled, read_labelled, with_labels
from manyheads.data.parallel import Pairs, corpora_in, locate, read_parallel
from manyheads.data.report import (
    document_report,
    labelled_report,
    parallel_report,
    question_report,
    tag_report,
    text_report,
)  # fmt: skip
from manyheads.data.roles import PARTS, folders_in, role_of, splits_among, visible, whole_or_splits
from manyheads.data.rows import TABLES
from manyheads.data.source import FIRST, MOST, ClassSource, Source
from manyheads.data.splits import SplitData, Splits, folder_of, hold_out, only_test, same_place
from manyheads.data.squad import Questions, read_squad
from manyheads.data.texts import Texts, read_texts
from manyheads.errors import UserError

MOST_CHARACTERS = 10**8  # of an algorithm's strings


@dataclass(frozen=True, kw_only=True)
class ParallelSource(Source[Pairs]):
    """Sentences in the languages `source` and `target`; without data, `size` phrases in these two locales. `kept` is a
    directory for what does not fit into memory (`read_parallel`)."""

    kind = "parallel"
    unit = "pairs"
    first_test = True
    report = staticmethod(parallel_report)

    source: str = "en"
    target: str = "de"
    size: int = 30_000
    kept: Path | None = None

    def read_one(self, corpus: str, labels: Sequence[str] = (), limit: int | None = None) -> Pairs:
        return read_parallel(
            corpus, self.source, self.target, skip_bad_lines=self.skip_bad_lines, limit=limit, kept=self.kept
        )

    def embedded(self) -> SplitData[Pairs]:
        from manyheads.data.embedded.phrases import cldr_pairs

        return cldr_pairs(self.source, self.target, seed=self.seed, size=self.size)

    def hold_out(self, train: Pairs) -> tuple[Pairs, Pairs]:
        return hold_out(train, train.sources, what="source sentence")

    def content(self, data: Pairs, split: str) -> Iterable[str]:
        return Joined((data.sources, data.targets))

    def corpora(self, folder: Path) -> list[str]:
        return corpora_in(folder, self.source, self.target)

    def splits_in(self, folder: Path) -> Splits:
        return splits_among(folder, self.corpora(folder), shards=PARTS)

    def files(self, corpus: str) -> list[Path]:
        return locate(corpus, self.source, self.target)

    def check_exists(self, corpus: str) -> None:
        locate(corpus, self.source, self.target)

    @property
    def expected(self) -> str:
        return f"train.{self.source} + train.{self.target} (or train{', '.join(TABLES)})"


@dataclass(frozen=True, kw_only=True)
class LabelledSource(ClassSource[Labelled]):
    """Texts with labels; without data, `size` phrases in 60 languages."""

    kind = "labelled"
    directories = True
    report = staticmethod(labelled_report)

    columns: Columns = field(default_factory=Columns)
    size: int = 48_000

    def read_one(self, corpus: str, labels: Sequence[str] = (), limit: int | None = None) -> Labelled:
        names, skip = self.names_for(labels), self.skip_bad_lines
        data = read_labelled(corpus, self.columns, names=names, skip_bad_lines=skip, limit=limit)
        return with_labels(data, labels, skip_bad_lines=True) if labels and skip else data

    def splits_in(self, folder: Path) -> Splits:
        """Tables, or else class folders."""
        tables = super().splits_in(folder)
        return class_folder_splits(folder) if tables == (None, None, []) else tables

    def files(self, corpus: str) -> list[Path]:
        """Of class folders, the folders."""
        files = super().files(corpus)
        return folders_in(files[0]) if same_place(corpus, self.data) and files[0].is_dir() else files

    def peek(self) -> Labelled | None:
        """And whether there are two labels, where all of them are seen: in class folders, or in what is read whole."""
        first = super().peek()
        if first is not None and (first.files or len(first) < FIRST):
            self.check_training(first)
        return first

    def test_in(self, data: str) -> str:
        """Of a directory of splits the test data; class folders as they are."""
        folder = folder_of(data)
        whole = folder is not None and same_place(self.splits_in(folder).train, data)
        return data if whole else super().test_in(data)

    @property
    def expected(self) -> str:
        return f"{super().expected}, or train/CLASS/*.txt"

    def embedded(self) -> SplitData[Labelled]:
        from manyheads.data.embedded.languages import cldr_languages

        return cldr_languages(seed=self.seed, size=self.size)

    def hold_out(self, train: Labelled) -> tuple[Labelled, Labelled]:
        return hold_out(train, train.inputs, [[label] for label in train.labels], what="text")

    def fitting(self, data: Labelled, train: Labelled) -> Labelled:
        """With labels that the training data have, and pairs if those are pairs."""
        if (data.pairs is None) != (train.pairs is None):
            raise UserError(f"{data.file} and {train.file}: one has pairs of texts, the other single ones")
        return with_labels(data, set(train.labels), skip_bad_lines=self.skip_bad_lines)

    def content(self, data: Labelled, split: str) -> list[str]:
        return [*data.inputs, *data.labels]

    def describe(self, splits: SplitData[Labelled]) -> dict[str, Any]:
        """And whether the texts are pairs."""
        return {**super().describe(splits), "pairs": splits.train.pairs is not None}


@dataclass(frozen=True, kw_only=True)
class TaggedSource(Source[Tagged]):
    """Tagged sentences; without data, `size` phrases in `locale`."""

    kind = "tagged"
    unit = "sentences"
    suffixes = conll.SUFFIXES
    report = staticmethod(tag_report)

    locale: str = "en"
    size: int = 8000

    def read_one(self, corpus: str, labels: Sequence[str] = (), limit: int | None = None) -> Tagged:
        tagged = read_conll(corpus, skip_bad_lines=self.skip_bad_lines, limit=limit)
        return tagged.only(labels) if labels and self.skip_bad_lines else tagged

    def corpora(self, folder: Path) -> list[str]:
        """And files that end in the name of a split, such as CoNLL-2003's eng.train."""
        files = [path for path in visible(folder) if path.is_file()]
        return [path.name for path in files if kind(path) in self.suffixes or role_of(kind(path))]

    def embedded(self) -> SplitData[Tagged]:
        from manyheads.data.embedded.tags import cldr_tagged

        return cldr_tagged(self.locale, seed=self.seed, size=self.size)

    def hold_out(self, train: Tagged) -> tuple[Tagged, Tagged]:
        return hold_out(train, [" ".join(words) for words in train.words], train.tags, what="sentence")

    def fitting(self, data: Tagged, train: Tagged) -> Tagged:
        """With tags that the training data have."""
        if self.skip_bad_lines:
            return data.only(train.labels)
        data.check_labels(train.labels)
        return data


@dataclass(frozen=True, kw_only=True)
class QuestionSource(Source[Questions]):
    """Questions about texts; there are none without data."""

    kind = "questions"
    unit = "questions"
    suffixes = squad.SUFFIXES
    report = staticmethod(question_report)

    def read_one(self, corpus: str, labels: Sequence[str] = (), limit: int | None = None) -> Questions:
        return read_squad(corpus, skip_bad_lines=self.skip_bad_lines, limit=limit)

    def hold_out(self, train: Questions) -> tuple[Questions, Questions]:
        return hold_out_questions(train, by_number=self.by_number)


@dataclass(frozen=True, kw_only=True)
class TextSource(Source[Texts]):
    """Running text, in `column` of tables; without data, the source of Python's standard library, which has test data.
    `share` of the training data is held out where there is no validation data: whole texts, or the end of a single
    one. `kept` is a directory where it is remembered what the files hold, so that a run that goes on need not read them
    again."""

    kind = "texts"
    unit = "texts"
    directories = True
    mixes = True
    report = staticmethod(text_report)
    below = staticmethod(files_of)

    column: str = "text"
    share: float = 0.05
    kept: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise UserError(f"the share to hold out is {self.share}; expected a number between 0 and 1")

    def read_one(self, corpus: str, labels: Sequence[str] = (), limit: int | None = None) -> Texts:
        return read_texts(
            corpus, column=self.column, skip_bad_lines=self.skip_bad_lines, limit=limit,
            kept=None if limit is not None else self.kept,
        )  # fmt: skip

    def embedded(self) -> SplitData[Texts]:
        from manyheads.data.embedded.standard_library import source_files

        texts = Texts([file.read_text(encoding="utf-8") for file in source_files()])
        salted = [f"test{text}" for text in texts.texts]  # not the hash that holds out for validation
        train, test = hold_out(texts, salted, fraction=self.share, what="text")
        if self.validation:
            validation = self.read_one(self.validation)
        else:
            train, validation = hold_out_texts(train, self.share, by_number=True)  # of many, as it always was
        return SplitData(train, validation, self.read_one(self.test) if self.test else test)

    def hold_out(self, train: Texts) -> tuple[Texts, Texts]:
        return hold_out_texts(train, self.share, by_number=self.by_number)

    def held_out(self, splits: SplitData[Texts]) -> str:
        """Of characters, and whether a text is cut."""
        sizes = [texts.facts.characters for texts in (splits.train, splits.validation)]
        part = "the end of the longest text" if splits.validation.span else f"{splits.held_out:,} texts"
        return (
            f"no validation data: held out of the training data: {part}, {sizes[1] / sum(sizes):.1%} of the characters"
        )

    def fingerprint(self, data: Texts, split: str) -> str:
        return data.facts.fingerprint

    def corpora(self, folder: Path) -> list[str]:
        return [path.name for path in visible(folder)]

    def find(self, data: str, validation: str | None = None, test: str | None = None) -> Splits:
        """All of a directory that has no splits is for training."""
        return whole_or_splits(data, self.corpora, self.below).given(validation, test)

    def files(self, corpus: str) -> list[Path]:
        return self.below(corpus) if same_place(corpus, self.data) else super().files(corpus)

    def test_in(self, data: str) -> str:
        """Of a directory of splits the test data; of any other, all there is."""
        return data if same_place(self.find(data).train, data) else super().test_in(data)


@dataclass(frozen=True, kw_only=True)
class DocumentSource(Source[Documents]):
    """Documents, in `column` of tables; without data, the standard library's documentation. No test data. `kept` is a
    directory for what does not fit into memory (`read_documents`)."""

    kind = "documents"
    unit = "documents"
    directories = True
    mixes = True
    report = staticmethod(document_report)
    below = staticmethod(document_files)

    column: str = "text"
    kept: Path | None = None

    def read_one(self, corpus: str, labels: Sequence[str] = (), limit: int | None = None) -> Documents:
        return read_documents(
            corpus, column=self.column, skip_bad_lines=self.skip_bad_lines, limit=limit, kept=self.kept
        )

    def embedded(self) -> SplitData[Documents]:
        from manyheads.data.embedded.standard_library import documentation

        train = documentation()
        if self.validation:
            validation = self.read_one(self.validation)
        else:
            train, validation = hold_out_documents(train, by_number=True)  # of many, as it always was
        return SplitData(train, validation, None)

    def hold_out(self, train: Documents) -> tuple[Documents, Documents]:
        return hold_out_documents(train, by_number=self.by_number)

    def corpora(self, folder: Path) -> list[str]:
        """Files, and folders that hold some."""
        inside = [path for path in visible(folder) if path.is_file() or any(map(is_document_file, path.iterdir()))]
        return [path.name for path in inside if path.is_dir() or is_document_file(path)]

    def find(self, data: str, validation: str | None = None, test: str | None = None) -> Splits:
        """All of a directory that has no splits is for training; there are no test data."""
        found = whole_or_splits(data, self.corpora, self.below)
        return Splits(found.train, validation or found.validation, [])

    def files(self, corpus: str) -> list[Path]:
        return self.below(corpus) if same_place(corpus, self.data) else super().files(corpus)

    def test_in(self, data: str) -> str:
        """Of a directory of splits the test data, or else the validation data; of any other, all there is."""
        found = whole_or_splits(data, self.corpora, self.below)
        return only_test(data, found.test) or found.validation or data


@dataclass(frozen=True, kw_only=True)
class DigitSource(Source[Pairs]):
    """Strings of digits for an algorithm: `size` to train on, of up to `longest` characters, and `tested` of each of
    the `lengths`. The test data are one behind the other; `by_length` takes them apart."""

    kind = "digits"
    unit = "strings"

    algorithm: Algorithm = "copy"
    longest: int = 40
    lengths: tuple[int, ...] = (40,)
    size: int = 40_000
    validated: int = 200
    tested: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "lengths", tuple(self.lengths))
        if self.algorithm not in get_args(Algorithm):
            raise UserError(f"algorithm is {self.algorithm!r}: expected {get_args(Algorithm)}")
        if not all(isinstance(length, int) and 0 < length <= MOST for length in self.lengths):
            raise UserError(f"lengths are {self.lengths}: expected numbers of characters")
        if not isinstance(self.validated, int) or not 1 <= self.validated <= MOST:
            raise UserError(f"validated is {self.validated!r}: expected 1 to {MOST:,}")
        characters = (self.size + self.validated) * self.longest + self.tested * sum(self.lengths)
        if characters > MOST_CHARACTERS:
            raise UserError(f"the strings have up to {characters:,} characters: expected at most {MOST_CHARACTERS:,}")

    def report(self, splits: SplitData[Pairs]) -> str:
        return f"{len(splits.train):,} strings"

    def embedded(self) -> SplitData[Pairs]:
        def drawn(split: str, count: int) -> Pairs:
            return algorithmic_pairs(self.algorithm, count, self.longest, seed=self.seed, split=split)

        return SplitData(drawn("train", self.size), drawn("validation", self.validated), self.tests())

    def tests(self) -> Pairs:
        groups = [
            algorithmic_pairs(self.algorithm, self.tested, n, shortest=n, seed=self.seed, split=f"test {n}")
            for n in self.lengths
        ]
        return Pairs([text for group in groups for text in group.sources],
                     [text for group in groups for text in group.targets])  # fmt: skip

    def content(self, data: Pairs, split: str) -> list[str]:
        groups: Iterable[Pairs] = by_length(data).values() if split == "test" else [data]
        return [text for pairs in groups for text in (*pairs.sources, *pairs.targets)]


def by_length(pairs: Pairs) -> dict[int, Pairs]:
    """The pairs by the length of their source; those of a length stand together."""
    groups = groupby(range(len(pairs)), key=lambda row: len(pairs.sources[row]))
    return {length: pairs.subset(list(rows)) for length, rows in groups}
