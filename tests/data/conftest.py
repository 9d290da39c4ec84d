"""Real corpora, where they are there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from manyheads.data.parallel import Pairs, read_parallel


@pytest.fixture(scope="session")
def multi30k(real_data: Callable[[str], Path]) -> Pairs:
    """The 29,000 German-English training pairs."""
    return read_parallel(real_data("multi30k") / "train", "de", "en")
