"""Alignment of the words of a translation with those of its source, from attention weights, and copies of words."""

from __future__ import annotations

import re
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer


def word_pairs(
    weights: NDArray[np.float32], target: tuple[Encoding, str], source: tuple[Encoding, str]
) -> list[tuple[int, int]]:
    """Return (source word, target word) for each target word: the source word with the largest attention weight.

    Words are counted from 0 and separated by white space. Weights are summed over the tokens of a source word, and
    averaged over the tokens of a target word.

    weights         attention weights (Tq, Tk), from target tokens to source tokens
    target, source  tokens of each text, with the text
    """
    rows, columns = _words(*target, weights.shape[0]), _words(*source, weights.shape[1])
    return [(int(source), i) for i, source in enumerate((rows @ weights @ columns.T).argmax(1))]


def with_copies(
    tokenizer: Tokenizer, tokens: list[int], unknown: str, weights: NDArray[np.float32], source: Encoding, text: str
) -> str:
    """Return the text of target tokens with words of the source text in place of unknown words (Luong 2015b).

    A copy has the characters of the source token with the largest attention weight.

    tokenizer, tokens, unknown  target tokenizer, target tokens, and the name of the token of unknown words
    weights       attention weights (Tq, Tk), from target tokens to source tokens
    source, text  tokens of the source text, with the text. Tokens without characters, such as the end, are not copied
    """
    spans = source.offsets[: weights.shape[1]]
    best = (weights * np.array([end > start for start, end in spans])).argmax(1)
    names = map(tokenizer.id_to_token, tokens)
    copies = [text[slice(*spans[at])] for at, name in zip(best, names, strict=True) if name == unknown]
    written: str = tokenizer.decode(tokens, skip_special_tokens=False)
    return re.sub(re.escape(unknown), lambda _: copies.pop(0).strip(), written)


def _words(encoding: Encoding, text: str, tokens: int) -> NDArray[np.float64]:
    """Return a matrix (words, tokens) that is 1 where a token belongs to a word. A space belongs to the next word."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    matrix = np.zeros((len(starts), tokens))
    for token, (first, end) in enumerate(encoding.offsets[:tokens]):
        if end > first:
            piece = text[first:end]
            matrix[bisect_right(starts, first + len(piece) - len(piece.lstrip())) - 1, token] = 1
    return matrix
