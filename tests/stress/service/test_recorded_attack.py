"""tests/stress/attack_service.py: the requests depend only on the seed, and faults are detected."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest

from lab import service_page
from lab.records import records
from tests.stress.attack_service import attack, faults_of
from tests.stress.malformed import KINDS

RECORDS = records("service")


@pytest.mark.parametrize("kind", KINDS)
def test_requests_are_determined_by_the_seed(kind: str) -> None:
    def made(seed: int) -> list[Any]:
        rng = random.Random(seed)
        return [KINDS[kind](rng) for _ in range(50)]

    assert made(1) == made(1)
    assert made(1) != made(2)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["attack"])
def test_recorded_attacks_found_no_fault(record: dict[str, Any]) -> None:
    assert faults_of(record) == []
    kinds = record["malformed"].values()
    assert sum(sum(by.values()) for by in kinds) == int(record["attack"].split()[0].replace(",", ""))
    for part, key, value in (
        (("by_status",), "500", 1), (("malformed", "NULs"), "503", 1), (("malformed", "no JSON"), "none", 1),
        (("good",), "wrong_count", 1), (("schemathesis",), "rc", 1), ((), "files_left_open", 3), ((), "faults", 1),
        ((), "stopped_with", -9),
    ):  # fmt: skip
        worse = copy.deepcopy(record)
        inner = worse
        for name in part:
            inner = inner[name]
        inner[key] = value
        assert len(faults_of(worse)) == 1


def test_the_table_works_without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_page, "records", lambda kind: [])
    assert service_page.attacks() == "No record exists yet."


def test_each_load_of_a_service_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(unit: str, one: float, many: float) -> dict[str, Any]:
        return {"one": {unit: one}, "many": {unit: many, "p99_seconds": 0.256}, "p99_over_batch": 3.5}

    record = {
        "bench": "serving", "clients": 32, "precision": "int8", "hardware": {"threads": 2, "cpu": "Some Processor"},
        "translate": load("requests_per_second", 20.0, 130.0), "complete": load("tokens_per_second", 40.0, 250.0),
    }  # fmt: skip
    monkeypatch.setattr(service_page, "records", lambda kind: [{"bench": "startup"}, record])
    rows = [line for line in service_page.company().splitlines() if line.startswith("|")]
    assert [row.split(" | ")[1:] for row in rows[2:]] == [
        ["20.0", "130.0", "6.5", "0.26 s |"], ["40.0", "250.0", "6.2", "0.26 s |"],
    ]  # fmt: skip
    assert "3.5 times (int8)" in service_page.company()
    monkeypatch.setattr(service_page, "records", lambda kind: [{"bench": "startup"}])
    assert service_page.company() == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_attacks_do_not_stop_the_service(tmp_path: Path) -> None:
    record = attack(requests=800, minutes=0.0, examples=5, seed=random.randrange(2**32), folder=tmp_path)
    assert faults_of(record) == [], record
    assert max(record["memory_mib"]) < record["memory_mib"][0] + 100, record["memory_mib"]
