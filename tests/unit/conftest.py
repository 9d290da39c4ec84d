"""A unit test takes at most half a second of processor time, on a machine as fast as `REFERENCE` says."""

from __future__ import annotations

import importlib
import time
from collections.abc import Generator

import pytest

LIMIT = 0.5  # seconds of the test's own call; fixtures do not count
REFERENCE = 0.045  # seconds that `_loop` takes on a 2026 cloud core; slower and busier machines get more time


@pytest.fixture(autouse=True, scope="session")
def imported_before_the_first_test() -> None:
    """Import what the package imports late, which would count for the first test that needs it."""
    for name in ("matplotlib.figure", "rich.progress", "torch._dynamo", "torch.utils.tensorboard"):
        importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that exceeds the limit, unless its marker says that it compiles."""
    before = time.process_time()
    result = yield
    seconds = time.process_time() - before
    if seconds > LIMIT and item.get_closest_marker("compiles") is None:
        limit = LIMIT * max(1.0, _loop() / REFERENCE)
        if seconds > limit:
            pytest.fail(f"{seconds:.2f} s of processor time, expected at most {limit:.2f}: shrink the test or move it")
    return result


def _loop() -> float:
    """Return the seconds of processor time that a million additions take now."""
    before, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number * number
    return time.process_time() - before
