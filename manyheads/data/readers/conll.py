"""Reader of tagged sentences from CoNLL column files or tables, and a word tokenizer for raw text.

    EU B-ORG            One word per line: the word first, its tag last; columns in between are ignored. Blank lines
    rejects O           separate sentences, `-DOCSTART-` separates documents. A line with a tab is split at tabs, other
    German B-MISC       lines at spaces. Tags are IOB2: B- begins an entity, I- continues it, O is outside.
                        IOB1, IOBES, BMES and BILOU tags are converted to IOB2.

A table (.jsonl, .parquet, .csv, or .tsv with a header line) has one sentence per row: a list of `tokens` (or `words`)
and a list of `tags` (or `ner_tags`). In .csv and .tsv, a list is written as one cell, with spaces between its items.
Instead, a row may have a text with labeled spans (`spans.py`). The text is then split by `words_of`.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from manyheads.data.readers.compressed import format_suffix
from manyheads.data.readers.dataset import Dataset
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.rows import (
    BadRow,
    Block,
    Cells,
    Row,
    character_fault,
    parse_rows,
    skip_option,
    split_blocks,
)
from manyheads.data.readers.spans import COLUMNS, as_object, read_spans, tags_of
from manyheads.data.readers.splits import LONGEST, UTF8, lines
from manyheads.data.readers.tables import TABLES, class_names, is_table, is_typed, table
from manyheads.errors import UserError

logger = logging.getLogger(__name__)

OUTSIDE = "O"
DOCUMENT = "-DOCSTART-"
SUFFIXES = (".txt", ".conll", ".iob2", ".bio", *TABLES)
_WORDS, _TAGS = ("tokens", "words"), ("tags", "ner_tags")  # valid column names of a table
# IOB2 prefixes for the prefixes of IOBES, BMES and BILOU: S and U are entities of one word, E and L end an entity
_PREFIXES = {"S-": "B-", "U-": "B-", "E-": "I-", "L-": "I-", "M-": "I-"}
_LISTS = "write a list of words and a list of tags of equal length"
Sentence = tuple[list[str], list[str]]  # (words, tags)


@dataclass(frozen=True, repr=False)
class Tagged(Dataset):
    """Data set of sentences with the words of each sentence and one IOB2 tag per word.

    rows  True if each row of the file contains a whole sentence (a table); False if each line contains one word
    """

    columns: ClassVar[tuple[str, ...]] = ("words", "tags")

    words: list[list[str]]
    tags: list[list[str]]
    rows: bool = False

    @property
    def labels(self) -> list[str]:
        """Distinct tags of all sentences: O first, then the tags of each entity type together."""
        different = {tag for tags in self.tags for tag in tags}
        return sorted(different, key=lambda tag: (tag != OUTSIDE, tag[2:], tag))

    @property
    def texts(self) -> list[str]:
        """Each sentence with its tags as one string. The fingerprint of the data is computed from these strings."""
        return ["\n".join(map("\t".join, zip(*pair, strict=True))) for pair in zip(self.words, self.tags, strict=True)]

    def place(self, index: int, word: int = 0) -> str:
        """Return the file and line of a word for error messages.

        index, word  index of the sentence in the data set and of the word in the sentence, counted from 0
        """
        if self.lines:
            return f"{self.file}:{self.lines[index] + (0 if self.rows else word)}"
        return f"sentence {index + 1}, word {word + 1}"

    def check_labels(self, known: Sequence[str]) -> None:
        """Raise UserError if the data contain a tag that is not in `known`. The message names its file and line."""
        for s, tags in enumerate(self.tags):
            for w, tag in enumerate(tags):
                if tag not in known:
                    raise UserError(
                        f"{self.place(s, w)}: the tag {tag!r} does not occur in the training data, which has the tags "
                        f"{', '.join(known)}; correct it, train on data with this tag, or skip such sentences with "
                        f"{skip_option(self.file)}"
                    )

    def only(self, known: Sequence[str]) -> Tagged:
        """Return a data set of the sentences whose tags are all in `known`, and count the others in its `skips`.

        Raises UserError if no sentence remains.
        """
        kept = [i for i, tags in enumerate(self.tags) if set(tags) <= set(known)]
        if len(kept) == len(self):
            return self
        if not kept:
            raise UserError(f"{self.file}: every sentence has a tag that does not occur in the training data")
        return self.keep(kept, "tags not in the training data")


def fault_of(tags: Sequence[str]) -> tuple[int, str, str] | None:
    """Find the first tag in a list that violates the IOB2 rules.

    Return the index of the tag, a description of the fault, and a hint; None if all tags are valid.
    """
    previous = OUTSIDE
    for i, tag in enumerate(tags):
        begins, kind = tag[:2], tag[2:]
        if tag != OUTSIDE and (begins not in ("B-", "I-") or not kind):
            return i, f"{tag!r} is not an IOB2 tag", "expected O, B-TYPE or I-TYPE"
        if begins == "I-" and previous[2:] != kind:
            after = f"after {previous}" if i else "at the start of a sentence"
            return i, f"{tag} {after} violates IOB2", f"expected B-{kind}"
        previous = tag
    return None


def scheme_of(sentences: Iterable[Sequence[str]]) -> str:
    """Return the tagging scheme of a file: IOB2, IOB1, IOBES or BILOU.

    In IOB1, a tag with B- occurs only where an entity directly follows another entity of the same type.

    sentences  tags of each sentence of the file
    """
    begins = False
    for tags in sentences:
        for previous, tag in pairwise((OUTSIDE, *tags)):
            if tag[:2] in _PREFIXES:
                return "BILOU" if tag[:2] in ("U-", "L-") else "IOBES"
            begins = begins or (tag[:2] == "B-" and previous[2:] != tag[2:])
    return "IOB2" if begins else "IOB1"


def to_iob2(tags: Sequence[str], scheme: str) -> list[str]:
    """Convert the tags of a sentence to IOB2."""
    converted = []
    for previous, tag in pairwise((OUTSIDE, *tags)):
        begins = scheme == "IOB1" and tag[:2] == "I-" and previous[2:] != tag[2:]
        converted.append(f"B-{tag[2:]}" if begins else _PREFIXES.get(tag[:2], tag[:2]) + tag[2:])
    return converted


def read_conll(file: str | Path | Rows, *, skip_bad_lines: bool = False) -> Tagged:
    """Read one file: a CoNLL column file or a table.

    skip_bad_lines  True: leave out and count sentences that contain a faulty line

    Raises FileNotFoundError, or a one-line UserError that names the file, the line and a remedy.
    """
    if not isinstance(file, Rows) and not (file := Path(file)).is_file():
        raise FileNotFoundError(f"{file}: no such file; give a file with a word and its tag per line, or a table of "
                                "tokens and tags")  # fmt: skip
    is_table, scheme = isinstance(file, Rows) or _is_table(Path(file)), ""

    def read() -> Iterator[Row[Sentence]]:
        return _table(file) if is_table else _columns(Path(file))

    def convert(row: Row[Sentence]) -> Sentence:
        nonlocal scheme
        words, tags = row.cells
        if fault_of(tags) is not None:
            # Most files need no conversion, so the scheme is only determined at the first tag that is not IOB2.
            scheme = scheme or scheme_of(row.cells[1] for row in read() if not row.fault)
            tags = to_iob2(tags, scheme)
        if (broken := fault_of(tags)) is not None:
            raise BadRow(*broken[1:], line=row.number + (0 if is_table else broken[0]))
        return words, tags

    rows, hint = parse_rows(read(), convert), "expected a word and its tag per line, and blank lines between sentences"
    tagged = Tagged.collect(rows, file, "no usable sentence found", hint, skip=skip_bad_lines, unit="sentences")
    if scheme not in ("", "IOB2"):
        logger.info(f"{file}: converted the tags from {scheme} to IOB2")
    return replace(tagged, rows=is_table)


def words_of(text: str) -> list[tuple[int, int]]:
    """Split raw text into words. Return the (start, end) character offsets of each word.

    The text is split at white space; then punctuation marks and symbols at both ends of a chunk become words of one
    character: "(3:45 PM)" gives the words "(", "3:45", "PM" and ")". Punctuation inside a word is not split off.
    """
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
    """Return True if a file is a table. A .tsv file is a table if its first line contains the column names."""
    if format_suffix(file) != ".tsv":
        return is_table(file)
    header = (next(lines(file), None) or "").split("\t")
    return all(set(names) & set(header) for names in (_WORDS, _TAGS))


def _columns(file: Path) -> Iterator[Row[Sentence]]:
    """Yield the sentences of a CoNLL column file."""
    width = 0  # number of columns in the file, determined by its first usable line

    def sentence(row: Row[Block]) -> Sentence:
        nonlocal width
        words, tags = [], []
        for number, line in row.cells:
            if line is None:
                raise BadRow(*UTF8, line=number)
            columns = _split(line)
            if len(columns) < 2:
                raise BadRow("found a word without a tag", "expected the word first and its tag last", line=number)
            width = width or len(columns)
            if len(columns) != width:
                fault = f"expected {width} columns, found {len(columns)}"
                raise BadRow(fault, "separate them with one tab or space", line=number)
            words.append(columns[0])
            tags.append(columns[-1])
        return _checked(words, tags, row.number, step=1)

    return parse_rows(split_blocks(file, lambda line: _split(line)[:1] in ([], [DOCUMENT])), sentence)


def _split(line: str) -> list[str]:
    """Split a line of a CoNLL column file into columns; a blank line has no columns.

    Words may contain no-break spaces, which do not separate columns.
    """
    line = line.strip(" \t")
    return [cell.strip(" ") for cell in re.split("\t" if "\t" in line else " +", line)] if line else []


def _table(file: str | Path | Rows) -> Iterator[Row[Sentence]]:
    """Yield the sentences of a table that has one sentence per row."""
    spaced = not is_typed(file)  # One cell contains all words or tags of a sentence, separated by spaces.
    tag_names = {name: class_names(Path(file), name) for name in _TAGS}

    def sentence(row: Row[Cells]) -> Sentence:
        given = next((row.cells[name] for name in _TAGS if name in row.cells), {})
        if isinstance(given, dict) and (annotated := read_spans(row.cells)) is not None:
            text, spans = annotated
            offsets = words_of(text)
            words = [text[start:end] for start, end in offsets]
            return _checked(words, tags_of(text, offsets, spans), row.number, step=0)
        sides = []
        for names in (_WORDS, _TAGS):
            name = next((name for name in names if name in row.cells), "")
            cell, known = row.cells.get(name), tag_names.get(name, ())
            side = cell.split() if isinstance(cell, str) and spaced else cell if isinstance(cell, list) else [None]
            sides.append([known[i] if isinstance(i, int) and 0 <= i < len(known) else i for i in side])
        words, tags = ([item for item in side if isinstance(item, str)] for side in sides)
        if [words, tags] != sides:
            named = " and ".join(" or ".join(map(repr, names)) for names in (_WORDS, _TAGS))
            raise BadRow(f"expected lists under {named}", f"{_LISTS}, or a text with spans under 'label' or 'entities'")
        if len(words) != len(tags) or not words:
            raise BadRow(f"found {len(words):,} words but {len(tags):,} tags", _LISTS)
        if not all(map(str.strip, words)):
            raise BadRow("found a blank word", _LISTS)
        return _checked(words, tags, row.number, step=0)

    return parse_rows(map(as_object, table(file, columns=(*_WORDS, *_TAGS, *COLUMNS))), sentence)


def _checked(words: list[str], tags: list[str], line: int, *, step: int) -> Sentence:
    """Check the words and tags of a sentence and return the sentence. Raise BadRow for the first fault.

    line  line number of the first word
    step  number of lines from one word to the next: 1 in a column file (one word per line), 0 in a table (one sentence
          per line)
    """
    if sum(map(len, words)) > LONGEST:
        raise BadRow(f"found a sentence of more than {LONGEST:,} characters", "split it into several sentences")
    for number, pair in enumerate(zip(words, tags, strict=True)):
        for text, name in zip(pair, ("a word", "a tag"), strict=True):
            if fault := character_fault(text, name):
                raise BadRow(*fault, line=line + step * number)
    return words, tags
