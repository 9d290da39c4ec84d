"""Treebanks: sentences with their dependency trees, and with who is meant, read strictly from CoNLL-U.

1-2  don't  _  _  _  _  _  _  _  _                  a multiword token: what is written, and its words below it
1    Do     do   AUX  ...  3  aux   ...  Entity=(7-person(8-place)    MISC may open and close mentions of entities
2    n't    not  PART ...  3  advmod                  ten columns, parted by tabs; head 0 is the root
2.1  that   ...                                     an empty node: it has no place in the text, and is not read

Words are the numbered ones, so the parts of a multiword token each count. The numbers are read by the library
`conllu`; mentions are those of CorefUD (Entity in MISC, the entity's number first).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.data.splits import UTF8, lines_of

ROOT = -1  # the head of the word that has none
COLUMNS = 10


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


@dataclass(frozen=True)
class Treebank:
    """What a file holds.

    multiword, empty  how many tokens of several words there are, and how many empty nodes were passed over
    skips             the sentences left out, counted by reason
    """

    sentences: list[Sentence]
    file: Path
    multiword: int = 0
    empty: int = 0
    skips: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sentences)

    def __repr__(self) -> str:
        words = sum(len(sentence.words) for sentence in self.sentences)
        return f"Treebank({len(self):,} sentences, {words:,} words, file={str(self.file)!r})"

    @property
    def mentions(self) -> int:
        return sum(len(sentence.mentions) for sentence in self.sentences)


def read_treebank(file: str | Path, *, skip_bad_lines: bool = False) -> Treebank:
    """Reads one file. Raises a one-line ValueError that names file, line and remedy, or FileNotFoundError;
    `skip_bad_lines` leaves out the sentences with a faulty line and counts them."""
    file = Path(file)
    if not file.is_file():
        what = "a directory" if file.is_dir() else "no such file"
        raise FileNotFoundError(f"{file}: {what}; give one file, a treebank in the CoNLL-U format")
    try:
        import conllu  # noqa: F401  # here, so that it is missed once and by name
    except ModuleNotFoundError as error:
        raise ValueError(f"a treebank needs {error.name}: pip install 'manyheads[analysis]'") from None
    sentences: list[Sentence] = []
    counts: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    document = 0
    for block in _blocks(file):
        document += any(line is not None and re.match(r"#\s*newdoc\b", line) for _, line in block)
        try:
            sentence = _sentence(block, document, counts)
        except _Fault as fault:
            if not skip_bad_lines:
                raise ValueError(f"{file}:{fault}, or skip such sentences with --skip-bad-lines") from None
            skips[str(fault).partition(": ")[2]] += 1
            continue
        if sentence is not None:
            sentences.append(sentence)
    if not sentences:
        raise ValueError(f"{file}: no usable sentence ({sum(skips.values()):,} skipped); expected CoNLL-U: ten columns "
                         "parted by tabs, blank lines between sentences")  # fmt: skip
    return Treebank(sentences, file, counts["multiword"], counts["empty"], dict(skips))


class _Fault(Exception):
    """LINE: what is wrong; what would be right."""


def _blocks(file: Path) -> Iterator[list[tuple[int, str | None]]]:
    """The numbered lines of each sentence, its comments among them."""
    block: list[tuple[int, str | None]] = []
    for number, line in enumerate([*lines_of(file), ""], 1):
        if line is None or line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []


def _sentence(block: Sequence[tuple[int, str | None]], document: int, counts: Counter[str]) -> Sentence | None:
    """None for comments alone."""
    words: list[_Row] = []
    several: list[_Row] = []  # tokens of several words
    empty = 0
    for number, line in block:
        if line is None:
            raise _Fault(f"{number}: {'; '.join(UTF8)}")
        if line.startswith("#"):
            continue
        row = _row(number, line)
        if isinstance(row.id, int):
            words.append(row)
        elif row.id[1] == "-":
            several.append(row)
        else:
            empty += 1
    if not words and not several:
        return None
    heads = _heads(words)
    free = 1
    for row in several:
        first, _, last = row.id
        if last > len(words):
            raise _Fault(f"{row.line}: words up to {last} where the sentence has {len(words)}; correct the range")
        if not free <= first <= last:
            raise _Fault(f"{row.line}: a token of the words {first} to {last}, where {free} or a later one is next; "
                         "correct the range")  # fmt: skip
        free = last + 1
    counts["multiword"] += len(several)
    counts["empty"] += empty
    return Sentence(
        [row.form for row in words], heads, [row.relation for row in words], [row.tag for row in words],
        _spaces(words, several), _mentions(words), document, block[0][0],
    )  # fmt: skip


def _heads(words: Sequence[_Row]) -> list[int]:
    """The number of the head of each word, from 0, if they make a tree."""
    found: list[int] = []
    for expected, row in enumerate(words, 1):
        if row.id != expected:
            raise _Fault(f"{row.line}: word {row.id} stands where word {expected} is expected; number them from 1")
        if row.head is None or not 0 <= row.head <= len(words) or row.head == expected:
            what = "_" if row.head is None else row.head
            raise _Fault(f"{row.line}: the head of word {expected} is {what}; expected another of the words 1 to "
                         f"{len(words)}, or 0")  # fmt: skip
        if row.head == 0 and ROOT in found:
            raise _Fault(f"{row.line}: word {expected} is a root, and so is word {found.index(ROOT) + 1}; expected one")
        found.append(row.head - 1)
    for word, row in enumerate(words):
        at, steps = word, 0
        while at != ROOT:
            at, steps = found[at], steps + 1
            if steps > len(found):
                raise _Fault(f"{row.line}: from word {word + 1} the heads lead in a circle; expected a tree")
    return found


class _Row(NamedTuple):
    """What is read of a line. `id` is a number, or (first, "-", last), or (number, ".", number)."""

    line: int
    id: Any
    form: str
    tag: str
    head: int | None
    relation: str
    misc: list[str]

    @property
    def space_after(self) -> bool:
        return "SpaceAfter=No" not in self.misc


def _row(number: int, line: str) -> _Row:
    from conllu.exceptions import ParseException
    from conllu.parser import parse_id_value, parse_int_value

    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise _Fault(f"{number}: {len(columns)} columns where {COLUMNS} were expected; part them by one tab each")
    if "" in columns:
        raise _Fault(f"{number}: column {columns.index('') + 1} is empty; write _ where there is nothing")
    try:
        found = parse_id_value(columns[0])
    except ParseException:
        found = None
    if found is None:
        raise _Fault(f"{number}: {columns[0]!r} is no number of a word; expected such as 1, 1-2 or 1.1")
    try:
        head = parse_int_value(columns[6]) if isinstance(found, int) else None
    except ParseException:
        raise _Fault(f"{number}: the head is {columns[6]!r}; expected the number of a word, or 0") from None
    return _Row(number, found, columns[1], columns[3], head, columns[7], columns[9].split("|"))


def _spaces(words: Sequence[_Row], several: Sequence[_Row]) -> list[bool]:
    """Whether a space stands before each word: never inside a token of several, which says itself what follows it."""
    after = [row.space_after for row in words]
    for token in several:
        first, _, last = token.id
        after[first - 1 : last] = [*[False] * (last - first), token.space_after]
    return [False, *after[:-1]]


def _mentions(words: Sequence[_Row]) -> list[Mention]:
    """From "(7-person(8-place)" and "7)". A mention in several parts, "(7[1/2]-", is passed over."""
    found: list[Mention] = []
    opened: dict[str, list[int]] = {}
    for word, row in enumerate(words):
        value = next((part[7:] for part in row.misc if part.startswith("Entity=")), "")
        for opens, name, closes in re.findall(r"(\(?)([^()]*)(\)?)", value):
            entity = name.split("-")[0]
            if opens:
                opened.setdefault(entity, []).append(word)
            if closes:
                if not opened.get(entity):
                    raise _Fault(f"{row.line}: a mention of {entity!r} ends that has not begun; correct Entity=")
                found.append(Mention(entity, opened[entity].pop(), word + 1))
    for entity, starts in opened.items():
        if starts:
            raise _Fault(f"{words[starts[0]].line}: a mention of {entity!r} begins that does not end; correct Entity=")
    return sorted((m for m in found if "[" not in m.entity), key=lambda m: (m.start, -m.end))
