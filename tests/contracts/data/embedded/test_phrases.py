"""Embedded translation corpus: consistent, inferable, deterministic, with held-out combinations."""

from random import Random

import pytest
from babel import Locale
from babel.dates import format_date

from manyheads.data.embedded.phrases import Writer, cldr_pairs, locale_of, split_of
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData


@pytest.fixture(scope="module")
def corpus() -> SplitData[Pairs]:
    return cldr_pairs("en", "de", size=6000)


def test_sizes_are_right_with_one_target_per_source(corpus: SplitData[Pairs]) -> None:
    assert [len(part) for part in corpus.known.values()] == [6000, 200, 200]
    sources = [s for part in corpus.known.values() for s in part.sources]
    assert len(set(sources)) == len(sources)
    for part in corpus.known.values():
        for text in (*part.sources, *part.targets):
            assert text == " ".join(text.split())
            assert not set(text) & set("\u00a0\u202f\u2009")


def test_texts_equal_babel(corpus: SplitData[Pairs]) -> None:
    pairs = {s: t for part in corpus.known.values() for s, t in zip(part.sources, part.targets, strict=True)}
    writer = Writer(locale_of("en"), locale_of("de"), Random(0))
    days = [f for f in writer._dates() if f.needs[0].startswith("date full")]
    assert len(days) == 1000
    assert all(f.target.endswith(f.source[-4:]) for f in days)  # the year
    for code in ("DE", "FR", "US"):
        assert pairs[Locale("en").territories[code]] == Locale("de").territories[code]
    assert format_date(writer._day(), "full", "de").split(",")[0] in {f.target.split(",")[0] for f in days}


def test_combinations_are_held_out_even_inside_longer_phrases(corpus: SplitData[Pairs]) -> None:
    fragments = [f for kind in Writer(locale_of("en"), locale_of("de"), Random(0)).kinds().values() for f in kind]
    held = [f.source for f in fragments if split_of(f.source) != "train" and len(f.source) > 14]
    text = "\n".join(corpus.train.sources)
    # a date, list or amount may still be the tail of a longer one ("1,234 yen" ends in "234 yen"): whole phrases count
    phrases = {part for line in text.split("\n") for joint in (": ", " – ", "; ") for part in line.split(joint)}
    assert len(held) > 1000
    assert not phrases.intersection(held)


def test_options_without_a_default_are_required(corpus: SplitData[Pairs]) -> None:
    writer = Writer(locale_of("en"), locale_of("de"), Random(0))
    train = set(zip(corpus.train.sources, corpus.train.targets, strict=True))
    assert {(name.source, name.target) for name in writer.names} <= train
    trained = {word.strip("():;,") for source in corpus.train.sources for word in source.split()}
    unseen = {
        word
        for part in (corpus.validation, corpus.known["test"])
        for source in part.sources
        for word in (w.strip("():;,") for w in source.split())
        if word not in trained and not any(c.isdigit() for c in word)
    }
    assert not unseen


def test_wrong_locales_are_reported() -> None:
    with pytest.raises(ValueError, match="unknown locale 'dee'; the nearest is '(de|ee)'"):
        cldr_pairs("en", "dee")
    with pytest.raises(ValueError, match="unknown locale 'pt_XX'; the nearest is 'pt_"):
        cldr_pairs("pt_XX", "de")
    with pytest.raises(ValueError, match="two different locales"):
        cldr_pairs("en", "en")
    with pytest.raises(ValueError, match="size=10"):
        cldr_pairs(size=10)
