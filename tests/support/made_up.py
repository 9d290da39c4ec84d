"""Benchmark work without computation and without torch; its sides are prepared in separate processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.work import Prepared, Side, Work


def quick(case: float, setting: str, threads: int) -> Prepared:
    return Prepared(lambda: None, case)


@contextmanager
def marked() -> Iterator[None]:
    os.environ["MARKED"] = "yes"
    yield


def mark(case: float, setting: str, threads: int) -> Prepared:
    return Prepared(lambda: None, os.environ.get("MARKED", "no"))


def failing(case: float, setting: str, threads: int) -> Prepared:
    raise OSError("no such file\nmore")


def dying(case: float, setting: str, threads: int) -> Prepared:
    os._exit(11)


def dying_in_its_turn(case: float, setting: str, threads: int) -> Prepared:
    return Prepared(lambda: os._exit(11), case)


def openvino(case: tuple[str, Any], setting: str, threads: int) -> Prepared:
    """A work of the bench on a tiny model, whose layers are compressed as larger ones are."""
    import benchmarks.peers.openvino as peer
    from benchmarks.table import work

    name, tiny = case
    peer.LEAST_COMPRESSED = 64
    return work(name).peers["openvino"].prepare(tiny, setting, threads)


def apart(ours: float, theirs: float) -> float:
    return abs(ours - theirs)


def one(case: float) -> float:
    return 1.0


def seconds(case: float, precision: str, ceilings: Any) -> float:
    return 0.5


MADE_UP = Work(
    unit="things/s", cases={"a": 1.0}, amount=one, least=seconds,
    ours=Side({"float32": "float32", "int8": "int8"}, quick),
    peers={
        "openvino": Side({"float32": "float32", "int8": "int8"}, quick),
        "ctranslate2": Side({"int8": "int8"}, failing),
    },
    error=apart, bounds={"int8": 0.5},
)  # fmt: skip
