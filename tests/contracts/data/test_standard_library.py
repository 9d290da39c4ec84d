"""The documents of Python's standard library."""

from __future__ import annotations

from manyheads.data.embedded.standard_library import documentation


def test_the_standard_library_text_has_no_repetitions() -> None:
    documents = documentation().documents
    said = [sentence for document in documents for sentence in document]
    assert len(documents) > 150
    assert len(set(said)) == len(said) > 8000
    assert sum(map(len, said)) > 800_000
    assert sum(" the " in sentence for sentence in said) / len(said) > 0.3
