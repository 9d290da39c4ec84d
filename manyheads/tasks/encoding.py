"""Tokenization of texts, and of pairs of texts, to the ids that a model reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.models import BPE, WordLevel, WordPiece
from torch import Tensor

from manyheads.data.text.text_faults import ItemError, beginning, fault_of
from manyheads.data.text.windows import positions_after_truncation
from manyheads.tasks.outputs import padded

CHUNK_TEXTS = 2000  # number of texts that are passed to the tokenizer at once


@dataclass(frozen=True)
class Encoded:
    """Token ids of texts or pairs of texts, with special tokens.

    ids       token ids of each text or pair
    segments  segment ids of each pair: 0 for the first text, 1 for the second; None for single texts
    """

    ids: list[NDArray[np.int32]]
    segments: list[NDArray[np.int32]] | None
    cut: int  # number of texts that were longer than the length limit

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(ids) for ids in self.ids], dtype=np.int64)

    def batch(self, rows: Sequence[int], padding: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the token ids (B, T), the lengths (B,), and the segments (B, T) of pairs, or None for single texts."""
        segments = None if self.segments is None else padded([self.segments[i] for i in rows], 0)[0]
        return *padded([self.ids[i] for i in rows], padding), segments


def unknown_token(tokenizer: Tokenizer) -> str | None:
    """Return the token to which a tokenizer converts unknown characters or words, or None if it has no such token."""
    model = tokenizer.model
    return model.unk_token if isinstance(model, BPE | WordLevel | WordPiece) else None


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    limit: int | None,
    *,
    truncate: bool,
    where: Callable[[int], str] | None = None,
) -> Encoded:
    """Tokenize every text or pair of texts, and cut it to `limit` tokens if `truncate` is true.

    In a pair, the longer text is cut. An empty text becomes one unknown token. Raises ItemError for invalid Unicode,
    and for a text over the limit if `truncate` is false.

    where  function that returns the name of a text, for the error message
    """
    hint = "shorten it, or cut it with truncate=true (--truncate)"

    def error(index: int, fault: str) -> ItemError:
        return ItemError(index, fault, where(index) if where else None)

    unknown = tokenizer.token_to_id(unknown_token(tokenizer) or "") or 0
    ids: list[NDArray[np.int32]] = []
    segments: list[NDArray[np.int32]] = []
    too_long: list[tuple[int, int]] = []
    for first in range(0, len(texts), CHUNK_TEXTS):
        sides = [list(side[first : first + CHUNK_TEXTS]) for side in (texts, pairs) if side is not None]
        for side in sides:
            for i, text in enumerate(side):
                side[i] = beginning(text, limit) if truncate else text
                if fault := fault_of(side[i], limit, hint):
                    raise error(first + i, fault)
        chunk = sides[0] if pairs is None else list(zip(*sides, strict=True))
        encodings: list[Encoding] = tokenizer.encode_batch(chunk)
        for i, encoding in enumerate(encodings):
            tokens = np.array(encoding.ids or [unknown], dtype=np.int32)
            segment_ids = np.array(encoding.type_ids or [0], dtype=np.int32)
            if limit is not None and len(tokens) > limit:
                too_long.append((first + i, len(tokens)))
                if truncate:
                    kept_tokens = positions_after_truncation(encoding.sequence_ids, limit)
                    tokens, segment_ids = tokens[kept_tokens], segment_ids[kept_tokens]
            ids.append(tokens)
            segments.append(segment_ids)
    if too_long and not truncate:
        index, length = too_long[0]
        others = f" ({len(too_long):,} texts are longer)" if len(too_long) > 1 else ""
        raise error(index, f"has {length:,} tokens, the limit is {limit:,}{others}: {hint}")
    return Encoded(ids, None if pairs is None else segments, len(too_long))
