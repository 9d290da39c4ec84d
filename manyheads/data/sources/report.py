"""Report on the data before training: sizes, lengths, labels, duplicates, and overlap between the splits.

A report is plain text: a table with one column per split, followed by warnings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.readers.conll import Tagged
from manyheads.data.readers.documents import Documents
from manyheads.data.readers.labeled import Labeled, label_sets, labels_of
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData, hash_of, hashes_of
from manyheads.data.readers.squad import Questions
from manyheads.data.readers.text_pairs import TextPairs
from manyheads.data.readers.texts import Texts

_OUTLIER_FACTOR = (
    3.0  # A sentence pair is an outlier if its length ratio differs from the median ratio by more than this factor.
)
_MAX_LABELS = 6  # maximum number of labels that are listed in separate rows


class Counted(Protocol):
    """Protocol of a data set that a report can describe.

    skips  number of skipped items, by file and reason
    """

    @property
    def skips(self) -> dict[str, int]: ...

    def __len__(self) -> int: ...


S = TypeVar("S", bound=Counted)


class Report(Generic[S]):
    """Report as a table with one column per split (the training data first) and a list of `warnings`.

    `str(report)` returns the text of the report.
    """

    def __init__(self, splits: Mapping[str, S], unit: str) -> None:
        """Create a report with an empty table. `unit` is the plural noun for the items, such as "pairs"."""
        from rich.table import Table

        self.splits, self.unit = splits, unit
        self.warnings: list[str] = []
        self._table = Table("corpus", *splits)
        self.row(unit, lambda split: f"{len(split):,}")
        self.row("  skipped", lambda split: f"{sum(split.skips.values()):,}")

    def row(self, name: str, value: Callable[[S], object]) -> None:
        self._table.add_row(name, *(str(value(split)) for split in self.splits.values()))

    def count_row(self, name: str, count: Callable[[S], int]) -> None:
        """Add a row with one count for each split, followed by the percentage of the split's items.

        name   name of the row
        count  function that returns the count for a split
        """
        self.row(name, lambda split: _count_with_percentage(count(split), len(split)))

    def lengths(self, name: str, lengths: Callable[[S], Sequence[int] | NDArray[np.int64]]) -> None:
        """Add a row that describes the item lengths of each split: mean, 99th percentile and maximum."""
        self.row(f"{name} (mean / 99% / longest)", lambda split: _statistics(lengths(split)))

    def labels(self, labels: Callable[[S], Sequence[str]], order: Sequence[str]) -> None:
        """Add rows with the number of items for each label.

        There is one row for each of the first labels, and one row for all remaining labels together.
        """
        counts = {id(split): Counter(labels(split)) for split in self.splits.values()}
        for label in order[:_MAX_LABELS]:
            self.count_row(f"label: {label}", lambda split, label=label: counts[id(split)][label])  # type: ignore[misc]
        if others := order[_MAX_LABELS:]:
            self.count_row(f"{len(others):,} more labels", lambda split: sum(counts[id(split)][one] for one in others))

    def targets(self, order: Sequence[str]) -> None:
        """Add rows with the number of items for each label; for a regression, a row that describes the numbers."""
        splits: Mapping[str, Any] = self.splits
        if any(split.target == "regression" for split in splits.values()):
            self._table.add_row("number (smallest / mean / largest)", *(_range(s.labels) for s in splits.values()))
        else:
            sets = {id(split): label_sets(split.labels, split.target) for split in splits.values()}
            self.labels(lambda split: [*chain.from_iterable(sets[id(split)])], order)
            if any(split.target == "multi-label" for split in splits.values()):
                self.count_row("without a label", lambda split: sets[id(split)].count(()))

    def repetitions(self, hashes: Callable[[S], NDArray[np.uint64]], what: str | None = None) -> None:
        """Add two rows: duplicates within each split, and items that also occur in the training data.

        If a split contains items of the training data, a warning is added, too.

        hashes  function that returns the 64-bit hashes (N,) of the items in a split; equal hashes mean equal items
        what    noun for the items in the report. By default, the noun of the whole report
        """
        of = {name: hashes(split) for name, split in self.splits.items()}
        train, *others = self.splits
        known, what = np.unique(of[train]), what or self.unit
        repeated = [_count_with_percentage(len(found) - len(np.unique(found)), len(found)) for found in of.values()]
        self._table.add_row(f"duplicate {what}", *repeated)
        overlap = {name: int(np.isin(of[name], known).sum()) for name in others}
        cells = [_count_with_percentage(count, len(of[name])) for name, count in overlap.items()]
        self._table.add_row(f"{what} of the training data", "", *cells)
        self.warnings += [
            f"{count:,} of {len(of[name]):,} {name} {what} also occur in the training data: {name} scores "
            "are too optimistic"
            for name, count in overlap.items()
            if count
        ]

    def contradictions(self, keys: Sequence[Hashable], labels: Sequence[str]) -> None:
        """Add a warning if an item occurs several times in the training data with different labels."""
        known = dict(zip(keys, labels, strict=True))
        if count := sum(known[key] != label for key, label in zip(keys, labels, strict=True)):
            self.warnings.append(f"{count:,} training {self.unit} occur again with another label")

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(
            width=120, no_color=True, force_terminal=False, force_jupyter=False, markup=False, emoji=False
        )
        with console.capture() as capture:
            console.print(self._table)
        return capture.get() + "".join(f"warning: {warning}\n" for warning in self.warnings)


def _count_with_percentage(count: int, items: int) -> str:
    return f"{count:,} ({count / max(items, 1):.1%})"


def _statistics(lengths: Sequence[int] | NDArray[np.int64]) -> str:
    if not len(lengths):
        return ""
    array = np.asarray(lengths)
    return f"{array.mean():.1f} / {np.percentile(array, 99):.0f} / {array.max():,}"


def _range(numbers: Sequence[str] | Sequence[float]) -> str:
    array = np.array(numbers, dtype=float)
    return f"{array.min():g} / {array.mean():.4g} / {array.max():g}"


def _words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


class _PairStatistics:
    """Statistics of sentence pairs. They are collected in one pass, because the pairs may exceed memory."""

    def __init__(self, pairs: Pairs) -> None:
        self.skips = pairs.skips
        counts = ("source words", "target words", "source characters", "target characters")
        hashes = [("source", np.uint64), ("pair", np.uint64)]
        kinds = np.dtype([*((name, np.int32) for name in counts), ("copied", bool), *hashes])
        sides = zip(pairs.sources, pairs.targets, strict=True)
        self.of = np.fromiter(
            (
                (len(a.split()), len(b.split()), len(a), len(b), a == b, hash_of(a), hash_of(f"{len(a)} {a}{b}"))
                for a, b in sides
            ),
            kinds, len(pairs),
        )  # fmt: skip
        sources, targets = self.of["source characters"], self.of["target characters"]
        # Add 1 to both lengths, so that a pair of one and two characters is not an outlier.
        ratios = np.log((targets + 1) / (sources + 1))
        self.ratio = float(np.median(ratios))  # logarithm of the median length ratio
        self.outliers = int((np.abs(ratios - self.ratio) > math.log(_OUTLIER_FACTOR)).sum())
        self.copied = int(self.of["copied"].sum())
        self.repeated = len(self) - len(np.unique(self.of["pair"]))

    def __len__(self) -> int:
        return len(self.of)


def parallel_report(splits: SplitData[Pairs]) -> str:
    """Return a report on sentence pairs, with counts of pairs that are probably not translations.

    These are pairs of very different lengths, and pairs of two identical texts.
    """
    statistics = {name: _PairStatistics(pairs) for name, pairs in splits.known.items()}
    report = Report(statistics, "pairs")
    for lengths in ("source words", "target words", "source characters", "target characters"):
        report.lengths(lengths, lambda pairs, name=lengths: pairs.of[name])  # type: ignore[misc]
    report.row("target characters per source character (median)", lambda pairs: f"{math.exp(pairs.ratio):.2f}")
    report.count_row("ratio outliers", lambda pairs: pairs.outliers)
    report.count_row("copied", lambda pairs: pairs.copied)
    report.count_row("duplicate pairs", lambda pairs: pairs.repeated)
    report.repetitions(lambda pairs: pairs.of["source"], "sources")
    train = statistics["train"]
    for count, fault in ((train.outliers, "differ greatly in length"), (train.copied, "have identical sides")):
        if count > 0.05 * len(train):
            report.warnings.append(
                f"{count:,} of {len(train):,} training pairs {fault}: check that the files are aligned and in order"
            )
    if train.repeated > 0.2 * len(train):
        report.warnings.append(f"{train.repeated:,} of {len(train):,} training pairs repeat an earlier one")
    return str(report)


def labeled_report(splits: SplitData[Labeled]) -> str:
    """Return a report on labeled texts, or on labeled pairs of texts."""
    train = splits.train
    report = Report(splits.known, "texts" if train.second_texts is None else "pairs")
    report.lengths("words", lambda data: _words(data.inputs))
    report.targets(labels_of(train.labels, train.target))
    report.repetitions(lambda data: hashes_of(data.inputs))
    report.contradictions(train.inputs, train.labels)
    return str(report)


def text_pair_report(splits: SplitData[TextPairs]) -> str:
    """Return a report on pairs of similar texts, with their kind: pairs, triplets with a hard negative, or scores.

    It counts pairs of two equal texts, and names the columns that are not used.
    """
    train = splits.train
    report = Report(splits.known, "pairs")
    report.row("kind", lambda data: data.kind)
    report.lengths("words of a text", lambda data: _words(data.texts))
    report.lengths("words of its pair", lambda data: _words(data.pairs))
    report.count_row("pairs of equal texts", lambda data: data.equal)
    if train.scores:
        report.row("score (smallest / mean / largest)", lambda data: _range(data.scores))
    report.repetitions(lambda data: hashes_of(data.texts), "texts")
    report.repetitions(lambda data: hashes_of(data.pairs), "second texts")
    if train.equal > 0.05 * len(train):
        report.warnings.append(f"{train.equal:,} of {len(train):,} training pairs have two equal texts")
    if not train.scores and (count := len(train) - len({*train.pairs})) > 0.5 * len(train):
        report.warnings.append(f"{count:,} of {len(train):,} second texts repeat an earlier one: a batch compares few")
    if train.negatives and (count := sum(map(str.__eq__, train.pairs, train.negatives))):
        report.warnings.append(f"{count:,} of {len(train):,} hard negatives equal the second text of their pair")
    if train.unused and not train.scores:
        unused = ", ".join(map(repr, train.unused))
        report.warnings.append(
            f"every row counts as a pair of similar texts: {unused} not used. For a column of similarities, set "
            "columns.score=NAME"
        )
    return str(report)


def tag_report(splits: SplitData[Tagged]) -> str:
    """Return a report on tagged sentences. It contains the number of entities of each type."""
    report = Report(splits.known, "sentences")
    report.lengths("words", lambda tagged: [len(words) for words in tagged.words])
    kinds = {tag[2:] for tagged in splits.known.values() for tags in tagged.tags for tag in tags if tag[:2] == "B-"}
    for kind in sorted(kinds):
        first = f"B-{kind}"
        report.row(f"entities: {kind}", lambda tagged, first=first: f"{sum(t.count(first) for t in tagged.tags):,}")  # type: ignore[misc]
    report.repetitions(lambda tagged: hashes_of(map("\t".join, tagged.words)))
    return str(report)


def question_report(splits: SplitData[Questions]) -> str:
    """Return a report on questions about texts. It contains a warning if an article occurs in two splits."""
    report = Report(splits.known, "questions")
    report.count_row("without an answer", lambda questions: questions.impossible)
    report.row("articles", lambda questions: f"{questions.articles:,}")
    report.lengths("words of a question", lambda questions: _words([item.question for item in questions.items]))
    report.lengths("words of a context", lambda questions: _words([item.context for item in questions.items]))
    trained = {item.article for item in splits.train.items}
    for name, questions in splits.known.items():
        if name != "train" and (shared := len({item.article for item in questions.items} & trained)):
            report.warnings.append(f"{shared:,} articles of the {name} data also occur in the training data")
    return str(report)


def text_report(splits: SplitData[Texts]) -> str:
    """Return a report on running text. It contains the number of characters."""
    report = Report(splits.known, "texts")
    report.row("characters", lambda data: f"{data.facts.characters:,}")
    report.row("bytes", lambda data: f"{data.bytes:,}")
    report.row("lines", lambda data: f"{data.facts.lines:,}")
    report.row("distinct characters", lambda data: f"{len(data.facts.alphabet):,}")
    report.repetitions(lambda data: data.hashes)
    return str(report)


def document_report(splits: SplitData[Documents]) -> str:
    """Return a report on documents that consist of sentences."""
    report = Report(splits.known, "documents")
    sentences = {id(data): hashes_of(ConcatenatedTexts(data.documents)) for data in splits.known.values()}
    texts = {id(data): hashes_of(data.texts) for data in splits.known.values()}
    report.row("sentences", lambda data: f"{len(sentences[id(data)]):,}")
    report.row("characters", lambda data: f"{sum(map(len, ConcatenatedTexts(data.documents))):,}")
    report.row("distinct sentences", lambda data: f"{len(np.unique(sentences[id(data)])):,}")
    report.repetitions(lambda data: texts[id(data)])
    return str(report)
