"""Documents as token ids: the input of pretraining examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer

from manyheads.data.batching import Lazy
from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.text.store import TokenStore
from manyheads.data.text.tokenizers import encode_all
from manyheads.errors import UserError


class TokenizedDocuments:
    """Tokenized documents: the token ids of all sentences, in the order of the text.

    sentences  token ids of each sentence without [CLS] and [SEP]. No sentence is empty
    lengths    number of tokens of each sentence
    starts     (N + 1,) index of the first sentence of each of the N documents, followed by the number of sentences.
               Document d consists of the sentences from starts[d] to starts[d + 1] (exclusive). No document is empty
    """

    def __init__(self, sentences: Sequence[NDArray[np.int64]], lengths: ArrayLike, starts: ArrayLike) -> None:
        self.sentences = sentences
        self.lengths: NDArray[np.int64] = np.asarray(lengths)
        self.starts: NDArray[np.int64] = np.asarray(starts)
        assert self.starts[0] == 0
        assert self.starts[-1] == len(sentences) == len(self.lengths)
        assert (np.diff(self.starts) > 0).all()
        assert (self.lengths > 0).all()

    @classmethod
    def of(
        cls, documents: Sequence[Sequence[str]], tokenizer: Tokenizer, cache: Path | None = None
    ) -> TokenizedDocuments:
        """Tokenize documents. Each document is a list of sentences.

        If a directory `cache` is given, the token ids are stored there and used again by later calls.
        """
        texts = ConcatenatedTexts(documents)
        encoded: Sequence[ArrayLike]
        if cache is None:
            encoded = encode_all(tokenizer, list(texts))
            lengths = np.array([len(ids) for ids in encoded])
        else:
            encoded = store = TokenStore.of(texts, tokenizer, cache)
            lengths = store.lengths
        lengths = lengths - 2  # Do not count [CLS] and [SEP] at the ends of each sentence.
        document_of = np.repeat(np.arange(len(documents)), np.fromiter(map(len, documents), np.int64, len(documents)))
        # Some sentences have no tokens, for example a sentence of control characters.
        kept = np.flatnonzero(lengths > 0)
        if not len(kept):
            raise UserError(
                f"the tokenizer produced no tokens for the {len(documents):,} documents; give texts with words"
            )
        starts = np.concatenate([[0], np.flatnonzero(np.diff(document_of[kept])) + 1, [len(kept)]])

        def bare(index: int) -> NDArray[np.int64]:
            return np.asarray(encoded[index], dtype=np.int64)[1:-1]

        rows: Sequence[int] = kept.tolist() if len(kept) < len(lengths) else range(len(kept))
        return cls(Lazy(rows, bare), lengths[kept], starts)

    def __len__(self) -> int:
        return len(self.starts) - 1
