"""Limit of processor time, on a simulated clock."""

import gc

import pytest

from tests.support.processor_time import REFERENCE, LimitExceeded, watched


def spend(seconds: float, collection: float = 0.0, **slower: float) -> None:
    """Let so many seconds pass, and those of a collection of all objects, where some probes are slower."""
    now = [0.0]

    with watched(lambda: now[0], lambda: {name: took * slower.get(name, 1) for name, took in REFERENCE.items()}):
        of_all, told = {"generation": 2}, [*gc.callbacks]
        for callback in told:
            callback("start", of_all)
        now[0] += collection
        for callback in told:
            callback("stop", of_all)
        now[0] += seconds


def test_clearly_slow_unit_tests_fail() -> None:
    with pytest.raises(LimitExceeded, match=r"^1\.00 s of processor time, expected at most 0\.90"):
        spend(1.0)
    with pytest.raises(LimitExceeded):
        spend(2.8, counting=3, filling=2)


@pytest.mark.parametrize("slow", list(REFERENCE))
def test_a_slow_or_busy_machine_gets_more_time(slow: str) -> None:
    spend(2 * 0.4)
    spend(3 * 2 * 0.4, **{slow: 3})


def test_garbage_collection_does_not_count() -> None:
    spend(0.4, collection=2.0)
    with pytest.raises(LimitExceeded):
        spend(1.4, collection=2.0)


def test_errors_of_watched_runs_come_first() -> None:
    with pytest.raises(ZeroDivisionError), watched(iter((0.0, 9.0)).__next__):
        _ = 1 / 0
