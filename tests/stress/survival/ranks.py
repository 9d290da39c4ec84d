"""Compare runs of several processes with runs of one, and kill one of two processes during a run.

    python -m tests.stress.survival.ranks [--kills 20] [--families NAME ...] [--seed 1] --out FILE.json

Losses: every family is trained for 50 steps in 1, 2 and 4 processes, replicated (DDP) and sharded (FSDP2), in float32
and float64. The record holds the largest relative difference of a step's loss.

Kills: one of two processes is killed by SIGKILL repeatedly, and torchrun restarts both. The final weights are compared
byte by byte with an undisturbed run of two processes. The record holds the seconds from each kill to the next step.

Speed: a GPT is trained by one process and by several, one thread each, in turns. The record holds tokens per second.

Parts that FILE already contains are skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from shutil import copytree
from statistics import median
from typing import Any

from manyheads.files import write_json
from manyheads.training.record import commit, hardware
from manyheads.training.run_log import read_metrics
from tests.support.families import FAMILIES, STEPS, write_data

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
WORLDS, SPREADS, DTYPES = (2, 4), {"replicated": "-", "sharded": "shard"}, ("float32", "float64")
KILLED = (
    "-m", "manyheads", "train", "translation", "size=1000", "vocabulary=400", "batch_tokens=2000", "model.width=64",
    "model.encoder_layers=2", "model.decoder_layers=2", "threads=1", "training.steps=400", "training.average=1",
    "training.log_every=1", "training.checkpoint_every=10", "training.schedule=constant",
)  # fmt: skip
TIMED = (
    "train", "language-modeling", "share=0.002", "model.layers=4", "model.width=256", "block=256", "rows=16",
    "threads=1", "training.steps=30", "training.log_every=1",
)  # fmt: skip


def trained(data: Path, out: Path, dtype: str, spread: str, world: int, names: list[str]) -> None:
    alone = (sys.executable, "-m", "tests.support.families")
    several = *TORCHRUN, f"--nproc-per-node={world}", "-m", "tests.support.families"
    command = [*(alone if world == 1 else several), str(data), str(out), dtype, spread, *names]
    subprocess.run(command, check=True, stdout=sys.stderr)


def losses(out: Path) -> list[float]:
    """Return the loss of each step. Repeated steps of a resumed run replace those of the killed process."""
    by_step = {entry["step"]: entry["loss"] for entry in read_metrics(out / "metrics.jsonl") if "loss" in entry}
    return [by_step[step] for step in sorted(by_step)]


def apart(out: Path, alone: Path, name: str) -> float:
    """Return the largest relative difference of a loss among the trainings of a family."""
    greatest = 0.0
    for path in (alone / name).rglob("metrics.jsonl"):
        wanted, actual = losses(path.parent), losses(out / path.parent.relative_to(alone))
        assert len(actual) == len(wanted) == STEPS, path
        greatest = max([greatest, *(abs(a - b) / abs(a) for a, b in zip(wanted, actual, strict=True))])
    return greatest


def differences(names: list[str], by_precision: dict[str, Any], keep: Any) -> None:
    """Fills `by_precision`: by precision, number of processes and spread, for each family."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        data = Path(folder)
        write_data(data)
        for dtype in DTYPES:
            alone = data / dtype
            for world in WORLDS:
                for spread, flag in SPREADS.items():
                    known = by_precision.setdefault(dtype, {}).setdefault(f"{world} {spread}", {})
                    missing = [name for name in names if name not in known]
                    first = [name for name in missing if not (alone / name).exists()]
                    if "gpt-classifier" in first and not (data / "gpt2").exists():  # it starts from one
                        trained(data, alone, dtype, "-", 1, ["gpt2"])
                        copytree(alone / "gpt2", data / "gpt2")
                        first = [name for name in first if name != "gpt2"]
                    if first:
                        trained(data, alone, dtype, "-", 1, first)
                    if missing:
                        out = data / f"{dtype}-{world}-{spread}"
                        trained(data, out, dtype, flag, world, missing)
                        known.update({name: apart(out, alone, name) for name in missing})
                        keep()


def processes(out: Path) -> dict[int, int]:
    """Return the process of each rank that works in a directory."""
    by_rank = {}
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            given = dict(word.partition(b"=")[::2] for word in (process / "environ").read_bytes().split(b"\0"))
        except (OSError, ValueError):
            continue
        if str(out).encode() in words and b"RANK" in given and b"torch.distributed.run" not in words:
            by_rank[int(given[b"RANK"])] = int(process.name)
    return by_rank


def at(out: Path) -> int:
    """Return the last logged step, or 0."""
    return max((entry["step"] for entry in read_metrics(out / "metrics.jsonl")), default=0)


def kills(count: int, chance: random.Random) -> dict[str, Any]:
    """Kill one process of a two-process run `count` times and return the results."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        whole, out = Path(folder) / "whole", Path(folder) / "killed"
        launch = *TORCHRUN, "--nproc-per-node=2", f"--max-restarts={count}", *KILLED, "--out"
        subprocess.run([*launch, str(whole)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        victims, seconds = {0: 0, 1: 0}, list[float]()
        with (Path(folder) / "said").open("w") as said, subprocess.Popen(
            [*launch, str(out)], stdout=subprocess.DEVNULL, stderr=said
        ) as run:  # fmt: skip
            while run.poll() is None and len(seconds) < count:
                _await(lambda: run.poll() is not None or at(out) > 0)
                begun, wait = at(out), chance.randrange(1, 25)
                _await(lambda begun=begun, wait=wait: run.poll() is not None or at(out) >= begun + wait)
                pids = processes(out)
                if run.poll() is not None or set(pids) != {0, 1}:
                    break
                victim = chance.randrange(2)
                os.kill(pids[victim], signal.SIGKILL)
                killed, reached = time.time(), time.monotonic()
                _await(
                    lambda pids=pids: run.poll() is not None or not set(processes(out).values()) & set(pids.values())
                )
                _await(lambda killed=killed: run.poll() is not None or _told(out, killed))
                victims[victim] += 1
                seconds.append(time.monotonic() - reached)
                print(f"{len(seconds)}: rank {victim} at step {begun + wait}, {seconds[-1]:.1f} s", file=sys.stderr)
            run.wait()
        if run.returncode:
            raise SystemExit((Path(folder) / "said").read_text())
        same = losses(out) == losses(whole) and _hash(out) == _hash(whole)
        return {"kills": victims, "equal": same, "seconds_to_the_next_step": sorted(round(s, 1) for s in seconds)}


def _told(out: Path, killed: float) -> bool:
    """Return True if the restarted processes have logged a step."""
    file = out / "metrics.jsonl"
    return len(processes(out)) == 2 and file.stat().st_mtime > killed + 1


def _await(what: Any) -> None:
    while not what():
        time.sleep(0.2)


def _hash(out: Path) -> str:
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def speed(out: Path, *options: str) -> float:
    """Return tokens per second, from the median of the last 20 of 30 steps."""
    command = (sys.executable, "-m", "manyheads", *TIMED, "--out", str(out), *options)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    entries = [entry for entry in read_metrics(out / "metrics.jsonl") if entry["step"] > 10]
    return median(entry["tokens_per_second"] for entry in entries if "tokens_per_second" in entry)


def throughput() -> dict[str, list[float]]:
    """Measure one process and up to 4 (at most one per core), replicated and sharded, in five rounds of all."""
    speeds: dict[str, list[float]] = {}
    worlds = [world for world in WORLDS if world <= len(os.sched_getaffinity(0))]
    for _ in range(5):
        for world in (1, *worlds):
            for spread in SPREADS if world > 1 else ("replicated",):
                options = [] if world == 1 else ["--processes", str(world), f"training.shard={spread == 'sharded'}"]
                with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
                    name = "1" if world == 1 else f"{world} {spread}"
                    speeds.setdefault(name, []).append(speed(Path(folder) / "run", *map(str.lower, options)))
    return speeds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--families", nargs="*", default=[*FAMILIES], choices=[*FAMILIES])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="JSON record; missing parts are added to it")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    record: dict[str, Any] = {"survival": "ranks", "differences": {}, "killed": None}
    if options.out.exists():
        record = json.loads(options.out.read_text(encoding="utf-8"))

    def keep() -> None:
        record.update(hardware=hardware(), commit=commit())
        write_json(options.out, record)

    if options.kills and not record["killed"]:
        record["killed"] = kills(options.kills, random.Random(options.seed))
        keep()
    differences(options.families, record["differences"], keep)
    if "tokens_per_second" not in record:
        record["tokens_per_second"] = throughput()
        keep()
    print(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
