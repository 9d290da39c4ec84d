"""Runs that are killed during a write."""

import multiprocessing
import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from manyheads.files import LEFTOVER
from manyheads.training.config import TrainingConfig
from tests.contracts.training.test_resume import SETTINGS, outcome, run
from tests.support.toy import ToyTask

HEAVY: dict[str, Any] = {**SETTINGS, "checkpoint_every": 3, "average_every": 5}  # with checkpoints of 12 MB


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    run(out)
    return outcome(out)


def start(out: Path, resume: bool = False) -> BaseProcess:
    """Train in a fork, which has torch imported already."""
    options = {"resume": resume, "task": ToyTask(ballast=3_000_000), "config": TrainingConfig(**HEAVY)}
    process = multiprocessing.get_context("fork").Process(target=run, args=(out,), kwargs=options)
    process.start()
    return process


def test_random_kills_during_writes_lose_nothing(tmp_path):
    began = time.monotonic()
    whole = start(tmp_path / "whole")
    whole.join()
    seconds = time.monotonic() - began
    assert whole.exitcode == 0
    out, state = tmp_path / "run", tmp_path / "run" / "state"
    attempt = killed_while_writing = 0
    while attempt < 4 or (killed_while_writing < 2 and attempt < 12):
        attempt += 1
        process = start(out, resume=True)
        known = set(state.glob("checkpoint-*.json"))
        while process.is_alive() and not set(state.glob("checkpoint-*.json")) - known:
            time.sleep(0.002)  # until it got further than the last time
        time.sleep(random.uniform(0, seconds / 20))  # there is something left for twelve attempts
        while attempt % 2 and process.is_alive() and not list(state.glob(f"{LEFTOVER}*")):
            pass
        process.kill()
        process.join()
        killed_while_writing += bool(list(state.glob(f"{LEFTOVER}*")))
    assert killed_while_writing >= 2
    run(out, resume=True, task=ToyTask(ballast=3_000_000), config=TrainingConfig(**HEAVY))
    assert outcome(out) == outcome(tmp_path / "whole")
    assert not list(state.glob(f"{LEFTOVER}*"))
