"""Real corpora beside the repository, where they are there."""

from pathlib import Path

import pytest

from manyheads.data.parallel import Pairs, read_parallel


@pytest.fixture(scope="session")
def multi30k() -> Pairs:
    """The 29,000 German-English training pairs."""
    folder = Path(__file__).parents[2].parent / "shared" / "data" / "multi30k"
    if not folder.is_dir():
        pytest.skip(f"needs Multi30k in {folder}")
    return read_parallel(folder / "train", "de", "en")
