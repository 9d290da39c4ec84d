"""What BERT is pretrained on: pairs of text spans with some tokens masked (Devlin 2018, section 3.1 and appendix A).

The rules are those of the original code (create_pretraining_data.py), drawn anew in every epoch or from a fixed number
of copies. What an epoch holds depends on the texts, the settings, the seed and the epoch alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer

from manyheads.data.batching import Lazy
from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.text.store import TokenStore
from manyheads.data.text.tokenizers import encode_all
from manyheads.errors import UserError

MASKS = ("[MASK]", "<mask>")  # what stands for a masked word: BERT's, and RoBERTa's
BLANK = "Ġ"  # how byte-level BPE writes the blank before a word
TRIES = 10  # to find another document for a random next sentence
MASKED, KEPT = 0.8, 0.9  # below: [MASK]; below: left as it is; the rest: any token of the vocabulary


class Special(NamedTuple):
    """Ids of [CLS], [SEP] and [MASK], or of what a tokenizer has in their places."""

    start: int
    separator: int
    mask: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Special:
        """Raises UserError for a tokenizer that is not BERT's kind."""
        around = tokenizer.encode("").ids
        mask = tokenizer.token_to_id(mask_token(tokenizer) or "")
        if len(around) != 2 or mask is None:
            raise UserError(
                f"the tokenizer puts {len(around)} tokens around a text, and has {'no' if mask is None else 'a'} token "
                f"for a masked word: masked language models need two around it, and {' or '.join(MASKS)}"
            )
        return cls(around[0], around[1], mask)


def mask_token(tokenizer: Tokenizer) -> str | None:
    """The token that stands for a masked word, None where a tokenizer has none."""
    return next((mask for mask in MASKS if tokenizer.token_to_id(mask) is not None), None)


@dataclass(frozen=True)
class Rules:
    """How examples are made.

    length         tokens of an example at most, [CLS] and [SEP] included
    next_sentence  examples are pairs of which the second follows the first, or comes from another document; without,
                   one span of a document
    share          of the tokens that are to be predicted, and `predictions`, their number at most (None: no limit)
    short          share of the examples that are shorter than they could be, by chance
    whole_words    all pieces of a word are masked together
    copies         None: every epoch is drawn anew. A number: so many epochs are, and then they come again, as in the
                   paper, which wrote ten copies to disk
    """

    length: int = 128
    next_sentence: bool = True
    share: float = 0.15
    predictions: int | None = None
    short: float = 0.1
    whole_words: bool = False
    copies: int | None = None

    def __post_init__(self) -> None:
        least = 5 if self.next_sentence else 3
        if self.length < least:
            raise UserError(f"length is {self.length}: an example has at least {least} tokens")
        if not 0 < self.share < 1:
            raise UserError(f"share is {self.share}: expected a share of the tokens, between 0 and 1")
        if self.predictions is not None and self.predictions < 1:
            raise UserError(f"predictions is {self.predictions}: expected at least 1, or none")
        if self.copies is not None and self.copies < 1:
            raise UserError(f"copies is {self.copies}: expected at least 1, or none")

    def wanted(self, tokens: int) -> int:
        """How many of so many tokens are to be predicted."""
        count = max(1, round(tokens * self.share))
        return count if self.predictions is None else min(self.predictions, count)


class Example(NamedTuple):
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP], as the model sees it.

    positions  of the tokens to predict, ascending; `answers` stood there
    follows    whether B is what follows A in its document; None where there is no B
    """

    tokens: list[int]
    segments: list[int]
    positions: list[int]
    answers: list[int]
    follows: bool | None


class Span(NamedTuple):
    """Where the tokens of an example come from: sentences [a, middle) and [b, end) of the corpus."""

    a: int
    middle: int
    b: int
    end: int
    follows: bool | None


class Spans(Sequence[Span]):
    """Of an epoch, from where they are (`PretrainingData.places`)."""

    def __init__(self, places: NDArray[np.int32]) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Span:  # type: ignore[override]  # no slices
        a, middle, b, end, follows = self._places[index].tolist()
        return Span(a, middle, b, end, None if follows < 0 else bool(follows))


class TokenizedDocuments:
    """Tokenised sentences, in the order of the text.

    sentences  of tokens without [CLS] and [SEP]; none is empty
    starts     (N + 1,) document d is sentences starts[d] to starts[d + 1]; none is empty
    """

    def __init__(self, sentences: Sequence[NDArray[np.int64]], lengths: ArrayLike, starts: ArrayLike) -> None:
        self.sentences = sentences
        self.lengths: NDArray[np.int64] = np.asarray(lengths)
        self.starts: NDArray[np.int64] = np.asarray(starts)
        assert self.starts[0] == 0
        assert self.starts[-1] == len(sentences) == len(self.lengths)
        assert (np.diff(self.starts) > 0).all()
        assert (self.lengths > 0).all()

    @classmethod
    def of(
        cls, documents: Sequence[Sequence[str]], tokenizer: Tokenizer, cache: Path | None = None
    ) -> TokenizedDocuments:
        """Sentences as `data.documents` reads them; where a directory `cache` is given, tokenised once and for all."""
        texts = ConcatenatedTexts(documents)
        encoded: Sequence[ArrayLike]
        if cache is None:
            encoded = encode_all(tokenizer, list(texts))
            lengths = np.array([len(ids) for ids in encoded])
        else:
            encoded = store = TokenStore.of(texts, tokenizer, cache)
            lengths = store.lengths
        lengths = lengths - 2  # without [CLS] and [SEP]
        document_of = np.repeat(np.arange(len(documents)), np.fromiter(map(len, documents), np.int64, len(documents)))
        kept = np.flatnonzero(lengths > 0)  # of some nothing is left, such as of control characters
        if not len(kept):
            raise UserError(f"the tokenizer leaves nothing of the {len(documents):,} documents: give texts of words")
        starts = np.concatenate([[0], np.flatnonzero(np.diff(document_of[kept])) + 1, [len(kept)]])

        def bare(index: int) -> NDArray[np.int64]:
            return np.asarray(encoded[index], dtype=np.int64)[1:-1]

        rows: Any = kept if len(kept) < len(lengths) else range(len(kept))
        return cls(Lazy(rows, bare), lengths[kept], starts)

    def __len__(self) -> int:
        return len(self.starts) - 1


class Epoch(Sequence[Example]):
    """The examples of an epoch, made when asked for; `lengths` (N,) holds their numbers of tokens."""

    def __init__(self, data: PretrainingData, number: int) -> None:
        self._data, self._number = data, number
        places = data.places(number)
        self.spans = Spans(places)
        a, middle, b, end = (data.tokens_before[places[:, column]] for column in range(4))
        tokens = middle - a + end - b
        self.lengths: NDArray[np.int64] = np.minimum(tokens, data.room) + data.rules.length - data.room

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]  # no slices
        return self._data.example(self.spans[index], self._data.random(self._number, index))


class PretrainingData:
    """Documents and the rules by which examples are made of them.

    vocabulary  tokens there are; any may stand in for a masked one, as in the original code
    inner       ids of pieces that go on with a word ("##s"), for whole words
    """

    def __init__(
        self,
        documents: TokenizedDocuments,
        rules: Rules,
        special: Special,
        vocabulary: int,
        *,
        seed: int,
        inner: frozenset[int] = frozenset(),
    ) -> None:
        if rules.next_sentence and len(documents) < 2:
            raise UserError(
                "a next sentence is drawn from another document: the text has only one; separate documents by blank"
                " lines, or ask for next_sentence=false"
            )
        self.documents, self.rules, self.special, self.vocabulary = documents, rules, special, vocabulary
        self.seed, self.inner = seed, inner
        self.room = rules.length - (3 if rules.next_sentence else 2)
        self.tokens_before: NDArray[np.int64] = np.concatenate([[0], np.cumsum(documents.lengths)])

    def epoch(self, number: int) -> Epoch:
        """One pass over all documents."""
        return Epoch(self, number if self.rules.copies is None else number % self.rules.copies)

    def random(self, *place: int) -> Random:
        return Random("/".join(map(str, (self.seed, *place))))

    def spans(self, epoch: int) -> Spans:
        """Where the examples of an epoch come from, document after document."""
        return Spans(self.places(epoch))

    def places(self, epoch: int) -> NDArray[np.int32]:
        """(N, 5) those of all spans, with 1 or 0 for whether what stands there follows, and -1 for none."""
        draw, numbers = self.random(epoch), array("i")
        for document in range(len(self.documents)):
            for span in self._spans_of(document, draw):
                numbers.extend((*span[:4], -1 if span.follows is None else span.follows))
        return np.frombuffer(numbers, np.int32).reshape(-1, 5)

    def _spans_of(self, document: int, draw: Random) -> list[Span]:
        """Sentences are taken until they reach the target length or the document ends: a chunk. A is its beginning, up
        to a random sentence; B is the rest, or a span of another document, and then the rest begins the next chunk."""
        begin, end = self.documents.starts[document : document + 2].tolist()
        before = self.tokens_before[begin : end + 1].tolist()
        least = 2 if self.rules.next_sentence else 1
        short = draw.random() < self.rules.short
        target = draw.randint(least, self.room) if short else self.room
        spans = []
        first = last = begin
        while first < end:
            last += 1
            if last < end and before[last - begin] - before[first - begin] < target:
                continue
            if not self.rules.next_sentence:
                spans.append(Span(first, last, last, last, None))
                first = last
                continue
            middle = draw.randint(first + 1, last - 1) if last - first > 1 else last
            if middle < last and draw.random() >= 0.5:
                spans.append(Span(first, middle, middle, last, True))
                first = last
            else:
                wanted = target - (before[middle - begin] - before[first - begin])
                spans.append(Span(first, middle, *self._elsewhere(document, wanted, draw), False))
                first = last = middle  # what was not used is put back
        return spans

    def _elsewhere(self, document: int, wanted: int, draw: Random) -> tuple[int, int]:
        """Sentences of another document, from a random one on, until they hold `wanted` tokens."""
        other = document
        for _ in range(TRIES):
            other = draw.randrange(len(self.documents))
            if other != document:
                break
        begin, end = self.documents.starts[other : other + 2].tolist()
        first = draw.randrange(begin, end)
        enough = self.tokens_before[first] + wanted
        last = int(np.searchsorted(self.tokens_before[first + 1 : end], enough)) + first + 1
        return first, last

    def example(self, span: Span, draw: Random) -> Example:
        a, b = self._read(span.a, span.middle), self._read(span.b, span.end)
        a, b = truncated(a, b, self.room, draw)
        start, separator, _ = self.special
        tokens = [start, *a, separator]
        segments = [0] * len(tokens)
        if span.follows is not None:
            tokens += [*b, separator]
            segments += [1] * (len(b) + 1)
        positions = self._chosen(tokens, draw)
        answers = [tokens[at] for at in positions]
        for at in positions:
            tokens[at] = self._replacement(tokens[at], draw)
        return Example(tokens, segments, positions, answers, span.follows)

    def _read(self, first: int, last: int) -> list[int]:
        return [token for sentence in range(first, last) for token in self.documents.sentences[sentence].tolist()]

    def _chosen(self, tokens: list[int], draw: Random) -> list[int]:
        """Which positions are to be predicted: random words until there are enough; [CLS] and [SEP] never."""
        words: list[list[int]] = []
        for at, token in enumerate(tokens):
            if token in (self.special.start, self.special.separator):
                continue
            if self.rules.whole_words and token in self.inner and words and words[-1][-1] == at - 1:
                words[-1].append(at)
            else:
                words.append([at])
        draw.shuffle(words)
        count = self.rules.wanted(len(tokens))
        chosen: list[int] = []
        for word in words:
            if len(chosen) + len(word) <= count:
                chosen += word
        return sorted(chosen or words[0])  # where all words are longer than that, one is

    def _replacement(self, token: int, draw: Random) -> int:
        chance = draw.random()
        if chance < MASKED:
            return self.special.mask
        return token if chance < KEPT else draw.randrange(self.vocabulary)


def truncated(a: list[int], b: list[int], room: int, draw: Random) -> tuple[list[int], list[int]]:
    """Both, cut to `room` tokens together: one by one from the longer (B if equal), at the front or back by chance."""
    cut = {"a": [0, len(a)], "b": [0, len(b)]}
    while sum(end - begin for begin, end in cut.values()) > room:
        longer = cut["a" if cut["a"][1] - cut["a"][0] > cut["b"][1] - cut["b"][0] else "b"]
        if draw.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return a[slice(*cut["a"])], b[slice(*cut["b"])]


def continuations(vocabulary: Mapping[str, int]) -> frozenset[int]:
    """Ids of pieces that go on with a word: of WordPiece, or of byte-level BPE, where a blank begins one."""
    if any(piece.startswith(BLANK) for piece in vocabulary):
        return frozenset(index for piece, index in vocabulary.items() if not piece.startswith(BLANK))
    return frozenset(index for piece, index in vocabulary.items() if piece.startswith("##"))
