"""Fast encoding of running text with GPT-2's tokenizer, by a cache of recurring parts of the text.

Byte-level BPE merges tokens only within words, and a single space between two other characters always starts a word
(Radford et al. 2019, section 2.2; regular expression in their code). A text can therefore be split at such spaces
into parts that are encoded independently, here called segments. Most segments occur many times, and to look up a
segment in a table takes a tenth of the time of encoding.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

_BETWEEN = re.compile(r" (?<=\S )(?=\S)")
MAX_CACHED = 2**18  # maximum number of segments in the cache; a segment longer than a word is not cached
_MAX_CACHED_LENGTH = 32  # maximum number of characters in a cached segment
_SEPARATE_COST = 6  # time to encode a segment separately, relative to the time to encode it as part of its text

Ids = NDArray[np.unsignedinteger | np.signedinteger]
Dtype = np.dtype[np.unsignedinteger | np.signedinteger]
Encode = Callable[[Sequence[str]], list[Ids]]


def encoder(tokenizer: Tokenizer, dtype: Dtype) -> Encode:
    """Return a function that encodes a list of texts to one array of token ids per text, without special tokens."""

    def encode(texts: Sequence[str]) -> list[Ids]:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype) for encoding in encodings]

    return CachedTokenizer(encode, dtype) if is_separable(tokenizer) else encode


def is_separable(tokenizer: Tokenizer) -> bool:
    """Return True if, for this tokenizer, the segments of a text can be encoded independently of each other."""
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
    """Encoder with a cache of segments of text. The ids are identical to those of the tokenizer's method `encode`."""

    def __init__(self, encode: Encode, dtype: Dtype) -> None:
        self._encode, self._dtype = encode, dtype
        self._cache: dict[str, bytes] = {}  # mapping from a segment, with the space before it, to its token ids

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
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
                [segment for segment, count in unknown.items() if count > 1 and len(segment) <= _MAX_CACHED_LENGTH]
            )
            return self._encode(texts)
        self._learn([*unknown])
        for tail, pieces, missing in zip(tails, known, places, strict=True):
            for i in missing:
                pieces[i] = self._cache[tail[i]]
        for segment in unknown:
            if len(segment) > _MAX_CACHED_LENGTH:
                del self._cache[segment]
        firsts = [ids.tobytes() for ids in self._encode(heads)]
        joined = [first + b"".join(filter(None, pieces)) for first, pieces in zip(firsts, known, strict=True)]
        return [np.frombuffer(buffer, self._dtype) for buffer in joined]

    def _learn(self, segments: list[str]) -> None:
        ids = self._encode([f" {segment}" for segment in segments])
        self._cache.update(zip(segments, (row.tobytes() for row in ids), strict=True))
