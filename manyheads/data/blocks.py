"""Running text as one stream of token ids, and blocks of it to train on: all of one length, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, processors

from manyheads.data.store import TokenStore
from manyheads.data.tokenizers import with_special_tokens

Stream = NDArray[np.unsignedinteger | np.signedinteger]


def token_stream(texts: Sequence[str], tokenizer: Tokenizer, end: int | None, cache: Path) -> Stream:
    """The ids of all texts, one behind the other, in a memory-mapped file of the directory `cache`: tokenised once.

    end  the token that separates texts, and comes before the first one, where the vocabulary has one
    """
    if end is not None:
        token = tokenizer.id_to_token(end)
        marked = with_special_tokens(tokenizer, as_text=tokenizer.encode_special_tokens)
        marked.post_processor = processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, end)])
        tokenizer = marked
    return TokenStore.of(texts, tokenizer, cache).stream


def block_starts(tokens: int, block: int, *, seed: int, epoch: int, random: bool) -> NDArray[np.int64]:
    """Where the blocks of an epoch begin in a stream; order and places depend on (seed, epoch) alone.

    A block reads tokens [start, start + block) and predicts [start + 1, start + block + 1).
    random  True: anywhere, one place as likely as another, as many as the stream has blocks. False: one behind the
            other, from another first place in every epoch, shuffled: every token is predicted once (but for less than
            a block at each end).
    Raises ValueError for a stream that is shorter than a block.
    """
    if tokens <= block:
        raise ValueError(
            f"the text has {tokens:,} tokens, a block needs {block + 1:,}: give more text or a smaller block"
        )
    dice = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch])))
    last = tokens - block - 1  # where a block can begin
    if random:
        return dice.integers(last + 1, size=(tokens - 1) // block)
    first = int(dice.integers(min(block, last + 1)))
    return dice.permutation(np.arange(first, last + 1, block))
