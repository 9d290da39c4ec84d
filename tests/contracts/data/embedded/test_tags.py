"""Built-in corpus for tagging: correct tags, held-out combinations, deterministic phrases."""

from datetime import date

import pytest
from babel import Locale
from babel.dates import format_date

from manyheads.data.embedded.tags import NAMES, cldr_tagged
from manyheads.data.readers.conll import Tagged, fault_of
from manyheads.data.readers.splits import SplitData
from manyheads.tasks.tagging.metrics import entities


@pytest.fixture(scope="module")
def corpus() -> SplitData[Tagged]:
    return cldr_tagged("en", seed=3, size=2000)


def parts(tagged: Tagged) -> list[list[tuple[str, str]]]:
    """(kind, text) of every entity of every phrase."""
    return [
        [(e.kind, " ".join(words[e.start : e.end])) for e in entities(tags)]
        for words, tags in zip(tagged.words, tagged.tags, strict=True)
    ]


def test_sizes_are_right_with_valid_tags(corpus: SplitData[Tagged]) -> None:
    assert [len(part) for part in corpus.known.values()] == [2000, 125, 125]
    phrases = [" ".join(words) for part in corpus.known.values() for words in part.words]
    assert len(set(phrases)) == len(phrases)
    kinds = {"DATE", "TIME", "DURATION", "MONEY", "QUANTITY", "NUMBER", "PERCENT", "PLACE", "LANGUAGE"}
    for part in corpus.known.values():
        assert not any(fault_of(tags) for tags in part.tags)
        assert {tag[2:] for tag in part.labels} == {"", *kinds}


def test_fragments_equal_babel(corpus: SplitData[Tagged]) -> None:
    pieces = {part for phrase in parts(corpus.train) for part in phrase}
    english = Locale("en")
    territories = {name for code, name in english.territories.items() if code.isalpha()}
    assert {("PLACE", "Germany"), ("PLACE", "Trinidad & Tobago"), ("LANGUAGE", "Danish")} <= pieces
    assert {text for kind, text in pieces if kind == "PLACE" and text.isalpha()} <= territories
    assert {text for kind, text in pieces if kind == "LANGUAGE" and text.isalpha()} <= set(english.languages.values())
    months = {format_date(date(2026, m, 1), "MMM", "en") for m in range(1, 13)}
    assert all(any(m in text for m in months) or "/" in text for kind, text in pieces if kind == "DATE")


def test_combinations_are_held_out_but_not_names(corpus: SplitData[Tagged]) -> None:
    trained = {part for phrase in parts(corpus.train) for part in phrase}
    for held in (corpus.validation, corpus.known["test"]):
        pieces = {part for phrase in parts(held) for part in phrase}
        assert {part for part in pieces if part[0] in NAMES} <= trained
        others = {part for part in pieces if part[0] not in NAMES}
        assert len(others) > 50
        assert not others & trained
