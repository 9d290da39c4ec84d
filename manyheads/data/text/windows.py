"""Overlapping windows over texts that exceed a model's length, with the tokenizer's special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from manyheads.errors import UserError


class Window(NamedTuple):
    """Range of tokens from `start` to `end` (exclusive)."""

    start: int
    end: int


def windows(length: int, room: int, stride: int) -> list[Window]:
    """Return windows of at most `room` tokens whose starts are `stride` tokens apart (code of Devlin 2018)."""
    assert 0 < stride <= room
    spans = [Window(0, min(length, room))]
    while spans[-1].end < length:
        start = spans[-1].start + stride
        spans.append(Window(start, min(length, start + room)))
    return spans


def owners(spans: Sequence[Window]) -> list[int]:
    """Return for each token the index of the window with the largest context around it.

    The context is the minimum of the left and right contexts. For equal contexts, the longer window is selected, then
    the first ("max context" rule in the SQuAD code of Devlin 2018).
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
    """Special tokens before, between and after one text or a pair of texts, as (token, segment)."""

    before: list[tuple[int, int]]
    between: list[tuple[int, int]]
    after: list[tuple[int, int]]

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, pair: bool = False) -> SpecialTokenTemplate:
        probe = tokenizer.encode("a", "a" if pair else None)
        before: list[tuple[int, int]] = []
        between: list[tuple[int, int]] = []
        after: list[tuple[int, int]] = []
        seen = -1  # index of the last text that has begun
        for token, segment, text in zip(probe.ids, probe.type_ids, probe.sequence_ids, strict=True):
            if text is not None:
                seen = text
            else:
                (before if seen < 0 else between if pair and seen == 0 else after).append((token, segment))
        return cls(before, between, after)

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Return the token ids and segments of a text or pair, with special tokens."""
        pieces = [*self.before, *((i, 0) for i in first), *self.between, *((i, 1) for i in second or ()), *self.after]
        return [token for token, _ in pieces], [segment for _, segment in pieces]


class WordWindow(NamedTuple):
    """Part of a sentence with special tokens, and the words that are predicted in it.

    sentence   index of the sentence
    words      indices of the words in the sentence
    positions  positions of the words' first sub-tokens in `ids`
    """

    ids: list[int]
    sentence: int
    words: list[int]
    positions: list[int]


def word_windows(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], limit: int) -> list[WordWindow]:
    """Split sentences into windows of at most `limit` tokens, so that each word is assigned to exactly one window.

    Consecutive windows overlap by half.
    """
    frame = SpecialTokenTemplate.of(tokenizer)
    room = limit - len(frame)
    if room < 2:
        raise UserError(f"windows of {limit} tokens are too short for words; expected at least {len(frame) + 2}")
    unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "") or 0
    all_windows: list[WordWindow] = []
    # in byte-level BPE, a word inside a text begins with a space
    blank = " " if tokenizer.encode("a").ids != tokenizer.encode(" a").ids else ""
    spelled = [[blank + word for word in sentence] for sentence in sentences]
    encodings = tokenizer.encode_batch(spelled, is_pretokenized=True, add_special_tokens=False)
    for number, (sentence, encoding) in enumerate(zip(sentences, encodings, strict=True)):
        pieces: list[list[int]] = [[] for _ in sentence]
        for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
            assert word is not None  # only special tokens have no word
            pieces[word].append(token)
        ids: list[int] = []
        firsts = []  # index of the first token of each word
        for piece in pieces:
            firsts.append(len(ids))
            ids += piece or [unknown]  # the tokenizer drops words that consist of control characters
        parts = windows(len(ids), room, max(1, room // 2)) if ids else []
        owner = owners(parts)
        words: list[list[int]] = [[] for _ in parts]  # words of each window
        for word, first in enumerate(firsts):
            words[owner[first]].append(word)
        for part, inside in zip(parts, words, strict=True):
            if inside:
                shift = len(frame.before) - part.start
                positions = [firsts[word] + shift for word in inside]
                all_windows.append(WordWindow(frame.around(ids[part.start : part.end])[0], number, inside, positions))
    return all_windows
