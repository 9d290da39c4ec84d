"""The survival scripts on runs of every family: they exit with an error if weights differ."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.support.families import FAMILIES


def made(script: str, out: Path, *options: str) -> dict[str, object]:
    command = [sys.executable, "-m", f"tests.stress.survival.{script}", *options, "--out", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, object] = json.loads(out.read_text())
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_do_not_change_the_weights_of_any_family(tmp_path: Path) -> None:
    found = made("kills", tmp_path / "kills.json", "--kills", "3")
    assert found["runs"] == found["equal"]
    assert found["kills"]["all"] >= 3 * len(FAMILIES)  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_faults_are_reported_in_one_line_or_have_no_effect(tmp_path: Path) -> None:
    rows = made("faults", tmp_path / "faults.json")["faults"]
    assert isinstance(rows, list)
    assert all(row["same_weights"] or "start again in another directory" in row["told"] for row in rows)
