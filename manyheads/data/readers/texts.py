"""Running text, kept as it is: every character is to be predicted.

Texts are not held: they are read anew, a piece at a time, whenever they are gone through (`corpus.py`). What is kept of
a text is its hash, eight bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.corpus import FORMAT, Corpus, Piece, Survey, cut, files_of
from manyheads.errors import UserError
from manyheads.files import fingerprint, parse_json, write_json


class Facts(NamedTuple):
    """What a report says of texts, and the fingerprint of all of them, as `files.fingerprint` has it."""

    characters: int
    bytes: int  # in UTF-8
    lines: int
    alphabet: str  # the different characters, sorted
    fingerprint: str


class Part(NamedTuple):
    """A piece of a chosen text: its number among the pieces of the corpus, its text's number, whether this begins."""

    number: int
    text: int
    first: bool
    content: str


@dataclass(frozen=True, eq=False, repr=False)
class Texts:
    """Running texts of a corpus, or given ones.

    chosen  (N,) which of its texts these are; None: all that can be used
    span    of the text `cut` the characters from the first to the second (None: to its end)
    cut     the number of a text; None: the only one
    skips   why texts were left out, and how many
    kept    directory where what was read is remembered
    """

    source: Corpus | Sequence[str]
    chosen: NDArray[np.bool_] | None = None
    span: tuple[int, int | None] | None = None
    cut: int | None = None
    skips: dict[str, int] = field(default_factory=dict)
    file: Path | None = None
    kept: Path | None = None
    survey: Survey | None = None

    @cached_property
    def _chosen(self) -> NDArray[np.bool_]:
        if self.chosen is not None:
            return self.chosen
        return np.ones(len(self.source), bool) if isinstance(self.source, Sequence) else self._surveyed.usable

    @property
    def _surveyed(self) -> Survey:
        assert self.survey is not None
        return self.survey

    def __len__(self) -> int:
        return int(self._chosen.sum())

    def __repr__(self) -> str:
        return f"Texts({len(self):,} texts, {self.file})"

    def parts(self, after: int = 0) -> Iterator[Part]:
        """All pieces in their order, from the one of number `after` on. Raises UserError where a file has changed."""
        pieces: Iterator[Piece]
        if isinstance(self.source, Sequence):
            start, pieces = 0, (Piece(n, piece) for n, text in enumerate(self.source) for piece in cut([text]))
        else:
            starts = self._surveyed.starts
            file = int(np.searchsorted(starts[:, 1], after, "right")) - 1
            start = int(starts[file, 1])
            pieces = self.source.pieces(file, int(starts[file, 0]))
        current, begun, at = -1, False, 0
        for number, (text, content) in enumerate(pieces, start):
            if text >= len(self._chosen):  # beyond the limit
                break
            current, begun, at = (current, begun, at) if text == current else (text, False, 0)
            if content is None or not self._chosen[text]:
                continue
            if self.span is not None and self.cut in (None, text):
                first, last = self.span
                here, at = at, at + len(content)
                content = content[max(0, first - here) : None if last is None else max(0, last - here)]
            if content and number >= after:
                yield Part(number, text, not begun, content)
            begun = begun or bool(content)
        if not isinstance(self.source, Sequence):
            self.source.check(self._surveyed)

    @property
    def texts(self) -> list[str]:
        """All at once."""
        return ["".join(part.content for part in parts) for _, parts in groupby(self.parts(), key=lambda p: p.text)]

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """(N,) of the texts."""
        if self.survey is not None and self.span is None:
            return self.survey.hashes[self._chosen]
        digests: list[int] = []
        for _, parts in groupby(self.parts(), key=lambda part: part.text):  # a text may be larger than the memory
            digest = blake2b(digest_size=8)
            for part in parts:
                digest.update(part.content.encode())
            digests.append(int.from_bytes(digest.digest()))
        return np.array(digests, dtype=np.uint64)

    @cached_property
    def facts(self) -> Facts:
        return examined(self)[0]

    @property
    def bytes(self) -> int:
        """In UTF-8."""
        return self.facts.bytes

    def subset(self, chosen: Sequence[int] | NDArray[np.int64]) -> Texts:
        mask = np.zeros_like(self._chosen)
        mask[np.flatnonzero(self._chosen)[chosen]] = True
        return replace(self, chosen=mask)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(N,) characters of the texts, which are all read for it."""
        sizes = np.zeros(len(self._chosen), np.int64)
        for part in self.parts():
            sizes[part.text] += len(part.content)
        return sizes[self._chosen]

    def halves(self, share: float, row: int = 0) -> tuple[Texts, Texts]:
        """All texts without the last `share` of one's characters, and those. Raises UserError where one of the two
        parts of that text would be empty."""
        number = int(np.flatnonzero(self._chosen)[row])
        cut = None if len(self) == 1 else number
        characters = sum(len(part.content) for part in self.parts() if part.text == number)
        at = int(characters * (1 - share))
        if not 0 < at < characters:
            raise UserError(f"a text of {characters} characters cannot be split; give validation data")
        return replace(self, span=(0, at), cut=cut), replace(self.subset([row]), span=(at, None), cut=cut)

    def sample(self, most: int) -> Iterator[str]:
        """All pieces; or, of more than `most` bytes, about as many: those of the lowest hashes, which are anywhere."""
        limit = min(1.0, most / max(1, self.facts.bytes)) * 2**64
        for part in self.parts():
            if limit == 2**64 or int.from_bytes(blake2b(part.content.encode(), digest_size=8).digest()) < limit:
                yield part.content

    @property
    def _memory(self) -> Path | None:
        """Where the facts are kept."""
        if self.kept is None or isinstance(self.source, Sequence):
            return None
        cut = [] if self.cut is None else [self.cut]
        described = json.dumps([FORMAT, self._surveyed.state, self.source.column, self.span, *cut])
        return self.kept / f"{fingerprint([described, self._chosen.tobytes()])}.facts"


def examined(*all_texts: Texts) -> list[Facts]:
    """The facts of each, which are parts of one corpus: it is read once, or not at all where they are remembered."""
    places = [texts._memory for texts in all_texts]
    known = [_remembered(place) for place in places]
    if None in known:
        known = list(_examined(all_texts))
        for place, facts in zip(places, known, strict=True):
            if place is not None and facts is not None:
                write_json(place, facts._asdict())
    for texts, facts in zip(all_texts, known, strict=True):
        vars(texts)["facts"] = facts  # the cached property
    return [facts for facts in known if facts is not None]


def _remembered(place: Path | None) -> Facts | None:
    try:
        return None if place is None else Facts(**parse_json(place.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _examined(all_texts: Sequence[Texts]) -> Iterator[Facts]:
    if len(all_texts) > 1 and all(texts.span is None for texts in all_texts):
        whole = replace(all_texts[0], chosen=np.logical_or.reduce([texts._chosen for texts in all_texts]))
        counted = [_Count(texts) for texts in all_texts]
        for part in whole.parts():
            for count in counted:
                if count.texts._chosen[part.text]:
                    count.add(part)
    else:
        counted = [_Count(texts) for texts in all_texts]
        for count in counted:
            for part in count.texts.parts():
                count.add(part)
    for count in counted:
        yield count.facts()


class _Count:
    """Facts as they are gathered."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self._characters = self._bytes = self._lines = 0
        self._alphabet: set[str] = set()
        self._digest = blake2b(digest_size=16)
        if texts.span is not None or texts.survey is None:
            groups = groupby(texts.parts(), key=lambda part: part.text)
            sizes = ((text, sum(len(part.content.encode()) for part in parts)) for text, parts in groups)
            self._sizes = dict(sizes)
        else:
            self._sizes = dict(texts.survey.long.tolist())

    def add(self, part: Part) -> None:
        content = part.content.encode()
        if part.first:  # as files.fingerprint does
            self._digest.update(self._sizes.get(part.text, len(content)).to_bytes(8, "little"))
        self._digest.update(content)
        self._characters += len(part.content)
        self._bytes += len(content)
        self._lines += part.content.count("\n")
        known = "".join(c for c in self._alphabet if c.isascii()).encode()
        self._alphabet.update(content.translate(None, known).decode())  # only what is new goes through Python

    def facts(self) -> Facts:
        return Facts(self._characters, self._bytes, self._lines, "".join(sorted(self._alphabet)),
                     self._digest.hexdigest())  # fmt: skip


def read_texts(
    path: str | Path, *, column: str = "text", skip_bad_lines: bool = False, limit: int | None = None,
    kept: Path | None = None,
) -> Texts:  # fmt: skip
    """The texts of a file, several joined by commas, or a directory, in the order of their names; blank ones carry
    nothing and are left out. All are read once, for their faults.

    column          of tables that holds the text
    skip_bad_lines  leave out faulty rows, and files that are not UTF-8, and count them
    limit           how many texts are read at most, and of a text file only the first part
    kept            directory where is remembered what was found, so that the same files need not be read again

    Raises FileNotFoundError or a one-line UserError that names file, line and remedy.
    """
    corpus = Corpus(tuple(files_of(str(path))), column, skip_bad_lines, limit)
    survey = Survey.of(corpus, kept)
    if not survey.usable.any():
        raise UserError(f"{path}: no text in it ({sum(survey.skips.values()):,} skipped)")
    return Texts(corpus, skips=survey.skips, file=Path(path), kept=kept, survey=survey)
