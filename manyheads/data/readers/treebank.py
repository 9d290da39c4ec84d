"""Reader of treebanks in CoNLL-U files: sentences with dependency trees and coreference mentions.

    1-2  don't  _  _  _  _  _  _  _  _                  multiword token: the written form; its words follow
    1    Do     do   AUX  ...  3  aux   ...  Entity=(7-person(8-place)    MISC may open and close entity mentions
    2    n't    not  PART ...  3  advmod                ten tab-separated columns; head 0 is the root
    2.1  that   ...                                     empty node: not part of the text, ignored

The words are the lines with a plain number, so each part of a multiword token counts as a word. Mentions have the
format of CorefUD: the key Entity in the column MISC, with the entity's number first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

from manyheads.data.readers.dataset import Dataset
from manyheads.data.readers.rows import BadRow, Block, Row, parse_rows, split_blocks
from manyheads.data.readers.splits import UTF8

ROOT = -1  # value in place of a head index, for the root of a sentence
COLUMNS = 10
# The first column of a line: the number of a word (1), the range of a multiword token (1-2), or the number of an empty
# node (2.1, or 0.1 before the first word).
_NUMBER = re.compile(r"([1-9][0-9]*)|([1-9][0-9]*)-([1-9][0-9]*)|(?:0|[1-9][0-9]*)\.[1-9][0-9]*")


class Mention(NamedTuple):
    """Mention of an entity in a sentence.

    entity      identifier of the entity in the file
    start, end  range of word indices; `end` is exclusive
    """

    entity: str
    start: int
    end: int


@dataclass(frozen=True)
class Sentence:
    """Sentence with its words. Each word has a head, a dependency relation and a universal part of speech.

    heads      index of the head of each word, or ROOT
    relations  dependency relation of each word to its head
    tags       universal part of speech of each word
    spaces     True for each word that follows a space
    mentions   entity mentions, ordered by start; of mentions with the same start, the longest is first
    document   index of the document
    line       line number of the sentence in the file
    """

    words: list[str]
    heads: list[int]
    relations: list[str]
    tags: list[str]
    spaces: list[bool]
    mentions: list[Mention]
    document: int
    line: int

    def head_of(self, mention: Mention) -> int:
        """Return the syntactic head of a mention: the first of its words whose own head is outside the mention."""
        inside = range(mention.start, mention.end)
        return next(word for word in inside if self.heads[word] not in inside)


@dataclass(frozen=True, repr=False)
class Treebank(Dataset):
    """Data set of the sentences of a CoNLL-U file, with the numbers of multiword tokens and empty nodes in the file."""

    columns: ClassVar[tuple[str, ...]] = ("sentences",)

    sentences: list[Sentence]
    multiword: int = 0
    empty: int = 0


def read_treebank(file: str | Path, *, skip_bad_lines: bool = False) -> Treebank:
    """Read the sentences of one CoNLL-U file.

    skip_bad_lines  True: leave out and count sentences that contain a faulty line

    Raises FileNotFoundError, or a one-line UserError that names the file, the line and a remedy.
    """
    file = Path(file)
    if not file.is_file():
        what = "a directory" if file.is_dir() else "no such file"
        raise FileNotFoundError(f"{file}: {what}; give one treebank file in the CoNLL-U format")
    counts: Counter[str] = Counter()
    rows, hint = (
        _sentences(file, counts),
        "expected CoNLL-U: ten tab-separated columns, and blank lines between sentences",
    )
    bank = Treebank.collect(rows, file, "no usable sentence found", hint, skip=skip_bad_lines, unit="sentences")
    return replace(bank, multiword=counts["multiword"], empty=counts["empty"])


def _sentences(file: Path, counts: Counter[str]) -> Iterator[Row[tuple[Sentence]]]:
    """Yield the sentences of a CoNLL-U file. A block of lines that contains only comments is left out."""
    document = 0

    def sentence(row: Row[Block]) -> tuple[Sentence] | None:
        nonlocal document
        document += any(line is not None and re.match(r"#\s*newdoc\b", line) for _, line in row.cells)
        found = _sentence(row.cells, document, counts)
        return None if found is None else (found,)

    return parse_rows(split_blocks(file), sentence)


def _sentence(block: Block, document: int, counts: Counter[str]) -> Sentence | None:
    words: list[_Word] = []
    tokens: list[_Word] = []  # multiword tokens of the current sentence
    empty = 0
    for number, line in block:
        if line is None:
            raise BadRow(*UTF8, line=number)
        if line.startswith("#"):
            continue
        word = _word(number, line)
        if word.last:
            (words if word.last == word.first else tokens).append(word)
        else:
            empty += 1
    if not words and not tokens:
        return None
    heads = _heads(words)
    next_free = 1
    for token in tokens:
        if token.last > len(words):
            raise token.bad(
                f"expected a token of at most {len(words)} words as in the sentence, found a range up to {token.last}",
                "correct the range",
            )
        if token.first < next_free:
            fault = f"expected a range that starts at word {next_free} or later, found {token.first}-{token.last}"
            raise token.bad(fault, "correct the range")
        next_free = token.last + 1
    counts["multiword"] += len(tokens)
    counts["empty"] += empty
    return Sentence(
        [word.form for word in words], heads, [word.relation for word in words], [word.tag for word in words],
        _spaces(words, tokens), _mentions(words), document, block[0][0],
    )  # fmt: skip


def _heads(words: Sequence[_Word]) -> list[int]:
    """Return the head of each word as a word index from 0. Raises BadRow if the heads do not form a tree."""
    heads: list[int] = []
    for expected, word in enumerate(words, 1):
        if word.first != expected:
            raise word.bad(f"expected word {expected}, found word {word.first}", "number the words from 1")
        if word.head is None or not 0 <= word.head <= len(words) or word.head == expected:
            head = "_" if word.head is None else word.head
            hint_text = f"expected another word of 1 to {len(words)}, or 0"
            raise word.bad(f"the head of word {expected} is {head}", hint_text)
        if word.head == 0 and ROOT in heads:
            root = heads.index(ROOT) + 1
            raise word.bad(f"words {expected} and {root} are both roots", "expected one")
        heads.append(word.head - 1)
    for number, word in enumerate(words):
        at, steps = number, 0
        while at != ROOT:
            at, steps = heads[at], steps + 1
            if steps > len(heads):
                raise word.bad(f"the heads form a cycle from word {number + 1}", "expected a tree")
    return heads


class _Word(NamedTuple):
    """Parsed line of a CoNLL-U file.

    The line describes the words `first` to `last` of the sentence; both are 0 for an empty node.
    """

    line: int
    first: int
    last: int
    form: str
    tag: str
    head: int | None
    relation: str
    misc: list[str]

    def bad(self, fault: str, hint: str) -> BadRow:
        return BadRow(fault, hint, line=self.line)

    @property
    def space_after(self) -> bool:
        return "SpaceAfter=No" not in self.misc


def _word(number: int, line: str) -> _Word:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise BadRow(
            f"expected {COLUMNS} columns, found {len(columns)}", "separate them with one tab each", line=number
        )
    if "" in columns:
        raise BadRow(f"column {columns.index('') + 1} is empty", "write _ for an empty column", line=number)
    match = _NUMBER.fullmatch(columns[0])
    if match is None or (match[2] and int(match[2]) >= int(match[3])):
        raise BadRow(f"{columns[0]!r} is not a word number", "expected a number such as 1, 1-2 or 1.1", line=number)
    first, last = (int(match[single] or match[range_] or 0) for single, range_ in ((1, 2), (1, 3)))
    head = columns[6]
    if match[1] and head != "_" and not re.fullmatch("[0-9]+", head):
        raise BadRow(f"the head is {head!r}", "expected a word number, or 0", line=number)
    heads = int(head) if match[1] and head != "_" else None
    return _Word(number, first, last, columns[1], columns[3], heads, columns[7], columns[9].split("|"))


def _spaces(words: Sequence[_Word], tokens: Sequence[_Word]) -> list[bool]:
    """Return, for each word, whether it follows a space. There are no spaces inside a multiword token."""
    after = [word.space_after for word in words]
    for token in tokens:
        after[token.first - 1 : token.last] = [*[False] * (token.last - token.first), token.space_after]
    return [False, *after[:-1]]


def _mentions(words: Sequence[_Word]) -> list[Mention]:
    """Return the mentions of entities in annotations such as "(7-person(8-place)" and "7)".

    Discontinuous mentions, "(7[1/2]-", are ignored.
    """
    mentions: list[Mention] = []
    opened: dict[str, list[int]] = {}
    for number, word in enumerate(words):
        value = next((part[7:] for part in word.misc if part.startswith("Entity=")), "")
        for opens, name, closes in re.findall(r"(\(?)([^()]*)(\)?)", value):
            entity = name.split("-")[0]
            if opens:
                opened.setdefault(entity, []).append(number)
            if closes:
                if not opened.get(entity):
                    raise word.bad(f"a mention of {entity!r} ends without a beginning", "correct Entity=")
                mentions.append(Mention(entity, opened[entity].pop(), number + 1))
    for entity, starts in opened.items():
        if starts:
            raise words[starts[0]].bad(f"a mention of {entity!r} begins without an end", "correct Entity=")
    return sorted((m for m in mentions if "[" not in m.entity), key=lambda m: (m.start, -m.end))
