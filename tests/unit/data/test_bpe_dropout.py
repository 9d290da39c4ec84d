"""BPE dropout: seeded, lossless, and with the probabilities of the paper's algorithm."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from manyheads.data.text.bpe_dropout import BPEDropout
from manyheads.data.text.tokenizers import train_bpe, train_unigram
from manyheads.errors import UserError

WORDS = ["the", "lower", "newest", "widest", "low", "new", "wide", "lowest", "newer", "quick", "brown", "foxes", "dogs"]
TEXTS = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 9)) for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe(TEXTS, 90)


def ids(tokenizer: Tokenizer, text: str) -> Any:
    return np.array(tokenizer.encode(text).ids)


def test_divisions_are_lossless_and_depend_on_the_seed_alone(tokenizer: Tokenizer) -> None:
    dropout = BPEDropout(tokenizer, 0.3, seed=1)
    found = [dropout(ids(tokenizer, text), (0, row)) for row, text in enumerate(TEXTS)]
    assert [tokenizer.decode(each.tolist()) for each in found] == TEXTS
    assert len({len(each) for each in found}) > 1
    again = BPEDropout(tokenizer, 0.3, seed=1)
    for row in reversed(range(len(TEXTS))):
        np.testing.assert_array_equal(again(ids(tokenizer, TEXTS[row]), (0, row)), found[row])
    assert any(len(again(ids(tokenizer, text), (1, row))) != len(found[row]) for row, text in enumerate(TEXTS))


def test_rates_zero_and_one_are_whole_merges_and_characters(tokenizer: Tokenizer) -> None:
    for text in TEXTS[:5]:
        plain = ids(tokenizer, text)
        np.testing.assert_array_equal(BPEDropout(tokenizer, 0.0, 0)(plain, (0,)), plain)
        characters = BPEDropout(tokenizer, 1.0, 0)(plain, (0,))
        assert len(characters) == len(text.replace(" ", "")) + len(text.split()) + 1  # a mark per word, the end token


def test_divisions_have_the_probabilities_of_the_paper() -> None:
    model = models.BPE(
        {"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5}, [("a", "b"), ("ab", "c")], unk_token="<unk>"
    )
    whole, rate, counts = np.array([5]), 0.3, Counter[int]()
    for seed in range(100):
        dropout = BPEDropout(Tokenizer(model), rate, seed)
        counts.update(len(dropout(whole, (text,))) for text in range(32))
    # first the merge of a and b is skipped or not, then that of ab and c
    expected = {3: rate, 2: (1 - rate) * rate, 1: (1 - rate) ** 2}
    for length, probability in expected.items():
        assert counts[length] / 3200 == pytest.approx(probability, abs=0.03)


def test_another_tokenizer_is_refused() -> None:
    with pytest.raises(UserError, match="bpe_dropout requires byte-pair encoding, found Unigram"):
        BPEDropout(train_unigram(TEXTS, 60), 0.1, 0)
