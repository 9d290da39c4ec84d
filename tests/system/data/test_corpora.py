"""Batches and vocabularies of real corpora."""

import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyheads.data.batching import token_batches
from manyheads.data.readers.conll import Tagged
from manyheads.data.readers.labeled import Labeled
from manyheads.data.readers.parallel import Pairs
from manyheads.data.text import tokenizers
from manyheads.data.text.tokenizers import encode_all, train_bpe
from tests.unit.data.test_batching import padding
from tests.unit.data.test_conll import read_splits
from tests.unit.data.test_labeled import read_labeled_splits


def test_padding_on_multi30k(multi30k: Pairs) -> None:
    tokenizer = train_bpe([*multi30k.sources, *multi30k.targets], 10_000)
    german, english = (
        np.array([len(ids) for ids in encode_all(tokenizer, side)]) for side in (multi30k.sources, multi30k.targets)
    )
    for source, target in ((german, english), (english, german)):
        for budget in (2048, 4096):
            for epoch in range(3):
                batches = token_batches(source, target, budget, seed=0, epoch=epoch)
                assert padding(source, target, batches) < 0.05


def test_multi30k_round_trip_and_size(multi30k: Pairs) -> None:
    texts = [*multi30k.sources, *multi30k.targets]
    tokenizer = train_bpe(texts, 10_000)
    assert tokenizer.get_vocab_size() == 10_000
    expected = [unicodedata.normalize("NFC", re.sub(r"[ \t]+", " ", t).strip()) for t in texts]
    assert tokenizer.decode_batch(encode_all(tokenizer, texts)) == expected


@pytest.mark.parametrize(("language", "size", "published"), [("de", 19_194, 19_214), ("en", 10_832, 10_837)])
def test_word_vocabularies_equal_the_tutorials(
    real_data: Callable[[str], Path], language: str, size: int, published: int
) -> None:
    texts = (real_data("multi30k") / f"train.{language}").read_text(encoding="utf-8").split("\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = tokenizers.train_words(texts, published, language, begin=False)
    assert tokenizer.get_vocab_size() == size
    frequent = Counter(token for text in texts for token in tokenizer.encode(text).tokens[:-1])
    first = sorted(frequent, key=lambda token: (-frequent[token], token))[:500]  # as torchtext numbers them
    assert [tokenizer.id_to_token(i) for i in range(504)] == ["<unk>", "<pad>", "<bos>", "<eos>", *first]


def test_conll_2003(real_data: Callable[[str], Path]) -> None:
    train, validation, test, *_ = read_splits(real_data("conll2003"))
    assert test is not None
    assert [len(split) for split in (train, validation, test)] == [14_041, 3_250, 3_453]
    starts = [tag[2:] for tags in train.tags for tag in tags if tag.startswith("B-")]
    assert {kind: starts.count(kind) for kind in set(starts)} == {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}
    validation.check_labels(train.labels)
    assert isinstance(train, Tagged)


@pytest.mark.parametrize(
    ("name", "counts", "labels"),
    [
        ("sst2", (60_614, 6_735, 872), {"negative", "positive"}),
        ("mrpc", (None, None, 1_725), {"negative", "positive"}),
    ],
)
def test_real_data_are_read(
    real_data: Callable[[str], Path], name: str, counts: tuple[Any, ...], labels: set[str]
) -> None:
    labeled = read_labeled_splits(real_data(name), names=("negative", "positive"))
    parts: list[Labeled | None] = [labeled.train, labeled.validation, labeled.test]
    for part, count in zip(parts, counts, strict=True):
        assert part is not None
        assert count is None or len(part) == count
        assert set(part.labels) == labels
    assert (labeled.train.second_texts is not None) == (name == "mrpc")
    if name == "mrpc":
        assert len(labeled.train) + len(labeled.validation) == 4_076
