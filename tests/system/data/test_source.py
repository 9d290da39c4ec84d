"""Embedded data, generated again from a record."""

import json
from typing import Any

import pytest

from manyheads.data.sources.corpora import ParallelSource, TaggedSource
from manyheads.data.sources.recorded import recorded_data
from manyheads.data.sources.running_text import TextSource
from manyheads.data.sources.source import Source
from manyheads.files import fingerprint
from papers.universal.source import DigitSource
from tests.contracts.data.test_source import RUNS


@pytest.mark.parametrize(
    "source",
    [
        ParallelSource(size=1000, seed=2), TaggedSource(size=1000, locale="de"),
        DigitSource(algorithm="addition", size=100, lengths=(5, 9), tested=7), TextSource(),
    ],
    ids=lambda source: source.kind,
)  # fmt: skip
def test_embedded_data_are_reproducible(source: Source[Any]) -> None:
    splits = source.read()
    again = recorded_data({"data": source.describe(splits)}, DigitSource)
    assert again is not None
    assert [*source.content(again.read(), "test")] == [*source.content(splits.test, "test")]
    other = recorded_data({"data": {**source.describe(splits), "seed": 5, "share": 0.3}}, DigitSource)
    assert other is not None
    with pytest.raises(ValueError, match="the built-in corpus: the test data changed since the run"):
        other.read()


@pytest.mark.parametrize(
    "name",
    [
        "addition-lstm", "tagging", "translation-en-de",
        pytest.param("text-classification", marks=pytest.mark.slow),  # phrases of many languages
    ],
)  # fmt: skip
def test_test_data_of_records_are_reproducible(name: str) -> None:
    record = json.loads((RUNS[0].parent / f"{name}.json").read_text(encoding="utf-8"))
    recorded = recorded_data(record, DigitSource)
    assert recorded is not None
    content = recorded.source.content(recorded.read(), "test")
    assert fingerprint(content).startswith(record["data"]["fingerprints"]["test"])
