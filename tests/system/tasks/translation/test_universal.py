"""Universal Transformers with each halting method in the translation recipe."""

from pathlib import Path

import pytest

from tests.contracts.tasks.translation.conftest import write_corpus
from tests.contracts.tasks.translation.test_universal import translates_text


@pytest.mark.parametrize(
    "halting", ["basic", *(pytest.param(name, marks=pytest.mark.slow) for name in ("accumulated", "fixed"))]
)
def test_a_universal_transformer_translates_text(tmp_path: Path, halting: str) -> None:
    translates_text(write_corpus(tmp_path / "corpus"), tmp_path, halting)
