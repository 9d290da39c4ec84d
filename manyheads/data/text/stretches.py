"""Fast encoding of running text with GPT-2's tokenizer, by a cache of recurring parts of the text.

Byte-level BPE merges tokens only within words, and a single space between two other characters always starts a word
(Radford et al. 2019, section 2.2; regular expression in their code). A text can therefore be split at such spaces
into parts that are encoded independently, here called "stretches". Most stretches occur many times, and to look up a
stretch in a table takes a tenth of the time of encoding.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

_BETWEEN = re.compile(r" (?<=\S )(?=\S)")
MAX_CACHED = 2**18  # maximum number of stretches in the cache; a stretch longer than a word is not cached
_MAX_CACHED_LENGTH = 32  # maximum number of characters in a cached stretch
_SEPARATE_COST = 6  # time to encode a stretch separately, relative to the time to encode it as part of its text

Encode = Callable[[Sequence[str]], list[NDArray[Any]]]


def encoder(tokenizer: Tokenizer, dtype: np.dtype[Any]) -> Encode:
    """Return a function that encodes a list of texts. It returns the token ids of each text, without special tokens."""

    def encode(texts: Sequence[str]) -> list[NDArray[Any]]:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype) for encoding in encodings]

    return CachedTokenizer(encode, dtype) if is_separable(tokenizer) else encode


def is_separable(tokenizer: Tokenizer) -> bool:
    """Return True if, for this tokenizer, the stretches of a text can be encoded independently of each other."""
    state = json.loads(tokenizer.to_str())
    before, model = state["pre_tokenizer"] or {}, state["model"]
    plain = all(state[name] is None for name in ("normalizer", "truncation", "padding"))
    by_words = before.get("type") == "ByteLevel" and before["use_regex"] and not before["add_prefix_space"]
    # BPE dropout is random, so equal pieces of text may get different ids.
    deterministic = model["type"] == "BPE" and not model["dropout"]
    ignores_added_tokens = tokenizer.encode_special_tokens and all(token["special"] for token in state["added_tokens"])
    # Added tokens must be disabled, because they may contain spaces.
    return bool(plain and by_words and deterministic and ignores_added_tokens)


class CachedTokenizer:
    """Encoder with a cache of stretches of text. The ids are identical to those of the tokenizer's method `encode`."""

    def __init__(self, encode: Encode, dtype: np.dtype[Any]) -> None:
        self._encode, self._dtype = encode, dtype
        self._cache: dict[str, bytes] = {}  # mapping from a stretch, with the space before it, to its token ids

    def __call__(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        if len(self._cache) > MAX_CACHED:
            self._cache.clear()
        heads, tails = list[str](), list[list[str]]()
        for text in texts:
            head, *tail = _BETWEEN.split(text)
            heads.append(head)
            tails.append(tail)
        known = [list(map(self._cache.get, tail)) for tail in tails]
        places = [[i for i, ids in enumerate(pieces) if ids is None] for pieces in known]
        unknown = Counter(tail[i] for tail, missing in zip(tails, places, strict=True) for i in missing)
        if len(unknown) * _SEPARATE_COST > sum(map(len, tails)):
            self._learn(
                [stretch for stretch, count in unknown.items() if count > 1 and len(stretch) <= _MAX_CACHED_LENGTH]
            )
            return self._encode(texts)
        self._learn([*unknown])
        for tail, pieces, missing in zip(tails, known, places, strict=True):
            for i in missing:
                pieces[i] = self._cache[tail[i]]
        for stretch in unknown:
            if len(stretch) > _MAX_CACHED_LENGTH:
                del self._cache[stretch]
        firsts = [ids.tobytes() for ids in self._encode(heads)]
        joined = [first + b"".join(filter(None, pieces)) for first, pieces in zip(firsts, known, strict=True)]
        return [np.frombuffer(buffer, self._dtype) for buffer in joined]

    def _learn(self, stretches: list[str]) -> None:
        ids = self._encode([f" {stretch}" for stretch in stretches])
        self._cache.update(zip(stretches, (row.tobytes() for row in ids), strict=True))
