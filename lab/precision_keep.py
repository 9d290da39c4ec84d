"""`python -m lab.precision_keep RUN ...`: score trained runs on their own test data in float32, bf16 and int8, and
keep the scores as `lab/results/bench/precision.json`, for the table of docs/measured/speed.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.results_keep import RECORDS
from manyheads.files import write_json

PRECISIONS = ("float32", "bf16", "int8")


def scored(run: Path) -> dict[str, Any]:
    """The metrics of a run by precision, computed by the command that a user would type."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    metrics = {}
    for precision in PRECISIONS:
        command = [sys.executable, "-m", "manyheads", "evaluate", str(run), "--json", "--precision", precision]
        answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        metrics[precision] = {name: metric["value"] for name, metric in answer["metrics"].items()}
    return {**{key: result[key] for key in ("recipe", "parameters", "hardware")}, "metrics": metrics}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m lab.precision_keep RUN ...")
    kept = RECORDS / "bench" / "precision.json"
    write_json(kept, {"precisions": [scored(Path(run)) for run in sys.argv[1:]]})
    print(kept)
