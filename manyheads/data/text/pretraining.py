"""Pretraining examples for BERT: pairs of text spans with masked tokens (Devlin 2018, section 3.1 and appendix A).

The rules follow the original code (create_pretraining_data.py). Examples are either sampled again in each epoch, or
repeated after a fixed number of epochs. The examples of an epoch depend only on the texts, the settings, the seed and
the epoch index.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from manyheads.data.batching import Lazy
from manyheads.data.text.tokenized_documents import TokenizedDocuments
from manyheads.errors import UserError

MASKS = ("[MASK]", "<mask>")  # the mask tokens of BERT and of RoBERTa
BLANK = "Ġ"  # character that represents the space before a word in byte-level BPE
MAX_ATTEMPTS = 10  # number of attempts to draw another document for a random next sentence
# A random number from 0 to 1 decides which token replaces a token to predict. Below 0.8 it is [MASK]; from 0.8 to 0.9
# the token remains; otherwise it is a random token.
MASK_BELOW, KEEP_BELOW = 0.8, 0.9


class Special(NamedTuple):
    """Ids of the special tokens [CLS], [SEP] and [MASK], or of the tokens with these functions in another tokenizer."""

    start: int
    separator: int
    mask: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Special:
        """Return the special tokens of a tokenizer. Raises UserError if the tokenizer lacks one of them."""
        around = tokenizer.encode("").ids
        mask = tokenizer.token_to_id(mask_token(tokenizer) or "")
        if len(around) != 2 or mask is None:
            raise UserError(
                f"the tokenizer puts {len(around)} tokens around a text, and has {'no' if mask is None else 'a'} mask "
                f"token; masked language models require two tokens around a text, and {' or '.join(MASKS)}"
            )
        return cls(around[0], around[1], mask)


def mask_token(tokenizer: Tokenizer) -> str | None:
    """Return the mask token of a tokenizer, or None if it has no mask token."""
    return next((mask for mask in MASKS if tokenizer.token_to_id(mask) is not None), None)


@dataclass(frozen=True)
class Rules:
    """Rules for making pretraining examples from documents.

    length          maximum number of tokens in an example, including [CLS] and [SEP]
    next_sentence   if True, an example is a pair of spans, for next-sentence prediction: the second span follows the
                    first, or is from another document. If False, an example is one span of a document
    full_sentences  if True, an example is filled with consecutive sentences up to the maximum length. It may cross the
                    end of a document, where a separator token is added (Liu 2019, section 4.2)
    share           fraction of the tokens to predict
    predictions     maximum number of tokens to predict in an example. By default, there is no limit
    short           fraction of the documents for which a random, shorter length is used
    whole_words     if True, mask all pieces of a word together
    copies          number of epochs after which the examples repeat; the paper used ten. By default, new examples are
                    sampled in each epoch
    """

    length: int = 128
    next_sentence: bool = True
    share: float = 0.15
    predictions: int | None = None
    short: float = 0.1
    whole_words: bool = False
    copies: int | None = None
    full_sentences: bool = False

    def __post_init__(self) -> None:
        minimum = 5 if self.next_sentence else 3
        if self.length < minimum:
            raise UserError(f"length is {self.length}; expected at least {minimum} tokens per example")
        if self.next_sentence and self.full_sentences:
            raise UserError("full_sentences=true fills an example with one span of text; set next_sentence=false")
        if not 0 < self.share < 1:
            raise UserError(f"share is {self.share}; expected a fraction of the tokens, between 0 and 1")
        if self.predictions is not None and self.predictions < 1:
            raise UserError(f"predictions is {self.predictions}; expected at least 1 token per example, or none")
        if self.copies is not None and self.copies < 1:
            raise UserError(f"copies is {self.copies}; expected a number of epochs of at least 1, or none")

    def wanted(self, tokens: int) -> int:
        """Return the number of tokens to predict in an example that has `tokens` tokens."""
        count = max(1, round(tokens * self.share))
        return count if self.predictions is None else min(self.predictions, count)


class Example(NamedTuple):
    """Pretraining example: the input [CLS] A [SEP] B [SEP], or [CLS] A [SEP], with the tokens to predict.

    tokens     token ids of the input; the tokens to predict are masked or replaced
    segments   segment id of each token: 0 in span A, 1 in span B
    positions  positions of the tokens to predict, in ascending order
    answers    original token ids at these positions
    follows    True if span B follows span A in the document; None if the example has no span B
    """

    tokens: list[int]
    segments: list[int]
    positions: list[int]
    answers: list[int]
    follows: bool | None


class Span(NamedTuple):
    """Sentences that form a pretraining example, as indices into all sentences of the corpus.

    a, middle  span A consists of the sentences from `a` to `middle` (exclusive)
    b, end     span B consists of the sentences from `b` to `end` (exclusive)
    follows    True if span B follows span A in the document; None if the example has no span B
    """

    a: int
    middle: int
    b: int
    end: int
    follows: bool | None


def _spans(places: NDArray[np.int32]) -> Sequence[Span]:
    """Return the spans of all examples of an epoch as `Span` objects.

    places  (N, 5) the same spans as an array (see `PretrainingData.places`)
    """

    def span(index: int) -> Span:
        a, middle, b, end, follows = places[index].tolist()
        return Span(a, middle, b, end, None if follows < 0 else bool(follows))

    return Lazy(range(len(places)), span)


class Epoch(Sequence[Example]):
    """Sequence of the pretraining examples of one epoch. An example is created when it is accessed.

    `lengths` (N,) contains the number of tokens of each example.
    """

    def __init__(self, data: PretrainingData, number: int) -> None:
        self._data, self._number = data, number
        places = data.places(number)
        self.spans = _spans(places)
        a, middle, b, end = (data.tokens_before[places[:, column]] for column in range(4))
        starts = data.documents.starts
        separators = np.searchsorted(starts, places[:, 1]) - np.searchsorted(starts, places[:, 0], "right")
        tokens = middle - a + end - b + separators
        self.lengths: NDArray[np.int64] = np.minimum(tokens, data.capacity) + data.rules.length - data.capacity

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]  # no slices
        return self._data.example(self.spans[index], self._data.random(self._number, index))


class PretrainingData:
    """Documents, with the rules for making pretraining examples from them.

    vocabulary  size of the vocabulary. As in the original code, any token of it may replace a masked token
    inner       ids of the tokens that continue a word ("##s"), for whole-word masking
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
                "next-sentence prediction requires at least two documents, found one; separate documents with blank"
                " lines, or set next_sentence=false"
            )
        self.documents, self.rules, self.special, self.vocabulary = documents, rules, special, vocabulary
        self.seed, self.inner = seed, inner
        self.capacity = rules.length - (3 if rules.next_sentence else 2)
        self.tokens_before: NDArray[np.int64] = np.concatenate([[0], np.cumsum(documents.lengths)])

    def epoch(self, number: int) -> Epoch:
        """Return the examples of one epoch, which is one pass over all documents."""
        return Epoch(self, number if self.rules.copies is None else number % self.rules.copies)

    def random(self, *place: int) -> Random:
        return Random("/".join(map(str, (self.seed, *place))))

    def spans(self, epoch: int) -> Sequence[Span]:
        """Return the sentence spans of all examples of an epoch, in the order of the documents."""
        return _spans(self.places(epoch))

    def places(self, epoch: int) -> NDArray[np.int32]:
        """Return the sentence spans of an epoch as an array (N, 5) with the columns a, middle, b, end and follows.

        The column `follows` is 1 for True, 0 for False and -1 for None.
        """
        rng, numbers = self.random(epoch), array("i")
        by_document = (self._spans_of(document, rng) for document in range(len(self.documents)))
        for spans in [self._full_spans()] if self.rules.full_sentences else by_document:
            for span in spans:
                numbers.extend((*span[:4], -1 if span.follows is None else span.follows))
        return np.frombuffer(numbers, np.int32).reshape(-1, 5)

    def ends_in(self, first: int, last: int) -> list[int]:
        """Return the ends of documents inside the sentences from `first` to `last` (exclusive)."""
        starts = self.documents.starts
        return starts[np.searchsorted(starts, first, "right") : np.searchsorted(starts, last)].tolist()

    def _full_spans(self) -> list[Span]:
        """Return spans of consecutive sentences of the corpus, each filled up to the maximum number of tokens."""
        spans: list[Span] = []
        first, size, starts = 0, 0, {*self.documents.starts.tolist()}
        for sentence, tokens in enumerate(self.documents.lengths.tolist()):
            separator = sentence > first and sentence in starts
            if sentence > first and size + separator + tokens > self.capacity:
                spans.append(Span(first, sentence, sentence, sentence, None))
                first, size, separator = sentence, 0, False
            size += separator + tokens
        last = len(self.documents.sentences)
        return [*spans, Span(first, last, last, last, None)]

    def _spans_of(self, document: int, rng: Random) -> list[Span]:
        """Split a document into the sentence spans of its examples.

        Sentences are collected into a chunk until the chunk reaches the target length or the document ends. Span A is
        the beginning of the chunk, up to a random sentence. Span B is the rest of the chunk, or a span of another
        document. If it is from another document, the rest of the chunk begins the next chunk.
        """
        begin, end = self.documents.starts[document : document + 2].tolist()
        before = self.tokens_before[begin : end + 1].tolist()
        minimum = 2 if self.rules.next_sentence else 1
        short = rng.random() < self.rules.short
        target = rng.randint(minimum, self.capacity) if short else self.capacity
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
            middle = rng.randint(first + 1, last - 1) if last - first > 1 else last
            if middle < last and rng.random() >= 0.5:
                spans.append(Span(first, middle, middle, last, True))
                first = last
            else:
                wanted = target - (before[middle - begin] - before[first - begin])
                spans.append(Span(first, middle, *self._random_sentences(document, wanted, rng), False))
                first = last = middle  # The sentences that this example leaves unused begin the next chunk.
        return spans

    def _random_sentences(self, document: int, wanted: int, rng: Random) -> tuple[int, int]:
        """Return consecutive sentences of a random document other than the current one.

        The sentences have at least `wanted` tokens in total, or fewer if they reach the end of the document.
        """
        other = document
        for _ in range(MAX_ATTEMPTS):
            other = rng.randrange(len(self.documents))
            if other != document:
                break
        begin, end = self.documents.starts[other : other + 2].tolist()
        first = rng.randrange(begin, end)
        target = self.tokens_before[first] + wanted
        last = int(np.searchsorted(self.tokens_before[first + 1 : end], target)) + first + 1
        return first, last

    def example(self, span: Span, rng: Random) -> Example:
        start, separator, _ = self.special
        cuts = self.ends_in(span.a, span.middle)
        first, *others = (self._read(*ends) for ends in pairwise([span.a, *cuts, span.middle]))
        a = first + [token for other in others for token in (separator, *other)]
        a, b = truncate_pair(a, self._read(span.b, span.end), self.capacity, rng)
        tokens = [start, *a, separator]
        segments = [0] * len(tokens)
        if span.follows is not None:
            tokens += [*b, separator]
            segments += [1] * (len(b) + 1)
        positions = self._sample_masked_positions(tokens, rng)
        answers = [tokens[at] for at in positions]
        for at in positions:
            tokens[at] = self._replacement(tokens[at], rng)
        return Example(tokens, segments, positions, answers, span.follows)

    def _read(self, first: int, last: int) -> list[int]:
        return [token for sentence in range(first, last) for token in self.documents.sentences[sentence].tolist()]

    def _sample_masked_positions(self, tokens: list[int], rng: Random) -> list[int]:
        """Return the positions of the tokens to predict in an example.

        Random words are selected until the required number of tokens is reached. The tokens [CLS] and [SEP] are never
        selected.
        """
        words: list[list[int]] = []
        for at, token in enumerate(tokens):
            if token in (self.special.start, self.special.separator):
                continue
            if self.rules.whole_words and token in self.inner and words and words[-1][-1] == at - 1:
                words[-1].append(at)
            else:
                words.append([at])
        rng.shuffle(words)
        count = self.rules.wanted(len(tokens))
        chosen: list[int] = []
        for word in words:
            if len(chosen) + len(word) <= count:
                chosen += word
        # Every word has more tokens than may be predicted: select one word nevertheless.
        return sorted(chosen or words[0])

    def _replacement(self, token: int, rng: Random) -> int:
        roll = rng.random()
        if roll < MASK_BELOW:
            return self.special.mask
        return token if roll < KEEP_BELOW else rng.randrange(self.vocabulary)


def truncate_pair(a: list[int], b: list[int], capacity: int, rng: Random) -> tuple[list[int], list[int]]:
    """Truncate two spans so that they have at most `capacity` tokens together.

    Tokens are removed one by one from the longer span (from B if both are equal), at random from its start or its
    end.
    """
    cut = {"a": [0, len(a)], "b": [0, len(b)]}
    while sum(end - begin for begin, end in cut.values()) > capacity:
        longer = cut["a" if cut["a"][1] - cut["a"][0] > cut["b"][1] - cut["b"][0] else "b"]
        if rng.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return a[slice(*cut["a"])], b[slice(*cut["b"])]


def continuations(vocabulary: Mapping[str, int]) -> frozenset[int]:
    """Return the ids of the tokens that continue a word, given the vocabulary of WordPiece or byte-level BPE."""
    if any(piece.startswith(BLANK) for piece in vocabulary):
        return frozenset(index for piece, index in vocabulary.items() if not piece.startswith(BLANK))
    return frozenset(index for piece, index in vocabulary.items() if piece.startswith("##"))
