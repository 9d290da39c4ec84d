"""A process for every side, so that no library's threads, memory or settings reach another's; they take turns.

A worker that has had its turn is left alone until its threads sleep: an idle OpenMP team spins for 0.2 s.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.work import Prepared, Side

SETTLE = 0.3  # seconds before a turn
TURN = 1.0  # seconds: a shorter run is repeated until its turn has lasted so long


class Failed(Exception):
    """Return one line about a failure in a worker."""


class Worker:
    """A side in a separate process."""

    def __init__(self, side: Side, threads: int, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, side, threads, folder), daemon=True)
        self._process.start()
        other.close()

    def prepare(self, case: Any, setting: str) -> Any:
        """Return the side's output for a case. Drops the state prepared for another case."""
        return self._ask("prepare", case, setting)

    def seconds(self, setting: str, turn: float | None = None) -> float:
        """Of one run: the mean of a turn, which lasts at least so many seconds (default: TURN)."""
        time.sleep(SETTLE)
        took: float = self._ask("time", setting, TURN if turn is None else turn)
        return took

    def forget(self) -> None:
        """Give the memory of a case back."""
        self._ask("forget")

    def _ask(self, *question: Any) -> Any:
        try:
            self._pipe.send(question)
            fine, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise Failed(f"its process ended with status {self._process.exitcode}") from None
        if not fine:
            raise Failed(answer)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.join()


@contextmanager
def workers(sides: dict[str, Side], threads: int) -> Iterator[dict[str, Worker]]:
    """A worker for every side, ended with the block; and with it goes what they have written."""
    started: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, side in sides.items():
                started[name] = Worker(side, threads, folder)
            yield started
        finally:
            for worker in started.values():
                worker.close()


def _serve(pipe: Connection, side: Side, threads: int, folder: str) -> None:
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends this
    os.dup2(2, 1)  # output of libraries is not part of the result
    warnings.simplefilter("ignore")  # of libraries, on how each was converted
    with side.within():
        _answer(pipe, side, threads)


def _answer(pipe: Connection, side: Side, threads: int) -> None:
    prepared: dict[str, Prepared] = {}
    while True:
        try:
            name, *given = pipe.recv()
        except EOFError:
            return
        try:
            answer: Any = None
            if name == "prepare":
                case, setting = given
                prepared[setting] = side.prepare(case, setting, threads)
                answer = prepared[setting].output
            elif name == "time":
                answer = _turn(prepared[given[0]], given[1])
            else:
                prepared.clear()
            pipe.send((True, answer))
        except Exception as error:
            traceback.print_exc()
            pipe.send((False, f"{type(error).__name__}: {error}".splitlines()[0]))


def _turn(prepared: Prepared, least: float) -> float:
    """Seconds of one run, from as many as fill a turn."""
    done, began = 0.0, time.perf_counter()
    while True:
        share = prepared.run()
        done += 1.0 if share is None else share
        if (took := time.perf_counter() - began) >= least:
            return took / done
