"""Token stream and its blocks: each token once, in an order that depends only on seed and epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from manyheads.data.readers.texts import Texts
from manyheads.data.text.blocks import block_starts
from manyheads.data.text.store import TokenStream
from manyheads.data.text.tokenizers import END_OF_TEXT, train_byte_bpe, train_character


def test_a_stream_separates_texts_by_the_end_token(tmp_path: Path) -> None:
    texts = ["one two\n", f"{END_OF_TEXT} is text here", "three"]
    tokenizer = train_character(texts)
    end = tokenizer.token_to_id(END_OF_TEXT)
    expected = [i for text in texts for i in [end, *tokenizer.encode(text).ids]]
    stream = TokenStream.of(Texts(texts), tokenizer, end, tmp_path)
    assert stream[:].tolist() == expected
    assert expected.count(end) == 3
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    assert TokenStream.of(Texts(texts), tokenizer, end, tmp_path)[:].tolist() == expected
    assert file.stat().st_mtime_ns == written, "tokenized once"
    plain = TokenStream.of(Texts(texts), tokenizer, None, tmp_path)
    assert plain[:].tolist() == [i for text in texts for i in tokenizer.encode(text).ids]
    assert tokenizer.post_processor is None


def test_a_byte_stream_decodes_to_its_texts(tmp_path: Path) -> None:
    texts = ["Grüße 👩‍🚀\n", "  def f(x):\n    return x\n"]
    tokenizer = train_byte_bpe(texts, 259)
    stream = TokenStream.of(Texts(texts), tokenizer, tokenizer.token_to_id(END_OF_TEXT), tmp_path)
    assert tokenizer.decode(stream[:].tolist(), skip_special_tokens=False) == END_OF_TEXT + END_OF_TEXT.join(texts)


@pytest.mark.parametrize(("tokens", "block"), [(100, 7), (8, 7), (9, 1), (2, 1)])
def test_consecutive_blocks_cover_every_token_once(tokens: int, block: int) -> None:
    places = set()
    for epoch in range(30):
        starts = block_starts(tokens, block, seed=1, epoch=epoch, random=False)[:]
        predicted = Counter(t for start in starts.tolist() for t in range(start + 1, start + block + 1))
        assert max(predicted) < tokens
        assert set(predicted.values()) == {1}
        assert len(predicted) > tokens - 1 - 2 * block
        places |= {int(start) for start in starts}
    assert places == set(range(tokens - block)), "over the epochs a block begins everywhere"


def test_random_blocks_start_anywhere() -> None:
    starts = [block_starts(100, 7, seed=1, epoch=epoch, random=True)[:] for epoch in range(200)]
    assert {len(each) for each in starts} == {14}
    assert set(np.concatenate(starts).tolist()) == set(range(93))


@pytest.mark.parametrize("random", [True, False])
def test_order_depends_on_seed_and_epoch(random: bool) -> None:
    one = block_starts(1000, 8, seed=3, epoch=5, random=random)[:]
    np.random.seed(0)
    assert one.tolist() == block_starts(1000, 8, seed=3, epoch=5, random=random)[:].tolist()
    for seed, epoch in ((4, 5), (3, 6)):
        assert one.tolist() != block_starts(1000, 8, seed=seed, epoch=epoch, random=random)[:].tolist()
    if not random:
        assert one.tolist() != sorted(one.tolist())


def test_a_too_short_text_is_refused() -> None:
    with pytest.raises(ValueError, match="the text has 7 tokens, but a block requires 8"):
        block_starts(7, 7, seed=1, epoch=0, random=True)[:]
