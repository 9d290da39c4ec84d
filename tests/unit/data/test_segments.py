"""Encoding in segments gives the same ids as encoding the whole text with the library."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from manyheads.data.text import segments
from manyheads.data.text.segments import CachedTokenizer, encoder, is_separable
from manyheads.data.text.tokenizers import train_bpe, train_byte_bpe

WORDS = [
    "the",
    "cat's",
    "don't",
    "it'll",
    "x_y",
    "3.14",
    "½",
    "Grüße",
    "世界",
    "é",
    "<|endoftext|>",
    "!?",
    "'s",
    "a" * 50,
]
BLANKS = [
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\n",
    " \n",
    "\n ",
    "\t",
    "\x0b",
    "\x1c",
    "\x85",
    "\xa0",
    " \u3000",
    "\u200b",
    "\u180e",
    "",
]
DTYPE = np.dtype(np.uint16)


def texts(seed: int, count: int = 40) -> list[str]:
    rng = Random(seed)
    return ["".join(rng.choice(WORDS) + rng.choice(BLANKS) for _ in range(rng.randrange(80))) for _ in range(count)]


TOKENIZER = train_byte_bpe(texts(0), 400)


def test_ids_equal_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_CACHED", 30)  # and what is known is forgotten now and then
    encode = encoder(TOKENIZER, DTYPE)
    assert isinstance(encode, CachedTokenizer)
    for seed in range(20):
        given = texts(seed)
        assert [ids.tolist() for ids in encode(given)] == [TOKENIZER.encode(text).ids for text in given]


def test_known_texts_are_not_encoded_again() -> None:
    calls = list[str]()

    def encode(given: list[str]) -> list[np.ndarray]:
        calls.extend(given)
        return [np.array(TOKENIZER.encode(text).ids, DTYPE) for text in given]

    known = CachedTokenizer(encode, DTYPE)  # type: ignore[arg-type]
    text = "the cat sat on the mat " * 20 + "the end"
    for _ in range(2):
        assert known([text])[0].tolist() == TOKENIZER.encode(text).ids
    assert calls[-1] == "the"  # the head alone
    assert sum(map(len, calls)) < len(text)


def test_a_tokenizer_without_independent_chunks_is_left_alone() -> None:
    assert is_separable(TOKENIZER)

    def changed(**parts: object) -> Tokenizer:
        copy = Tokenizer.from_str(TOKENIZER.to_str())
        copy.encode_special_tokens = True
        for name, part in parts.items():
            setattr(copy, name, part)
        return copy

    named = changed()
    named.add_tokens([AddedToken("the cat", special=False)])
    cut = changed()
    cut.enable_truncation(5)
    dropping = changed()
    dropping.model.dropout = 0.1
    others = [
        changed(encode_special_tokens=False),
        changed(normalizer=normalizers.NFC()),
        changed(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        changed(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        Tokenizer(models.BPE()), train_bpe(texts(0), 200), named, cut, dropping,
    ]  # fmt: skip
    assert not any(map(is_separable, others))
