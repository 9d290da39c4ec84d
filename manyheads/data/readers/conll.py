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
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from manyheads.data.readers.compressed import kind
from manyheads.data.readers.dataset import Dataset, leaving_out
from manyheads.data.readers.rows import (
    TABLES,
    BadRow,
    Block,
    Cells,
    Row,
    blocks,
    character_fault,
    filter_invalid,
    parsed,
    table,
)
from manyheads.data.readers.splits import LONGEST, UTF8, lines
from manyheads.errors import UserError

OUTSIDE = "O"
DOCUMENT = "-DOCSTART-"
SUFFIXES = (".txt", ".conll", ".tsv", ".iob2", ".bio", ".csv", ".jsonl", ".parquet")
_WORDS, _TAGS = ("tokens", "words"), ("tags", "ner_tags")  # names of columns
_LISTS = "write a list of words and a list of as many tags"
Sentence = tuple[list[str], list[str]]  # words and tags


@dataclass(frozen=True, repr=False)
class Tagged(Dataset):
    """Sentences as words and their IOB2 tags.

    rows  whether a line of the file holds a whole sentence, not one word
    """

    columns: ClassVar[tuple[str, ...]] = ("words", "tags")

    words: list[list[str]]
    tags: list[list[str]]
    rows: bool = False

    @property
    def labels(self) -> list[str]:
        """The tags that occur: O first, then those of each kind of entity together."""
        different = {tag for tags in self.tags for tag in tags}
        return sorted(different, key=lambda tag: (tag != OUTSIDE, tag[2:], tag))

    @property
    def texts(self) -> list[str]:
        """Every sentence with its tags as one text, for fingerprints."""
        return ["\n".join(map("\t".join, zip(*pair, strict=True))) for pair in zip(self.words, self.tags, strict=True)]

    def place(self, index: int, word: int = 0) -> str:
        """Where a word of a sentence was read; both count from 0."""
        if self.lines:
            return f"{self.file}:{self.lines[index] + (0 if self.rows else word)}"
        return f"sentence {index + 1}, word {word + 1}"

    def check_labels(self, known: Sequence[str]) -> None:
        """Raises a UserError that names the first tag which is not among the known ones, and where it stands."""
        for s, tags in enumerate(self.tags):
            for w, tag in enumerate(tags):
                if tag not in known:
                    raise UserError(
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
            raise UserError(f"{self.file}: every sentence has a tag that does not occur in the training data")
        return leaving_out(self, kept, "tags not in the training data")


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

    Raises a one-line UserError that names file, line and remedy, or FileNotFoundError; `skip_bad_lines` leaves out the
    sentences with a faulty line and counts them.
    """
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give a file of a word and its tag a line, or a table of "
                                "tokens and tags")  # fmt: skip
    is_table, skips = _is_table(file), Counter[str]()
    sentences = filter_invalid(
        _table(file) if is_table else _columns(file), skips, skip=skip_bad_lines, unit="sentences"
    )
    hint = "expected a word and its tag a line, blank lines between sentences"
    return replace(Tagged.collect(islice(sentences, limit), file, skips, "no usable sentence", hint), rows=is_table)


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
    header = next(lines(file), None) or "" if kind(file) == ".tsv" else ""
    named = all(set(names) & set(header.split("\t")) for names in (_WORDS, _TAGS))
    return named or (kind(file) in TABLES and kind(file) != ".tsv")


def _columns(file: Path) -> Iterator[Row[Sentence]]:
    """A word a line."""
    width = 0  # columns of the file, as its first usable line has them

    def sentence(row: Row[Block]) -> Sentence:
        nonlocal width
        words, tags = [], []
        for number, line in row.cells:
            if line is None:
                raise BadRow(*UTF8, line=number)
            columns = _split(line)
            if len(columns) < 2:
                raise BadRow("a word without a tag", "expected the word first and its tag last", line=number)
            width = width or len(columns)
            if len(columns) != width:
                fault = f"{len(columns)} columns where {width} were expected"
                raise BadRow(fault, "separate them by one tab or space", line=number)
            words.append(columns[0])
            tags.append(columns[-1])
        return _checked(row, words, tags, step=1)

    return parsed(blocks(file, lambda line: _split(line)[:1] in ([], [DOCUMENT])), sentence)


def _split(line: str) -> list[str]:
    """Empty for a blank line. No-break spaces do not part columns: a word may hold them."""
    line = line.strip(" \t")
    return re.split("\t" if "\t" in line else " +", line) if line else []


def _table(file: Path) -> Iterator[Row[Sentence]]:
    """A sentence a row."""
    one_cell = kind(file) in (".csv", ".tsv")  # with all words of the sentence

    def sentence(row: Row[Cells]) -> Sentence:
        sides = []
        for names in (_WORDS, _TAGS):
            cell: Any = next((row.cells[name] for name in names if name in row.cells), None)
            sides.append(cell.split() if isinstance(cell, str) and one_cell else cell)
        if not all(isinstance(side, list) and all(isinstance(i, str) for i in side) for side in sides):
            raise BadRow(f"no texts under {' or '.join(map(repr, _WORDS))} and {' or '.join(map(repr, _TAGS))}", _LISTS)
        words, tags = sides
        if len(words) != len(tags) or not words:
            raise BadRow(f"{len(words):,} words with {len(tags):,} tags", _LISTS)
        if not all(map(str.strip, words)):
            raise BadRow("a blank word", _LISTS)
        return _checked(row, words, tags, step=0)

    return parsed(table(file, columns=(*_WORDS, *_TAGS)), sentence)


def _checked(row: Row[Any], words: list[str], tags: list[str], *, step: int) -> Sentence:
    """The sentence, or its first fault; each word is `step` lines below the one before."""
    if sum(map(len, words)) > LONGEST:
        raise BadRow(f"a sentence of more than {LONGEST:,} characters", "cut it into several")
    for number, pair in enumerate(zip(words, tags, strict=True)):
        for text, name in zip(pair, ("a word", "a tag"), strict=True):
            if fault := character_fault(text, name):
                raise BadRow(*fault, line=row.number + step * number)
    if broken := fault_of(tags):
        number, what, hint = broken
        raise BadRow(what, hint, line=row.number + step * number)
    return words, tags
