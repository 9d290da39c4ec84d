"""Limit of half a second of processor time for each unit test, without its fixtures."""

from __future__ import annotations

import importlib
from collections.abc import Generator

import pytest

from tests.support.processor_time import LimitExceeded, watched


@pytest.fixture(autouse=True, scope="session")
def imported_before_the_first_test() -> None:
    """Import what the package imports late, which would count for the first test that needs it."""
    for name in ("matplotlib.figure", "pyarrow.parquet", "rich.progress", "torch._dynamo", "torch.utils.tensorboard"):
        importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that exceeds the limit, unless its marker says that it compiles."""
    if item.get_closest_marker("compiles") is not None:
        return (yield)
    try:
        with watched():
            return (yield)
    except LimitExceeded as error:
        pytest.fail(f"{error}: shrink the test or move it")
