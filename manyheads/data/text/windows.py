"""Windows and truncation of a text that is longer than a model's maximum number of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from manyheads.errors import UserError


class Window(NamedTuple):
    """Window of a text: the tokens from `start` to `end` (exclusive)."""

    start: int
    end: int


def windows(length: int, room: int, stride: int) -> list[Window]:
    """Return overlapping windows of at most `room` tokens over a text of `length` tokens.

    Consecutive windows start `stride` tokens apart, as in the code of Devlin 2018.
    """
    assert 0 < stride <= room
    spans = [Window(0, min(length, room))]
    while spans[-1].end < length:
        start = spans[-1].start + stride
        spans.append(Window(start, min(length, start + room)))
    return spans


def owners(spans: Sequence[Window]) -> list[int]:
    """Return, for each token of a text, the index of the window that contains the most context around the token.

    The context is the number of tokens to the left or to the right of the token, whichever is smaller. Of windows with
    equal context, the longest is selected, then the first ("max context" rule in the SQuAD code of Devlin 2018).
    """
    best: list[tuple[float, int]] = []
    for number, window in enumerate(spans):
        for token in range(window.start, window.end):
            context = min(token - window.start, window.end - 1 - token)
            score = context + 0.01 * (window.end - window.start)
            if token == len(best):
                best.append((score, number))
            elif score > best[token][0]:
                best[token] = (score, number)
    return [number for _, number in best]


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """Special tokens that a tokenizer puts before, between and after the texts of a model input.

    The input is a single text or a pair of texts. Each special token is a pair (token id, segment id).
    """

    before: list[tuple[int, int]]
    between: list[tuple[int, int]]
    after: list[tuple[int, int]]

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, pair: bool = False) -> SpecialTokenTemplate:
        probe = tokenizer.encode("a", "a" if pair else None)
        before: list[tuple[int, int]] = []
        between: list[tuple[int, int]] = []
        after: list[tuple[int, int]] = []
        seen = -1  # index of the current text: 0 for the first text of a pair, 1 for the second
        for token, segment, text in zip(probe.ids, probe.type_ids, probe.sequence_ids, strict=True):
            if text is not None:
                seen = text
            else:
                (before if seen < 0 else between if pair and seen == 0 else after).append((token, segment))
        return cls(before, between, after)

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Return the token ids and the segment ids of a text or pair, with the special tokens around the texts."""
        pieces = [*self.before, *((i, 0) for i in first), *self.between, *((i, 1) for i in second or ()), *self.after]
        return [token for token, _ in pieces], [segment for _, segment in pieces]


class WordWindow(NamedTuple):
    """Window of a tokenized sentence, with the words for which a model predicts tags in this window.

    ids        token ids of the window
    sentence   index of the sentence
    words      indices, within the sentence, of the words for which the model predicts tags
    positions  position in `ids` of the first token of each of these words
    """

    ids: list[int]
    sentence: int
    words: list[int]
    positions: list[int]


def word_windows(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], limit: int) -> list[WordWindow]:
    """Split sentences into windows of at most `limit` tokens. Each word is predicted in exactly one window.

    Consecutive windows overlap by half of their length.
    """
    frame = SpecialTokenTemplate.of(tokenizer)
    room = limit - len(frame)
    if room < 2:
        raise UserError(f"windows of {limit} tokens are too short for words; expected at least {len(frame) + 2}")
    unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "") or 0
    all_windows: list[WordWindow] = []
    # In byte-level BPE, a word inside a text begins with a space.
    blank = " " if tokenizer.encode("a").ids != tokenizer.encode(" a").ids else ""
    spelled = [[blank + word for word in sentence] for sentence in sentences]
    encodings = tokenizer.encode_batch(spelled, is_pretokenized=True, add_special_tokens=False)
    for number, (sentence, encoding) in enumerate(zip(sentences, encodings, strict=True)):
        pieces: list[list[int]] = [[] for _ in sentence]
        for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
            assert word is not None  # Tokens that belong to no word are special tokens.
            pieces[word].append(token)
        ids: list[int] = []
        firsts = []  # index of the first token of each word
        for piece in pieces:
            firsts.append(len(ids))
            ids += piece or [unknown]  # A word of control characters yields no tokens; it counts as an unknown token.
        parts = windows(len(ids), room, max(1, room // 2)) if ids else []
        owner = owners(parts)
        words: list[list[int]] = [[] for _ in parts]  # words that are predicted in each window
        for word, first in enumerate(firsts):
            words[owner[first]].append(word)
        for part, inside in zip(parts, words, strict=True):
            if inside:
                shift = len(frame.before) - part.start
                positions = [firsts[word] + shift for word in inside]
                all_windows.append(WordWindow(frame.around(ids[part.start : part.end])[0], number, inside, positions))
    return all_windows


def positions_after_truncation(sequences: Sequence[int | None], limit: int) -> list[int]:
    """Return the positions of the tokens that remain if an encoded text or pair is truncated to `limit` tokens.

    sequences  text index of each token (0, or 1 for the second text of a pair), None for special tokens
               (`Encoding.sequence_ids`)

    The special tokens and the beginnings of the texts remain. Of a pair, the longer text is truncated first, then both,
    like the strategy "longest_first" of the library `tokenizers`. The truncation of the library is not used, because it
    also creates encodings of all combinations of overflowing parts. For two long texts, these take gigabytes.
    """
    counts = Counter(sequences)
    available = max(0, limit - counts[None])
    shorter, longer = (1, 0) if counts[0] > counts[1] else (0, 1)
    shorter_count = min(counts[shorter], available // 2)
    left = {None: counts[None], shorter: shorter_count, longer: available - shorter_count}
    places = []
    for place, sequence in enumerate(sequences):
        if left[sequence] > 0:
            left[sequence] -= 1
            places.append(place)
    return places
