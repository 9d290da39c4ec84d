"""Treebanks: sentences with their dependency trees, and with who is meant, read strictly from CoNLL-U.

1-2  don't  _  _  _  _  _  _  _  _                  a multiword token: what is written, and its words below it
1    Do     do   AUX  ...  3  aux   ...  Entity=(7-person(8-place)    MISC may open and close mentions of entities
2    n't    not  PART ...  3  advmod                  ten columns, parted by tabs; head 0 is the root
2.1  that   ...                                     an empty node: it has no place in the text, and is not read

Words are the numbered ones, so the parts of a multiword token each count. Mentions are those of CorefUD (Entity in
MISC, the entity's number first).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

from manyheads.data.readers.dataset import Dataset
from manyheads.data.readers.rows import BadRow, Block, Row, blocks, filter_invalid, parsed
from manyheads.data.readers.splits import UTF8

ROOT = -1  # the head of the word that has none
COLUMNS = 10
# a word, a token of several words, or an empty node, which may stand before the first word
_NUMBER = re.compile(r"([1-9][0-9]*)|([1-9][0-9]*)-([1-9][0-9]*)|(?:0|[1-9][0-9]*)\.[1-9][0-9]*")


class Mention(NamedTuple):
    """Words `start` to `end` (which is not among them) of a sentence, that stand for an entity."""

    entity: str
    start: int
    end: int


@dataclass(frozen=True)
class Sentence:
    """Words with, for each, the number of its head (ROOT: none), the relation to it, and its universal part of speech.

    spaces    whether a space stands before each word
    mentions  in the order in which they begin, the longer first
    document  the number of the document that it stands in
    line      where it begins in the file
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
        """The word of a mention that the others hang from: the first one whose own head is outside."""
        inside = range(mention.start, mention.end)
        return next(word for word in inside if self.heads[word] not in inside)


@dataclass(frozen=True, repr=False)
class Treebank(Dataset):
    """What a file holds: its sentences, and how many tokens of several words and empty nodes there are."""

    columns: ClassVar[tuple[str, ...]] = ("sentences",)

    sentences: list[Sentence]
    multiword: int = 0
    empty: int = 0


def read_treebank(file: str | Path, *, skip_bad_lines: bool = False) -> Treebank:
    """Reads one file. Raises a one-line UserError that names file, line and remedy, or FileNotFoundError;
    `skip_bad_lines` leaves out the sentences with a faulty line and counts them."""
    file = Path(file)
    if not file.is_file():
        what = "a directory" if file.is_dir() else "no such file"
        raise FileNotFoundError(f"{file}: {what}; give one file, a treebank in the CoNLL-U format")
    counts: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    rows = filter_invalid(_sentences(file, counts), skips, skip=skip_bad_lines, unit="sentences")
    sentences = (Row(file, row.number, (row.cells,)) for row in rows if row.cells is not None)
    hint = "expected CoNLL-U: ten columns parted by tabs, blank lines between sentences"
    bank = Treebank.collect(sentences, file, skips, "no usable sentence", hint)
    return replace(bank, multiword=counts["multiword"], empty=counts["empty"])


def _sentences(file: Path, counts: Counter[str]) -> Iterator[Row[Sentence | None]]:
    """None for a block of comments alone."""
    document = 0

    def sentence(row: Row[Block]) -> Sentence | None:
        nonlocal document
        document += any(line is not None and re.match(r"#\s*newdoc\b", line) for _, line in row.cells)
        return _sentence(row.cells, document, counts)

    return parsed(blocks(file), sentence)


def _sentence(block: Block, document: int, counts: Counter[str]) -> Sentence | None:
    words: list[_Word] = []
    tokens: list[_Word] = []  # of several words
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
    free = 1
    for token in tokens:
        if token.last > len(words):
            raise token.bad(f"words up to {token.last} where the sentence has {len(words)}", "correct the range")
        if token.first < free:
            fault = f"a token of the words {token.first} to {token.last}, where {free} or a later one is next"
            raise token.bad(fault, "correct the range")
        free = token.last + 1
    counts["multiword"] += len(tokens)
    counts["empty"] += empty
    return Sentence(
        [word.form for word in words], heads, [word.relation for word in words], [word.tag for word in words],
        _spaces(words, tokens), _mentions(words), document, block[0][0],
    )  # fmt: skip


def _heads(words: Sequence[_Word]) -> list[int]:
    """The number of the head of each word, from 0, if they make a tree."""
    heads: list[int] = []
    for expected, word in enumerate(words, 1):
        if word.first != expected:
            raise word.bad(f"word {word.first} stands where word {expected} is expected", "number them from 1")
        if word.head is None or not 0 <= word.head <= len(words) or word.head == expected:
            head = "_" if word.head is None else word.head
            others = f"expected another of the words 1 to {len(words)}, or 0"
            raise word.bad(f"the head of word {expected} is {head}", others)
        if word.head == 0 and ROOT in heads:
            root = heads.index(ROOT) + 1
            raise word.bad(f"word {expected} is a root, and so is word {root}", "expected one")
        heads.append(word.head - 1)
    for number, word in enumerate(words):
        at, steps = number, 0
        while at != ROOT:
            at, steps = heads[at], steps + 1
            if steps > len(heads):
                raise word.bad(f"from word {number + 1} the heads lead in a circle", "expected a tree")
    return heads


class _Word(NamedTuple):
    """What is read of a line: the words `first` to `last` of the sentence; 0 for an empty node."""

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
        raise BadRow(f"{len(columns)} columns where {COLUMNS} were expected", "part them by one tab each", line=number)
    if "" in columns:
        raise BadRow(f"column {columns.index('') + 1} is empty", "write _ where there is nothing", line=number)
    place = _NUMBER.fullmatch(columns[0])
    if place is None or (place[2] and int(place[2]) >= int(place[3])):
        raise BadRow(f"{columns[0]!r} is no number of a word", "expected such as 1, 1-2 or 1.1", line=number)
    first, last = (int(place[single] or place[range_] or 0) for single, range_ in ((1, 2), (1, 3)))
    head = columns[6]
    if place[1] and head != "_" and not re.fullmatch("[0-9]+", head):
        raise BadRow(f"the head is {head!r}", "expected the number of a word, or 0", line=number)
    heads = int(head) if place[1] and head != "_" else None
    return _Word(number, first, last, columns[1], columns[3], heads, columns[7], columns[9].split("|"))


def _spaces(words: Sequence[_Word], tokens: Sequence[_Word]) -> list[bool]:
    """Whether a space stands before each word: never inside a token of several, which says itself what follows it."""
    after = [word.space_after for word in words]
    for token in tokens:
        after[token.first - 1 : token.last] = [*[False] * (token.last - token.first), token.space_after]
    return [False, *after[:-1]]


def _mentions(words: Sequence[_Word]) -> list[Mention]:
    """From "(7-person(8-place)" and "7)". A mention in several parts, "(7[1/2]-", is passed over."""
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
                    raise word.bad(f"a mention of {entity!r} ends that has not begun", "correct Entity=")
                mentions.append(Mention(entity, opened[entity].pop(), number + 1))
    for entity, starts in opened.items():
        if starts:
            raise words[starts[0]].bad(f"a mention of {entity!r} begins that does not end", "correct Entity=")
    return sorted((m for m in mentions if "[" not in m.entity), key=lambda m: (m.start, -m.end))
