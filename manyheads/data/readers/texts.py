"""Reader of running text for language models.

The text is not normalized, because a language model predicts every character. The texts remain in their files: each
iteration reads the files again, one piece of a text at a time (`corpus.py`). Memory holds only a hash of eight bytes
per text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.cache import cached
from manyheads.data.readers.corpus import FORMAT, Corpus, Digests, Piece, Survey, cut, digest_texts, files_of, text_rows
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.rows import filter_invalid
from manyheads.errors import UserError
from manyheads.files import parse_json, write_json


class Facts(NamedTuple):
    """Statistics of a data set of texts for reports, and the fingerprint of all its texts (`files.fingerprint`)."""

    characters: int
    bytes: int  # total size of the texts in UTF-8, in bytes
    lines: int
    alphabet: str  # distinct characters of the texts, sorted
    fingerprint: str


class Part(NamedTuple):
    """Piece of a text: consecutive characters of at most the maximum size of a piece.

    text   index of the text within the corpus
    first  True for the first piece of a text
    """

    text: int
    first: bool
    content: str


@dataclass(frozen=True, eq=False, repr=False)
class Texts:
    """Data set of running texts from a corpus, or from a sequence of strings in memory.

    source        corpus or strings that contain the texts
    mask          (N,) boolean mask of the selected texts of `source`. If None, all usable texts are selected
    span          (start, end) range of characters, if only a part of one text is used. If `end` is None, the range
                  extends to the end of the text
    cut           index of the text to which `span` applies. If None, it applies to the only selected text
    skips         number of skipped texts, by file and reason
    file          path of the corpus for messages
    cache_folder  directory in which facts about the files are cached
    survey        facts about all texts of a corpus
    """

    source: Corpus | Sequence[str]
    mask: NDArray[np.bool_] | None = None
    span: tuple[int, int | None] | None = None
    cut: int | None = None
    skips: dict[str, int] = field(default_factory=dict)
    file: Path | None = None
    cache_folder: Path | None = None
    survey: Survey | None = None

    @cached_property
    def _mask(self) -> NDArray[np.bool_]:
        if self.mask is not None:
            return self.mask
        return np.ones(len(self.source), bool) if isinstance(self.source, Sequence) else self._surveyed.usable

    @property
    def _surveyed(self) -> Survey:
        assert self.survey is not None
        return self.survey

    def __len__(self) -> int:
        return int(self._mask.sum())

    def __repr__(self) -> str:
        return f"Texts({len(self):,} texts, {self.file})"

    def parts(self) -> Iterator[Part]:
        """Yield the pieces of all selected texts in order. Raises UserError if a file changed since its survey."""
        pieces: Iterator[Piece]
        if isinstance(self.source, Sequence):
            pieces = (Piece(n, piece) for n, text in enumerate(self.source) for piece in cut([text]))
        else:
            pieces = self.source.pieces()
        current, started, at = -1, False, 0
        for text, content in pieces:
            if text >= len(self._mask):
                break  # A file has grown since its survey: it has more texts than the mask. `check` below reports it.
            current, started, at = (current, started, at) if text == current else (text, False, 0)
            if content is None or not self._mask[text]:
                continue
            if self.span is not None and self.cut in (None, text):
                first, last = self.span
                here, at = at, at + len(content)
                content = content[max(0, first - here) : None if last is None else max(0, last - here)]
            if content:
                yield Part(text, not started, content)
                started = True
        if not isinstance(self.source, Sequence):
            self.source.check(self._surveyed)

    @property
    def texts(self) -> list[str]:
        """All texts as a list of strings in memory."""
        return ["".join(part.content for part in parts) for _, parts in groupby(self.parts(), key=lambda p: p.text)]

    @cached_property
    def digests(self) -> Digests:
        """Hashes and sizes of the selected texts."""
        if self.survey is not None and self.span is None:
            return Digests(self.survey.hashes[self._mask], self.survey.usable[self._mask], self.survey.long)
        return digest_texts(Piece(part.text, part.content) for part in self.parts())

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """Hash of each selected text, (N,)."""
        return self.digests.hashes

    @cached_property
    def facts(self) -> Facts:
        return compute_facts(self)[0]

    @property
    def bytes(self) -> int:
        """Total size in bytes of all texts in UTF-8."""
        return self.facts.bytes

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> Texts:
        mask = np.zeros_like(self._mask)
        mask[np.flatnonzero(self._mask)[indices]] = True
        return replace(self, mask=mask)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of characters of each text, (N,). Each access reads all texts."""
        sizes = np.zeros(len(self._mask), np.int64)
        for part in self.parts():
            sizes[part.text] += len(part.content)
        return sizes[self._mask]

    def split_off_end(self, fraction: float, row: int = 0) -> tuple[Texts, Texts]:
        """Split off the last `fraction` of the characters of text `row` as validation data.

        Return two data sets: all texts without these characters, and these characters alone. Raise UserError if one
        of the two parts of the text would be empty.
        """
        number = int(np.flatnonzero(self._mask)[row])
        cut = None if len(self) == 1 else number
        characters = sum(len(part.content) for part in self.parts() if part.text == number)
        at = int(characters * (1 - fraction))
        if not 0 < at < characters:
            raise UserError(f"a text of {characters} characters is too short to split; give validation data")
        return replace(self, span=(0, at), cut=cut), replace(self.subset([row]), span=(at, None), cut=cut, skips={})

    def sample(self, max_bytes: int) -> Iterator[str]:
        """Yield all pieces of the texts, or a sample of about `max_bytes` bytes.

        The hash of a piece decides whether it is in the sample.
        """
        limit = min(1.0, max_bytes / max(1, self.facts.bytes)) * 2**64
        for part in self.parts():
            if limit == 2**64 or int.from_bytes(blake2b(part.content.encode(), digest_size=8).digest()) < limit:
                yield part.content


def _described(texts: Texts, corpus: Corpus) -> tuple[str, bytes]:
    """Return the cache key of the selected texts of a corpus: files, column, character range and mask."""
    return json.dumps([FORMAT, corpus.state, corpus.column, texts.span, texts.cut]), texts._mask.tobytes()


def compute_facts(*all_texts: Texts) -> list[Facts]:
    """Return the facts about each of several `Texts` objects, all of which must be parts of one corpus.

    One pass over the corpus computes all facts. If they are cached, the corpus is not read.
    """
    folder, source = all_texts[0].cache_folder, all_texts[0].source
    if folder is None or isinstance(source, Sequence):
        all_facts = list(_count_facts(all_texts))
    else:
        key = [part for texts in all_texts for part in _described(texts, source)]
        all_facts = cached(
            folder, key, ".facts", lambda path: [Facts(**facts) for facts in parse_json(path.read_text())],
            lambda path: write_json(path, [facts._asdict() for facts in _count_facts(all_texts)]),
        )  # fmt: skip
    for texts, facts in zip(all_texts, all_facts, strict=True):
        vars(texts)["facts"] = facts  # This assignment sets the cached property, so that it is not computed again.
    return all_facts


def _count_facts(all_texts: Sequence[Texts]) -> Iterator[Facts]:
    if len(all_texts) > 1 and all(texts.span is None for texts in all_texts):
        whole = replace(all_texts[0], mask=np.logical_or.reduce([texts._mask for texts in all_texts]))
        counted = [_Count(texts) for texts in all_texts]
        for part in whole.parts():
            for count in counted:
                if count.texts._mask[part.text]:
                    count.add(part)
    else:
        counted = [_Count(texts) for texts in all_texts]
        for count in counted:
            for part in count.texts.parts():
                count.add(part)
    for count in counted:
        yield count.facts()


class _Count:
    """Accumulator of the `Facts` about texts. The pieces of the texts are added one at a time."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self._characters = self._bytes = self._lines = 0
        self._alphabet: set[str] = set()
        self._digest = blake2b(digest_size=16)
        self._sizes = dict(texts.digests.long.tolist())

    def add(self, part: Part) -> None:
        content = part.content.encode()
        if part.first:  # The bytes have the same format as in files.fingerprint, so both give the same fingerprint.
            self._digest.update(self._sizes.get(part.text, len(content)).to_bytes(8, "little"))
        self._digest.update(content)
        self._characters += len(part.content)
        self._bytes += len(content)
        self._lines += part.content.count("\n")
        known = "".join(c for c in self._alphabet if c.isascii()).encode()
        # For speed, remove all ASCII characters that are already in the alphabet before decoding the rest.
        self._alphabet.update(content.translate(None, known).decode())

    def facts(self) -> Facts:
        return Facts(self._characters, self._bytes, self._lines, "".join(sorted(self._alphabet)),
                     self._digest.hexdigest())  # fmt: skip


def read_texts(
    path: str | Path | Rows, *, column: str = "text", skip_bad_lines: bool = False, cache_folder: Path | None = None
) -> Texts:
    """Read the texts of a corpus: a file, several files joined by commas, or a directory (in the order of file names).

    Blank texts are left out. All files are read once to find faults.

    column          name of the table column that contains the text
    skip_bad_lines  True: leave out and count faulty rows, and files that are not valid UTF-8
    cache_folder    directory in which facts about the files are cached, so that unchanged files are not read again

    Raises FileNotFoundError, or a one-line UserError that names the file, the line and a remedy.
    """
    if isinstance(path, Rows):
        skips = Counter[str]()
        rows = filter_invalid(text_rows(path, column), skips, skip=skip_bad_lines)
        texts = [text for row in rows if (text := row.cells[0]).strip()]
        if not texts:
            raise UserError(f"{path}: no usable text found ({skips.total():,} skipped)")
        return Texts(texts, skips=dict(skips), file=Path(path))
    corpus = Corpus(tuple(files_of(str(path))), column, skip_bad_lines)
    survey = Survey.of(corpus, cache_folder)
    if not survey.usable.any():
        raise UserError(f"{path}: no usable text found ({sum(survey.skips.values()):,} skipped)")
    return Texts(corpus, skips=survey.skips, file=Path(path), cache_folder=cache_folder, survey=survey)
