"""Embedded tagged phrases: equal results in every process."""

import pytest

from manyheads.data.embedded.tags import cldr_tagged
from manyheads.data.readers.conll import Tagged
from manyheads.data.readers.splits import SplitData


@pytest.fixture(scope="module")
def corpus() -> SplitData[Tagged]:
    return cldr_tagged("en", seed=3, size=2000)


def test_results_are_deterministic_or_reported_otherwise(corpus: SplitData[Tagged]) -> None:
    assert cldr_tagged("en", seed=3, size=2000) == corpus
    assert cldr_tagged("en", seed=4, size=2000).test != corpus.test
    with pytest.raises(ValueError, match="a locale with spaces between words"):
        cldr_tagged("ja", size=8000)
    with pytest.raises(ValueError, match="unknown locale 'xx'"):
        cldr_tagged("xx")
    with pytest.raises(ValueError, match="at least 1,000"):
        cldr_tagged(size=10)
