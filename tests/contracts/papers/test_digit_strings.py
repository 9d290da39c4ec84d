"""Digit strings: targets equal results of Python's integers and slices, and depend only on the item's name."""

import sys
from typing import Any

import pytest

from papers.universal.digit_strings import algorithmic_pairs, digit_tokenizer

DRAWN: dict[str, Any] = {"seed": 1, "split": "train"}


def test_outputs_equal_the_algorithm() -> None:
    for source, target in pairs_of("copy"):
        assert target == source
    for source, target in pairs_of("reverse"):
        assert target == "".join(reversed(source))
    for source, target in pairs_of("addition"):
        first, second = source.split("+")
        assert first
        assert second
        assert int(target[::-1]) == int(first[::-1]) + int(second[::-1])


def test_overlong_numbers_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = algorithmic_pairs("addition", 3, 12_000, shortest=12_000, **DRAWN)
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        for source, target in zip(pairs.sources, pairs.targets, strict=True):
            first, second = source.split("+")
            assert target == str(int(first[::-1]) + int(second[::-1]))[::-1]
    finally:
        sys.set_int_max_str_digits(before)


def pairs_of(algorithm: Any, count: int = 300, longest: int = 12) -> list[tuple[str, str]]:
    pairs = algorithmic_pairs(algorithm, count, longest, **DRAWN)
    assert len(pairs) == count
    return list(zip(pairs.sources, pairs.targets, strict=True))


def test_lengths_are_uniform_and_complete() -> None:
    lengths = [len(source) for source, _ in pairs_of("copy", 2400)]
    counts = [lengths.count(n) for n in range(1, 13)]
    assert min(counts) > 150  # of 200
    assert max(counts) < 260
    assert {len(source) for source, _ in pairs_of("addition")} == set(range(3, 13))
    exact = algorithmic_pairs("reverse", 20, 400, shortest=400, **DRAWN)
    assert {len(source) for source in exact.sources} == {400}


def test_equal_names_give_equal_digits() -> None:
    again = algorithmic_pairs("copy", 50, 12, **DRAWN)
    assert again == algorithmic_pairs("copy", 50, 12, **DRAWN)
    for seed, split in ((2, "train"), (1, "validation")):
        assert again.sources != algorithmic_pairs("copy", 50, 12, seed=seed, split=split).sources


def test_impossible_lengths() -> None:
    with pytest.raises(ValueError, match="expected addition of 3 characters or more, minimum first; found 2 to 9"):
        algorithmic_pairs("addition", 5, 9, shortest=2, **DRAWN)
    with pytest.raises(ValueError, match="expected copy of 1 characters or more, minimum first; found 1 to 0"):
        algorithmic_pairs("copy", 5, 0, **DRAWN)


def test_the_character_tokenizer_is_lossless() -> None:
    tokenizer = digit_tokenizer()
    assert tokenizer.get_vocab_size() == 14
    encoding = tokenizer.encode("190+7")
    assert encoding.tokens == ["1", "9", "0", "+", "7", "</s>"]
    assert tokenizer.decode(encoding.ids) == "190+7"
    assert tokenizer.encode("1a").tokens == ["1", "<unk>", "</s>"]
