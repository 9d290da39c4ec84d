"""Tagged sentences, read strictly from CoNLL column files or from tables, and raw text as words.

EU B-ORG            one word a line: the word first, its tag last, columns between them are not read; blank lines
rejects O           between sentences, `-DOCSTART-` between documents. Columns are parted by tabs where a line has
German B-MISC       one, else by spaces. Tags are IOB2: B- begins an entity, I- goes on with it, O is outside.

A table (.jsonl, .parquet, .csv, or .tsv with a header line) has a sentence a row: lists of `tokens` (or `words`) and
of `tags` (or `ner_tags`); in .csv and .tsv a cell holds them with spaces between.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from manyheads.data.rows import TABLES, Fault, Row, character_fault, sift, table
from manyheads.data.splits import LONGEST, UTF8, lines

OUTSIDE = "O"
DOCUMENT = "-DOCSTART-"
SUFFIXES = (".txt", ".conll", ".tsv", ".iob2", ".bio", ".csv", ".jsonl", ".parquet")
_WORDS, _TAGS = ("tokens", "words"), ("tags", "ner_tags")  # names of columns
_LISTS = "write a list of words and a list of as many tags"
Sentence = tuple[list[str], list[str]]  # words and tags


@dataclass(frozen=True)
class Tagged:
    """Sentences as words and their IOB2 tags.

    lines  where each sentence begins in `file`. Empty where there is no file
    rows   whether a line holds a whole sentence, not one word
    skips  the sentences left out, counted by file and reason
    """

    words: list[list[str]]
    tags: list[list[str]]
    lines: list[int] = field(default_factory=list)
    file: Path | None = None
    skips: dict[str, int] = field(default_factory=dict)
    rows: bool = False

    def __post_init__(self) -> None:
        assert len(self.words) == len(self.tags)

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Tagged({len(self):,} sentences, {sum(map(len, self.words)):,} words, file={str(self.file)!r})"

    @property
    def labels(self) -> list[str]:
        """The tags that occur: O first, then those of each kind of entity together."""
        different = {tag for tags in self.tags for tag in tags}
        return sorted(different, key=lambda tag: (tag != OUTSIDE, tag[2:], tag))

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
            return f"{self.file}:{self.lines[sentence] + (0 if self.rows else word)}"
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


def read_conll(file: str | Path, *, skip_bad_lines: bool = False, limit: int | None = None) -> Tagged:
    """Reads one file, of columns or a table; `limit` is how many sentences at most.

    Raises a one-line ValueError that names file, line and remedy, or FileNotFoundError; `skip_bad_lines` leaves out the
    sentences with a faulty line and counts them.
    """
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give a file of a word and its tag a line, or a table of "
                                "tokens and tags")  # fmt: skip
    rows = _is_table(file)
    data, skips = Tagged([], [], [], file, rows=rows), Counter[str]()
    sentences = sift(_table(file) if rows else _columns(file), skips, skip=skip_bad_lines, unit="sentences")
    for row in islice(sentences, limit):
        data.words.append(row.cells[0])
        data.tags.append(row.cells[1])
        data.lines.append(row.number)
    if not data.words:
        raise ValueError(f"{file}: no usable sentence ({sum(skips.values()):,} skipped); expected a word and its tag "
                         "a line, blank lines between sentences")  # fmt: skip
    return replace(data, skips=dict(skips))


def words_of(text: str) -> list[tuple[int, int]]:
    """The words of raw text, as where each begins and ends: what stands between spaces, with the punctuation and the
    symbols at its ends split off one by one ("(3:45 PM)" -> ( 3:45 PM ); those inside a word stay)."""
    spans: list[tuple[int, int]] = []
    for chunk in re.finditer(r"\S+", text):
        start, end = first, last = chunk.span()
        while first < last and _is_mark(text[first]):
            first += 1
        while first < last and _is_mark(text[last - 1]):
            last -= 1
        marks_before, marks_after = range(start, first), range(last, end)
        spans += [(i, i + 1) for i in marks_before]
        spans += [(first, last)] if first < last else []
        spans += [(i, i + 1) for i in marks_after]
    return spans


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _is_table(file: Path) -> bool:
    """A .tsv file is one where its first line names the columns."""
    header = next(lines(file), None) or "" if file.suffix == ".tsv" else ""
    named = all(set(names) & set(header.split("\t")) for names in (_WORDS, _TAGS))
    return named or (file.suffix in TABLES and file.suffix != ".tsv")


def _columns(file: Path) -> Iterator[Row[Sentence]]:
    """A word a line. A row is where its sentence begins, or the first faulty line of it."""
    width = 0  # columns of the file, as its first line has them
    first, words, tags = 0, list[str](), list[str]()
    faulty: Row[Sentence] | None = None
    for number, line in enumerate(chain(lines(file), [""]), 1):
        columns = None if line is None else _split(line)
        if columns is not None and (not columns or columns[0] == DOCUMENT):
            if first:
                yield faulty or _checked(file, first, words, tags)
            first, words, tags, faulty = 0, [], [], None
            continue
        first = first or number
        fault: Fault | None = None
        if columns is None:
            fault = UTF8
        elif len(columns) < 2:
            fault = "a word without a tag", "expected the word first and its tag last"
        elif width and len(columns) != width:
            fault = f"{len(columns)} columns where {width} were expected", "separate them by one tab or space"
        else:
            width = len(columns)
            words.append(columns[0])
            tags.append(columns[-1])
        if fault and faulty is None:
            faulty = Row(file, number, (words, tags), *fault)


def _split(line: str) -> list[str]:
    """Empty for a blank line. No-break spaces do not part columns: a word may hold them."""
    line = line.strip(" \t")
    return re.split("\t" if "\t" in line else " +", line) if line else []


def _table(file: Path) -> Iterator[Row[Sentence]]:
    for row in table(file, columns=(*_WORDS, *_TAGS)):
        if row.fault:
            yield Row(file, row.number, ([], []), row.fault, row.remedy)
            continue
        sides = []
        for names in (_WORDS, _TAGS):
            cell: Any = next((row.cells[name] for name in names if name in row.cells), None)
            sides.append(cell.split() if isinstance(cell, str) and file.suffix in (".csv", ".tsv") else cell)
        words, tags = sides
        if not all(isinstance(side, list) and all(isinstance(i, str) for i in side) for side in sides):
            fault = f"no texts under {' or '.join(map(repr, _WORDS))} and {' or '.join(map(repr, _TAGS))}"
            yield Row(file, row.number, ([], []), fault, _LISTS)
        elif len(words) != len(tags) or not words or not all(map(str.strip, words)):
            fault = "a blank word" if len(words) == len(tags) > 0 else f"{len(words):,} words with {len(tags):,} tags"
            yield Row(file, row.number, ([], []), fault, _LISTS)
        else:
            yield _checked(file, row.number, words, tags, step=0)


def _checked(file: Path, line: int, words: list[str], tags: list[str], step: int = 1) -> Row[Sentence]:
    """The sentence, or its first fault; each word is `step` lines below the one before."""
    sentence = words, tags
    if sum(map(len, words)) > LONGEST:
        return Row(file, line, sentence, f"a sentence of more than {LONGEST:,} characters", "cut it into several")
    for number, word in enumerate(words):
        if fault := character_fault(word, "a word"):
            return Row(file, line + step * number, sentence, *fault)
    if broken := fault_of(tags):
        number, what, remedy = broken
        return Row(file, line + step * number, sentence, what, remedy)
    return Row(file, line, sentence)
