"""The benchmark for a GPU, on tiny models of the processor: every part runs and has its figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.part import PARTS
from tests.paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_part_has_figures_of_both_sides(tmp_path: Path) -> None:
    """Without compilation, which takes minutes on a processor."""
    out = tmp_path / "record.json"
    command = [sys.executable, "-m", "benchmarks", "all", "--device", "cpu", "--tiny", "--out", str(out)]
    environment = {**os.environ, "TORCH_COMPILE_DISABLE": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=590)
    record = json.loads(out.read_text())
    assert record["left_out"] == []
    assert {name: part["status"] for name, part in record["parts"].items()} == dict.fromkeys(PARTS, "done")
    assert {row["work"] for row in record["rows"]} == set(PARTS) - {"machine"}
    for row in record["rows"]:
        assert row["ours"] > 0
        assert row["limit"] > 0
        assert row["peers"]
        assert all(0 <= error < 0.1 for error in row["errors"].values()), row
