"""Texts that are longer than a model takes, read in overlapping windows, with the tokenizer's special tokens around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from manyheads.errors import UserError


class Window(NamedTuple):
    """Tokens `start` to `end`, which is not among them."""

    start: int
    end: int


def windows(length: int, room: int, stride: int) -> list[Window]:
    """Windows of at most `room` tokens, each beginning `stride` tokens after the one before (Devlin 2018's code)."""
    assert 0 < stride <= room
    spans = [Window(0, min(length, room))]
    while spans[-1].end < length:
        start = spans[-1].start + stride
        spans.append(Window(start, min(length, start + room)))
    return spans


def owners(spans: Sequence[Window]) -> list[int]:
    """For each token the window that sees most around it: the largest lesser of the contexts to its left and right,
    where equal the longer window, then the first (the "max context" rule of Devlin 2018's code for SQuAD)."""
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
class Frame:
    """The special tokens that a tokenizer puts around a text, or around and between two, with their segments."""

    before: list[tuple[int, int]]
    between: list[tuple[int, int]]
    after: list[tuple[int, int]]

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, pair: bool = False) -> Frame:
        probe = tokenizer.encode("a", "a" if pair else None)
        before: list[tuple[int, int]] = []
        between: list[tuple[int, int]] = []
        after: list[tuple[int, int]] = []
        seen = -1  # the last of the texts that has begun
        for token, segment, text in zip(probe.ids, probe.type_ids, probe.sequence_ids, strict=True):
            if text is not None:
                seen = text
            else:
                (before if seen < 0 else between if pair and seen == 0 else after).append((token, segment))
        return cls(before, between, after)

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Ids and segments of the text, or of the pair."""
        pieces = [*self.before, *((i, 0) for i in first), *self.between, *((i, 1) for i in second or ()), *self.after]
        return [token for token, _ in pieces], [segment for _, segment in pieces]


class WordWindow(NamedTuple):
    """Part of a sentence, with the tokenizer's special tokens, and the words that are read here.

    sentence   its number
    words      their numbers in the sentence
    positions  of their first sub-tokens among `ids`
    """

    ids: list[int]
    sentence: int
    words: list[int]
    positions: list[int]


def word_windows(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], limit: int) -> list[WordWindow]:
    """Windows of at most `limit` tokens, half of them new from each to the next, in which every word is read once."""
    frame = Frame.of(tokenizer)
    room = limit - len(frame)
    if room < 2:
        raise UserError(f"windows of {limit} tokens have no room for words: expected at least {len(frame) + 2}")
    unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "") or 0
    all_windows: list[WordWindow] = []
    # to byte-level BPE a word in a text begins with its blank
    blank = " " if tokenizer.encode("a").ids != tokenizer.encode(" a").ids else ""
    spelt = [[blank + word for word in sentence] for sentence in sentences]
    encodings = tokenizer.encode_batch(spelt, is_pretokenized=True, add_special_tokens=False)
    for number, (sentence, encoding) in enumerate(zip(sentences, encodings, strict=True)):
        pieces: list[list[int]] = [[] for _ in sentence]
        for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
            assert word is not None  # only special tokens belong to no word
            pieces[word].append(token)
        ids: list[int] = []
        firsts = []  # of each word, its first token
        for piece in pieces:
            firsts.append(len(ids))
            ids += piece or [unknown]  # the tokenizer drops words of control characters
        parts = windows(len(ids), room, max(1, room // 2)) if ids else []
        owner = owners(parts)
        words: list[list[int]] = [[] for _ in parts]  # of each window
        for word, first in enumerate(firsts):
            words[owner[first]].append(word)
        for part, inside in zip(parts, words, strict=True):
            if inside:
                shift = len(frame.before) - part.start
                positions = [firsts[word] + shift for word in inside]
                all_windows.append(WordWindow(frame.around(ids[part.start : part.end])[0], number, inside, positions))
    return all_windows
