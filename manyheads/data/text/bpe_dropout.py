"""BPE dropout: random divisions of words into tokens, so that a model learns rare tokens (Provilkov et al. 2020).

The BPE dropout of the library `tokenizers` is not used, because it has no seed, so a run could not be reproduced. It
also gives a skipped merge further chances, and therefore divides words less than the algorithm of the paper.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from manyheads.errors import UserError

DIVISIONS = 32  # number of random divisions of each word; each occurrence of the word gets one of them
BEGIN = "▁"  # first character of a token that begins a word


class BPEDropout:
    """Function that randomly divides the words of tokenized texts into other tokens of the same vocabulary.

    tokenizer  byte-pair encoding that marks the beginnings of words
    rate       probability of skipping a merge of two pieces
    """

    def __init__(self, tokenizer: Tokenizer, rate: float, seed: int) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            raise UserError(f"bpe_dropout requires byte-pair encoding, found {model['type']}: use tokenizer=bpe")
        merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        ranks = {tuple(merge): rank for rank, merge in enumerate(merges)}
        ids = tokenizer.get_vocab()
        names = {number: name for name, number in ids.items()}
        special = {*tokenizer.get_added_tokens_decoder()}
        self._begins = np.zeros(max(names) + 1, dtype=bool)
        self._begins[[number for number, name in names.items() if name.startswith(BEGIN) or number in special]] = True

        def divided(pieces: list[str], random: np.random.Generator) -> list[str]:
            while found := [
                (rank, at)
                for at, pair in enumerate(pairwise(pieces))
                if (rank := ranks.get(pair)) is not None and random.random() >= rate
            ]:
                _, at = min(found)
                pieces = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]
            return pieces

        @cache
        def divisions(word: tuple[int, ...]) -> list[tuple[int, ...]]:
            if not special.isdisjoint(word):
                return [word] * DIVISIONS
            characters = [character for number in word for character in names[number]]
            # The seed contains the word, so that its divisions do not depend on the order in which words are read.
            random = np.random.default_rng([seed, *word])
            return [tuple(ids[piece] for piece in divided(characters, random)) for _ in range(DIVISIONS)]

        self._divisions = divisions

    def __call__(self, tokens: NDArray[np.int64], seed: Sequence[int]) -> NDArray[np.int64]:
        """Return the token ids of a text with its words divided at random.

        tokens  token ids of the text as the tokenizer divides it
        seed    seed of the random division, such as (epoch, index of the text)
        """
        words = np.split(tokens, np.flatnonzero(self._begins[tokens[1:]]) + 1)
        chosen = np.random.default_rng(seed).integers(DIVISIONS, size=len(words)).tolist()
        parts = (self._divisions(tuple(word.tolist()))[i] for word, i in zip(words, chosen, strict=True))
        return np.array([number for part in parts for number in part], dtype=tokens.dtype)
