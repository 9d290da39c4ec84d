"""python -m tests.stress.fuzzing [TARGET ...] [--minutes M] [--seed S] [--findings DIR] [--out FILE.json]

Fuzz each target in a separate process for `--minutes`, and restart the process if an input ends it. The counts are
written to the record after each target. A target that is fuzzed again for at least the same time replaces its previous
row.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from manyheads.files import write_json
from manyheads.training.record import commit, hardware
from tests.stress.fuzzing.engine import GUIDED, keep
from tests.stress.fuzzing.inputs import packed, read
from tests.stress.fuzzing.targets import NAMES

RECORD = Path("lab/results/survival/fuzzing.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.fuzzing", description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--findings", type=Path, default=Path("build/fuzzing"))
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    names = options.targets or NAMES
    total = 0
    for name in names:
        row = fuzz(name, options.minutes * 60, options.seed, options.findings / name)
        total += len(row["findings"])
        print(told(name, row), flush=True)
        add(options.out, name, row)
    return min(total, 1)


def fuzz(name: str, seconds: float, seed: int, kept: Path) -> dict[str, Any]:
    """Fuzz a target and return its row of the record. Each finding is saved in a separate folder with its input."""
    shutil.rmtree(kept, ignore_errors=True)
    counts, branches, begun, end = Counter[str](), 0, time.monotonic(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as temporary:
        folder, log = Path(temporary), Path(temporary) / "log"
        while (left := end - time.monotonic()) > 0.5:
            command = [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "tests.stress.fuzzing.engine",
                name,
                temporary,
                str(left),
                str(seed),
            ]
            with log.open("wb") as output:
                status = subprocess.run(
                    command, stdout=output, stderr=output, check=False, timeout=left + 900
                ).returncode
            text = log.read_text(errors="replace")
            branches = max([branches, *(int(number) for number in re.findall(r"\bcov: (\d+)", text))])
            if (folder / "told.json").exists():
                counts += Counter(json.loads((folder / "told.json").read_text()))
                (folder / "told.json").unlink()
            elif status:
                raise SystemExit(f"{name}: the process cannot begin:\n{text[-3000:]}")
            if status:  # an input ended it: the one that is still there
                files = read(folder / "input") if (folder / "input").is_dir() else {}
                keep(folder, _ended(status, text), text[-6000:], packed(files))
            seed += 1
        findings_folder = folder / "findings"
        if findings_folder.is_dir():
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(findings_folder, kept)
    findings = (
        sorted((path / "told.txt").read_text().splitlines()[0] for path in kept.glob("*/")) if kept.is_dir() else []
    )
    return {
        "inputs": counts.total(),
        "seconds": round(time.monotonic() - begun, 1),
        "accepted": counts["accepted"],
        "refused": counts["refused"],
        "branches": branches or None,
        "findings": findings,
        "commit": commit(),
    }


def _ended(status: int, log: str) -> str:
    """Return the exit status of a process and, after a panic in Rust, its location."""
    where = re.findall(r"panicked at ([^\s]+)", log)
    return f"the process ended with status {status}{f' ({where[-1]})' if where else ''}"


def told(name: str, row: dict[str, Any]) -> str:
    findings = "nothing found" if not row["findings"] else f"FOUND {'; '.join(row['findings'])}"
    branches = "" if row["branches"] is None else f", {row['branches']:,} branches"
    return (
        f"{name}: {row['inputs']:,} inputs in {row['seconds'] / 60:.1f} minutes, {row['accepted']:,} accepted, "
        f"{row['refused']:,} refused{branches}: {findings}"
    )


def add(out: Path, name: str, row: dict[str, Any]) -> None:
    record: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"survival": "fuzzing", "targets": {}}
    kept = record["targets"].get(name, {}).get("seconds", 0)
    if kept > row["seconds"]:
        print(f"{out}: kept the record of {name}, whose run was longer ({kept / 60:.1f} minutes)", file=sys.stderr)
        return
    record |= {"engine": "Atheris" if GUIDED else "examples", "hardware": hardware()}
    record["targets"] = dict(sorted({**record["targets"], name: row}.items()))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)


if __name__ == "__main__":
    raise SystemExit(main())
