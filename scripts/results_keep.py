"""`python -m scripts.results_keep RUN NAME`: keep a run's result.json as `manyheads/results/runs/NAME.json`; of a
file that `manyheads probe --json` has written, `manyheads/results/probes/NAME.json`.

Of paths only the file names are kept: where the data lay on one machine is nobody else's business. Their fingerprints
tell whether they are the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePath
from typing import Any

RECORDS = Path(__file__).parents[1] / "manyheads" / "results"


def without_folders(value: Any) -> Any:
    """The same with every path cut to its last part; a preset, such as resnet/20-small, is none."""
    if isinstance(value, dict):
        return {key: item if key == "preset" else without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return PurePath(value).name if isinstance(value, str) and "/" in value else value


def main(run: str, name: str) -> Path:
    source, kind = (Path(run) / "result.json", "runs") if Path(run).is_dir() else (Path(run), "probes")
    record = json.loads(source.read_text(encoding="utf-8"))
    for part in ("data", "overrides", "init", "model", "treebank"):
        if part in record:
            record[part] = without_folders(record[part])
    kept = RECORDS / kind / f"{name}.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return kept


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m scripts.results_keep RUN|PROBE.json NAME")
    print(main(*sys.argv[1:]))
