"""Tagged sentences: CoNLL column files, read strictly, and raw text as words.

EU B-ORG            one word a line: the word first, its tag last, columns between them are not read; blank lines
rejects O           between sentences, `-DOCSTART-` between documents. Columns are parted by tabs where a line has
German B-MISC       one, else by spaces. Tags are IOB2: B- begins an entity, I- goes on with it, O is outside.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from manyheads.data.splits import UTF8, SplitData, Splits, find_files, lines_of, read_files

OUTSIDE = "O"
DOCUMENT = "-DOCSTART-"
SUFFIXES = (".txt", ".conll", ".tsv", ".iob2", ".bio")


@dataclass(frozen=True)
class Tagged:
    """Sentences as words and their IOB2 tags.

    lines  where each sentence begins in `file`: its words are one a line. Empty where there is no file.
    skips  the sentences left out, counted by file and reason.
    """

    words: list[list[str]]
    tags: list[list[str]]
    lines: list[int] = field(default_factory=list)
    file: Path | None = None
    skips: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert len(self.words) == len(self.tags)

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Tagged({len(self):,} sentences, {sum(map(len, self.words)):,} words, file={str(self.file)!r})"

    @property
    def labels(self) -> list[str]:
        """The tags that occur: O first, then those of each kind of entity together."""
        found = {tag for tags in self.tags for tag in tags}
        return sorted(found, key=lambda tag: (tag != OUTSIDE, tag[2:], tag))

    @property
    def texts(self) -> list[str]:
        """Every sentence with its tags as one text, which tells it apart from all others."""
        return ["\n".join(map("\t".join, zip(*pair, strict=True))) for pair in zip(self.words, self.tags, strict=True)]

    def subset(self, rows: Sequence[int]) -> Tagged:
        words, tags = ([column[i] for i in rows] for column in (self.words, self.tags))
        return replace(self, words=words, tags=tags, lines=[self.lines[i] for i in rows] if self.lines else [])

    def place(self, sentence: int, word: int) -> str:
        """Where a word stands, for messages; both count from 0."""
        if self.lines:
            return f"{self.file}:{self.lines[sentence] + word}"
        return f"sentence {sentence + 1}, word {word + 1}"

    def check_labels(self, known: Sequence[str]) -> None:
        """Raises a ValueError that names the first tag which is not among the known ones, and where it stands."""
        for s, tags in enumerate(self.tags):
            for w, tag in enumerate(tags):
                if tag not in known:
                    raise ValueError(
                        f"{self.place(s, w)}: the tag {tag!r} does not occur in the training data: known are "
                        f"{', '.join(known)}; correct it, train on data that have it, or skip such sentences with "
                        "--skip-bad-lines"
                    )

    def only(self, known: Sequence[str]) -> Tagged:
        """Without the sentences that have another tag than the known ones, which are counted in `skips`."""
        kept = [i for i, tags in enumerate(self.tags) if set(tags) <= set(known)]
        if len(kept) == len(self):
            return self
        if not kept:
            raise ValueError(f"{self.file}: every sentence has a tag that does not occur in the training data")
        reason = f"{self.file}: tags not in the training data"
        return replace(self.subset(kept), skips={**self.skips, reason: len(self) - len(kept)})


def fault_of(tags: Sequence[str]) -> tuple[int, str, str] | None:
    """The first tag that breaks IOB2: its index, what is wrong, and the remedy."""
    before = OUTSIDE
    for i, tag in enumerate(tags):
        begins, kind = tag[:2], tag[2:]
        if tag != OUTSIDE and (begins not in ("B-", "I-") or not kind):
            return i, f"{tag!r} is no IOB2 tag", "expected O, B-KIND or I-KIND"
        if begins == "I-" and before[2:] != kind:
            after = f"after {before}" if i else "at the start of a sentence"
            return i, f"{tag} {after} breaks IOB2", f"expected B-{kind}: convert the tags from IOB1"
        before = tag
    return None


def read_conll(file: str | Path, *, skip_bad_lines: bool = False) -> Tagged:
    """Reads one file. Raises a one-line ValueError that names file, line and remedy, or FileNotFoundError;
    `skip_bad_lines` leaves out the sentences with a faulty line and counts them."""
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give a file of a word and its tag a line")
    words: list[list[str]] = []
    tags: list[list[str]] = []
    lines: list[int] = []
    skips: Counter[str] = Counter()
    for sentence in _sentences(file):
        fault, remedy, line = sentence.fault, sentence.remedy, sentence.fault_line
        if not fault and (broken := fault_of(sentence.tags)):
            line = sentence.line + broken[0]
            fault, remedy = broken[1:]
        if not fault:
            words.append(sentence.words)
            tags.append(sentence.tags)
            lines.append(sentence.line)
        elif skip_bad_lines:
            skips[f"{file}: {fault}"] += 1
        else:
            raise ValueError(f"{file}:{line}: {fault}; {remedy}, or skip such sentences with --skip-bad-lines")
    if not words:
        raise ValueError(f"{file}: no usable sentence ({sum(skips.values()):,} skipped); expected a word and its tag "
                         "a line, blank lines between sentences")  # fmt: skip
    return Tagged(words, tags, lines, file, dict(skips))


def read_splits(
    data: str | Path, *, validation: str | None = None, test: str | None = None, skip_bad_lines: bool = False
) -> SplitData[Tagged]:
    """The splits of a directory, or one file as the training data; `validation` and `test` win over those found.

    Without validation data, 5% of the training sentences are held out by a hash of their words.
    """
    return read_files(
        data, SUFFIXES, partial(read_conll, skip_bad_lines=skip_bad_lines),
        lambda tagged: [" ".join(words) for words in tagged.words], what="sentence",
        labels=lambda tagged: tagged.tags, validation=validation, test=test,
    )  # fmt: skip


def find_splits(data: str | Path, *, validation: str | None = None, test: str | None = None) -> Splits:
    """The files behind `data`: those of a directory's splits, or one file as the training data."""
    return find_files(data, SUFFIXES, validation=validation, test=test)


def words_of(text: str) -> list[tuple[int, int]]:
    """The words of raw text, as where each begins and ends: what stands between spaces, with the punctuation and the
    symbols at its ends split off one by one ("(3:45 PM)" -> ( 3:45 PM ); those inside a word stay)."""
    found = []
    for chunk in re.finditer(r"\S+", text):
        start, end = first, last = chunk.span()
        while first < last and _is_mark(text[first]):
            first += 1
        while first < last and _is_mark(text[last - 1]):
            last -= 1
        marks_before, marks_after = range(start, first), range(last, end)
        found += [(i, i + 1) for i in marks_before]
        found += [(first, last)] if first < last else []
        found += [(i, i + 1) for i in marks_after]
    return found


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


class _Sentence(NamedTuple):
    line: int
    words: list[str]
    tags: list[str]
    fault: str = ""
    remedy: str = ""
    fault_line: int = 0


def _sentences(file: Path) -> Iterator[_Sentence]:
    """The sentences of a file; the first faulty line of one is told instead of its tags."""
    width = 0  # columns of the file, as its first line has them
    sentence: _Sentence | None = None
    for number, line in enumerate([*lines_of(file), ""], 1):
        columns = None if line is None else _columns(line)
        if columns is not None and (not columns or columns[0] == DOCUMENT):
            if sentence is not None:
                yield sentence
            sentence = None
            continue
        sentence = sentence or _Sentence(number, [], [])
        if columns is None:
            fault, remedy = UTF8
        elif len(columns) < 2:
            fault, remedy = "a word without a tag", "expected the word first and its tag last"
        elif width and len(columns) != width:
            fault, remedy = f"{len(columns)} columns where {width} were expected", "separate them by one tab or space"
        else:
            width = len(columns)
            sentence.words.append(columns[0])
            sentence.tags.append(columns[-1])
            continue
        if not sentence.fault:
            sentence = sentence._replace(fault=fault, remedy=remedy, fault_line=number)


def _columns(line: str) -> list[str]:
    """Empty for a blank line. No-break spaces do not part columns: a word may hold them."""
    line = line.strip(" \t")
    return re.split("\t" if "\t" in line else " +", line) if line else []
