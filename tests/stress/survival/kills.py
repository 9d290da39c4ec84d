"""Kill runs of every family at random moments, resume them, and compare the final weights.

    python -m tests.stress.survival.kills [--kills 13] [--families NAME ...] [--seed 1] [--out FILE.json]

Each family gets `--kills` kills, one third of them by SIGTERM. Some come at a random moment, others in a chosen phase:
the first checkpoint write, a later write, a validation, or the averaging at the end. The record counts the kills by
phase. Each finished run is compared with an undisturbed run: weights byte by byte, metrics, and the final state.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from manyheads.files import write_json
from manyheads.training.record import commit, hardware
from tests.stress.survival.runs import END, STEPS, VALIDATION, Watched, outcome, prepare, undisturbed
from tests.support.families import FAMILIES, write_data

FIRST, WRITING, ANY = "the very first write", "writing a checkpoint", "any moment"
WISHES = (WRITING, STEPS, VALIDATION, ANY, WRITING, END)


def killed(run: Watched, number: signal.Signals, wish: str, chance: random.Random, seconds: float) -> str | None:
    """Kill a run and return its phase at that moment, or None if it had already ended."""
    moment = time.monotonic() + chance.uniform(0, seconds)
    while run.process.is_alive() and (time.monotonic() < moment if wish == ANY else wish != run.doing()):
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.03 if wish in (FIRST, WRITING) else 0.2))
    if not run.process.is_alive():
        return None
    doing = run.doing()
    assert run.process.pid is not None
    os.kill(run.process.pid, number)
    run.process.join()
    status = run.process.exitcode
    if number == signal.SIGKILL:
        return run.doing() if status == -signal.SIGKILL else None
    # asked to end before it listens, a process just ends; later, it ends its step and writes a checkpoint
    if status == 130:
        assert any("wrote a checkpoint; resume with: " in line for line in run.told()), run.told()
    return doing if status in (130, -signal.SIGTERM) else None


def family(name: str, data: Path, folder: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """Run a family with `kills` killed attempts and return the results."""
    began = time.monotonic()
    expected = undisturbed(name, data, folder / "whole")
    seconds = time.monotonic() - began
    by_signal, doing, runs = Counter[str](), Counter[str](), 0
    wishes = itertools.cycle(WISHES)
    for number in itertools.count():
        out = folder / "killed" / f"{name}-{number}"
        while True:
            run = Watched(name, data, out)
            if by_signal.total() < kills:
                how = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
                begun = any(out.rglob("checkpoint-*.json"))
                wish = next(wishes) if begun or chance.random() < 0.5 else FIRST
                if (died := killed(run, how, wish, chance, seconds)) is not None:
                    by_signal[how.name] += 1
                    doing[died] += 1
                    continue
            run.process.join()
            assert run.process.exitcode == 0, run.told()
            break
        runs += 1
        assert outcome(out) == expected, f"{out} differs from {folder / 'whole' / name}"
        shutil.rmtree(out)
        if by_signal.total() >= kills:
            break
    return {"kills": dict(by_signal), "doing": dict(doing), "runs": runs, "equal": runs, "trainings": len(expected)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=13, help="of each family")
    parser.add_argument("--families", nargs="+", default=[*FAMILIES], choices=[*FAMILIES])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON record; results of the families are added to it")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    prepare()
    families: dict[str, Any] = {}
    if options.out and options.out.exists():
        families = json.loads(options.out.read_text(encoding="utf-8"))["families"]
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        write_data(Path(folder))
        for name in options.families:
            families[name] = family(name, Path(folder), Path(folder), options.kills, chance)
            print(name, families[name], file=sys.stderr, flush=True)
            if options.out:
                write_json(options.out, record(families))
    print(json.dumps(record(families), indent=1))
    return 0


def record(families: dict[str, Any]) -> dict[str, Any]:
    kills = sum((Counter(family["kills"]) for family in families.values()), Counter[str]())
    doing = sum((Counter(family["doing"]) for family in families.values()), Counter[str]())
    runs, equal = (sum(family[key] for family in families.values()) for key in ("runs", "equal"))
    return {
        "survival": "kills", "kills": {"all": kills.total(), **kills}, "doing": dict(doing), "runs": runs,
        "equal": equal, "families": families, "hardware": hardware(), "commit": commit(),
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
