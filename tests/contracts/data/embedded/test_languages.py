"""Built-in corpus of 60 languages: balanced, unambiguous, with held-out combinations."""

import re
from collections import Counter

import pytest

from manyheads.data.embedded import languages as module
from manyheads.data.embedded.languages import LANGUAGES, cldr_languages
from manyheads.data.readers.labeled import Labeled
from manyheads.data.readers.splits import SplitData

FEW = ["en", "ja", "de", "ru"]


@pytest.fixture(scope="module")
def corpora() -> list[SplitData[Labeled]]:
    """Four of the languages, twice: the whole corpus takes many seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LANGUAGES", FEW)
        return [cldr_languages(size=12_000), cldr_languages(size=12_000)]


@pytest.fixture
def corpus(corpora: list[SplitData[Labeled]]) -> SplitData[Labeled]:
    return corpora[0]


def test_phrases_have_one_language_and_are_unique(corpus: SplitData[Labeled]) -> None:
    texts = [text for part in corpus.known.values() for text in part.texts]
    assert len(set(texts)) == len(texts), "no phrase occurs twice, in one split or in two"
    assert all(any(c.isalpha() for c in text) for text in texts)
    assert all(
        max(map(ord, t)) > 0x24F or len(max(re.findall(r"[A-Za-z\u00c0-\u024f]+", t), key=len)) > 3 for t in texts
    )
    counts = Counter(corpus.train.labels)
    assert sorted(counts) == sorted(FEW)
    assert min(counts.values()) > 100
    assert set(corpus.known["test"].labels) == set(corpus.validation.labels) == set(FEW)


def test_combinations_are_held_out_even_inside_longer_phrases(corpus: SplitData[Labeled]) -> None:
    train = "\n".join(corpus.train.texts)
    short = [text for text in corpus.known["test"].texts if len(text) > 12 and not any(mark in text for mark in ":;–(")]
    assert len(short) > 5
    inside = [text for text in short if f"{text}\n" in train or f"\n{text}" in train]
    assert not inside


def test_the_corpus_is_reproducible(corpora: list[SplitData[Labeled]]) -> None:
    one, two = corpora
    assert [(part.texts, part.labels) for part in one.known.values()] == [
        (part.texts, part.labels) for part in two.known.values()
    ]


def test_sixty_languages_can_be_written() -> None:
    from babel import Locale

    assert len({Locale.parse(language).language for language in LANGUAGES}) == 60


def test_a_too_small_corpus_is_reported() -> None:
    with pytest.raises(ValueError, match="at least 720"):
        cldr_languages(size=600)
