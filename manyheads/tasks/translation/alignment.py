"""Alignment of the words of a translation with those of its source, from attention weights."""

from __future__ import annotations

import re
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding


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


def _words(encoding: Encoding, text: str, tokens: int) -> NDArray[np.float64]:
    """Return a matrix (words, tokens) that is 1 where a token belongs to a word. A space belongs to the next word."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    matrix = np.zeros((len(starts), tokens))
    for token, (first, end) in enumerate(encoding.offsets[:tokens]):
        if end > first:
            piece = text[first:end]
            matrix[bisect_right(starts, first + len(piece) - len(piece.lstrip())) - 1, token] = 1
    return matrix
