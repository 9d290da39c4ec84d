"""Data sources for parallel sentences, labeled texts, pairs of similar texts, tagged sentences and questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from manyheads.data.embedded import shipped
from manyheads.data.readers import conll, squad
from manyheads.data.readers.class_folders import class_folder_splits
from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.readers.compressed import format_suffix
from manyheads.data.readers.conll import Tagged, read_conll
from manyheads.data.readers.labeled import LABELS, Columns, Labeled, label_sets, labels_of, read_labeled, with_labels
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.parallel import Pairs, corpora_in, locate, read_parallel
from manyheads.data.readers.roles import PARTS, role_of, splits_among, visible
from manyheads.data.readers.splits import SplitData, Splits, hold_out, lines
from manyheads.data.readers.squad import Questions, read_squad
from manyheads.data.readers.tables import TABLES, is_table
from manyheads.data.readers.text_pairs import PairColumns, TextPairs, read_text_pairs
from manyheads.data.sources.class_source import ClassSource, warn_about_absent
from manyheads.data.sources.holding_out import hold_out_questions
from manyheads.data.sources.report import labeled_report, parallel_report, question_report, tag_report, text_pair_report
from manyheads.data.sources.source import Items, Source
from manyheads.errors import UserError
from manyheads.files import JsonObject


@dataclass(frozen=True, kw_only=True)
class ParallelSource(Source[Pairs]):
    """Data source of sentence pairs in two languages. If no data are given, it generates pairs of phrases.

    source, target  codes of the source language and the target language
    size            number of generated training pairs
    cache_folder    directory for texts that exceed memory (see `read_parallel`)
    """

    kind = "parallel"
    tuples = (("source", "target"),)
    unit = "pairs"
    report = staticmethod(parallel_report)

    source: str = "en"
    target: str = "de"
    size: Items = 30_000
    cache_folder: Path | None = None

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> Pairs:
        return read_parallel(
            corpus, self.source, self.target, skip_bad_lines=self.skip_bad_lines, cache_folder=self.cache_folder
        )

    def embedded(self) -> SplitData[Pairs]:
        return shipped.pairs(self.source, self.target, seed=self.seed, size=self.size)

    def hold_out(self, train: Pairs) -> tuple[Pairs, Pairs]:
        return hold_out(train, train.sources, fraction=self.fraction, what="source sentence")

    def content(self, data: Pairs, split: str) -> Iterable[str]:
        return ConcatenatedTexts((data.sources, data.targets))

    def splits_in(self, folder: Path) -> Splits:
        return splits_among(folder, corpora_in(folder, self.source, self.target), shards=PARTS)

    def test_among(self, data: str | Path, tests: Sequence[str]) -> str | None:
        return tests[0] if tests else None

    def files(self, corpus: str) -> list[Path]:
        return locate(corpus, self.source, self.target)

    @property
    def expected(self) -> str:
        return f"train.{self.source} + train.{self.target} (or train{', '.join(TABLES)})"


@dataclass(frozen=True, kw_only=True)
class LabeledSource(ClassSource[Labeled]):
    """Data source of labeled texts. If no data are given, it generates phrases in 60 languages, labeled by language.

    columns  names of the table columns
    size     approximate number of generated training phrases
    """

    kind = "labeled"
    tuples = (("text", "label"), ("text", "text_pair", "label"))
    report = staticmethod(labeled_report)

    columns: Columns = field(default_factory=Columns)
    size: Items = 48_000

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> Labeled:
        names, skip = self.names_for(labels, corpus), self.skip_bad_lines
        data = read_labeled(
            corpus, self.columns, names=names, skip_bad_lines=skip, target=self.target
        )  # fmt: skip
        return with_labels(data, labels, skip_bad_lines=True) if labels and skip else data

    @property
    def label_columns(self) -> tuple[str, ...]:
        label = self.columns.label
        return label if isinstance(label, tuple) else LABELS if label is None else (label,)

    def splits_in(self, folder: Path) -> Splits:
        """Find the splits of a directory among its tables; if it contains no tables, among its class folders."""
        tables = super().splits_in(folder)
        return class_folder_splits(folder) if tables == (None, None, []) else tables

    @property
    def expected(self) -> str:
        return f"{super().expected}, or train/CLASS/*.txt"

    def embedded(self) -> SplitData[Labeled]:
        return shipped.languages(seed=self.seed, size=self.size)

    def hold_out(self, train: Labeled) -> tuple[Labeled, Labeled]:
        labels = label_sets(train.labels, train.target)
        return hold_out(train, train.inputs, labels, strata=labels, fraction=self.fraction, what="text")

    def fitting(self, data: Labeled, train: Labeled) -> Labeled:
        """Return validation or test data, after checking that they are compatible with the training data.

        Raises UserError for a label that does not occur in the training data, and if one of the data sets contains
        pairs of texts and the other single texts.
        """
        if (data.second_texts is None) != (train.second_texts is None):
            raise UserError(
                f"{data.file} and {train.file}: found pairs of texts in one and single texts in "
                "the other; expected the same in both"
            )
        return with_labels(data, labels_of(train.labels, train.target), skip_bad_lines=self.skip_bad_lines)

    def content(self, data: Labeled, split: str) -> list[str]:
        return [*data.inputs, *data.labels, *map(str, data.weights)]

    def check_training(self, train: Labeled) -> None:
        super().check_training(train)
        warn_about_absent(self.columns.label, train.labels)
        if (name := self.columns.weight) and not train.weights:
            raise UserError(f"{train.file}: found no column {name!r} with the weight of each item")

    def describe(self, splits: SplitData[Labeled]) -> JsonObject:
        """Return the description of the splits for result.json, which also states whether items are pairs of texts."""
        return {**super().describe(splits), "pairs": splits.train.second_texts is not None}


@dataclass(frozen=True, kw_only=True)
class TextPairSource(Source[TextPairs]):
    """Data source of pairs of similar texts.

    If no data are given, `size` phrases in English and German are generated; a phrase and its translation are a pair.
    """

    kind = "text-pairs"
    tuples = (("text", "pair"), ("text", "pair", "negative"))
    unit = "pairs"
    report = staticmethod(text_pair_report)

    columns: PairColumns = field(default_factory=PairColumns)
    size: Items = 30_000

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> TextPairs:
        return read_text_pairs(corpus, self.columns, skip_bad_lines=self.skip_bad_lines)

    def embedded(self) -> SplitData[TextPairs]:
        splits = shipped.pairs("en", "de", seed=self.seed, size=self.size)
        parts = {name: TextPairs([*pairs.sources], [*pairs.targets]) for name, pairs in splits.known.items()}
        return SplitData(parts["train"], parts["validation"], parts["test"])

    def hold_out(self, train: TextPairs) -> tuple[TextPairs, TextPairs]:
        return hold_out(train, train.texts, fraction=self.fraction, what="text")

    def check_training(self, train: TextPairs) -> None:
        if len(train) < 2:
            raise UserError(f"{train.file}: found one pair: expected at least two, because training compares pairs")
        if not train.scores and len({*train.pairs}) == 1:
            raise UserError(f"{train.file}: the second text of all {len(train):,} pairs is {train.pairs[0]!r:.60}: "
                            "expected different texts, because training tells a pair from the other pairs")  # fmt: skip
        if train.equal == len(train):
            raise UserError(
                f"{train.file}: both texts are equal in all {len(train):,} pairs: expected different texts. Check the "
                f"columns {' and '.join(map(repr, train.used[:2]))}"
            )

    def fitting(self, data: TextPairs, train: TextPairs) -> TextPairs:
        """Return validation or test data. Raises UserError if they have scores and the training data do not."""
        if bool(data.scores) != bool(train.scores):
            raise UserError(
                f"{data.file} and {train.file}: found a similarity of each pair in one and none in the other; expected "
                "the same in both"
            )
        return data

    def content(self, data: TextPairs, split: str) -> Iterable[str]:
        return chain(*data.sides, map(repr, data.scores))


@dataclass(frozen=True, kw_only=True)
class TaggedSource(Source[Tagged]):
    """Data source of tagged sentences. If no data are given, it generates `size` training phrases in `locale`."""

    kind = "tagged"
    tuples = (("tokens", "tags"),)
    unit = "sentences"
    suffixes = conll.SUFFIXES
    report = staticmethod(tag_report)

    locale: str = "en"
    size: Items = 8000

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> Tagged:
        tagged = read_conll(corpus, skip_bad_lines=self.skip_bad_lines)
        return tagged.only(labels) if labels and self.skip_bad_lines else tagged

    def splits_in(self, folder: Path) -> Splits:
        """Find the splits of a directory. The name of a split may be a file suffix, as in eng.train of CoNLL-2003."""
        suffixes = {path.name: format_suffix(path) for path in visible(folder) if path.is_file()}
        usable = [name for name, suffix in suffixes.items() if suffix in self.suffixes or role_of(suffix)]
        return splits_among(folder, usable)

    def embedded(self) -> SplitData[Tagged]:
        return shipped.tagged(self.locale, seed=self.seed, size=self.size)

    def hold_out(self, train: Tagged) -> tuple[Tagged, Tagged]:
        keys = [" ".join(words) for words in train.words]
        return hold_out(train, keys, train.tags, strata=train.tags, fraction=self.fraction, what="sentence")

    def content(self, data: Tagged, split: str) -> list[str]:
        return data.texts

    def is_unlabeled(self, corpus: str | Rows) -> bool:
        return (
            not isinstance(corpus, Rows)
            and not is_table(corpus)
            and not any(len((line or "").split()) > 1 for line in lines(Path(corpus)))
        )

    def fitting(self, data: Tagged, train: Tagged) -> Tagged:
        """Return validation or test data, after checking that all their tags also occur in the training data."""
        if self.skip_bad_lines:
            return data.only(train.labels)
        data.check_labels(train.labels)
        return data


@dataclass(frozen=True, kw_only=True)
class QuestionSource(Source[Questions]):
    """Data source of questions about texts. It has no built-in corpus, so data are required."""

    kind = "questions"
    tuples = (("context", "question", "answer", "answer_start"),)
    unit = "questions"
    suffixes = squad.SUFFIXES
    report = staticmethod(question_report)

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> Questions:
        return read_squad(corpus, skip_bad_lines=self.skip_bad_lines)

    def hold_out(self, train: Questions) -> tuple[Questions, Questions]:
        return hold_out_questions(train, self.fraction)

    def content(self, data: Questions, split: str) -> list[str]:
        return data.texts
