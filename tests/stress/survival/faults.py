"""Faults other than sudden death in a run: each gives a one-line error or the same weights as an undisturbed run.

    python -m tests.stress.survival.faults [--out FILE.json]

Each fault is injected in the middle of a tiny run. The record holds the error message. It also says whether the run,
resumed after the fault is repaired, ends with weights identical to those of an undisturbed run. Full and read-only
disks are real file systems in memory; they need root and are skipped otherwise.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import manyheads.training.loop as loop
from manyheads.files import write_json
from manyheads.training.record import commit, hardware
from tests.stress.survival.runs import Watched, outcome, prepare, undisturbed
from tests.support.families import write_data

NAME, IMAGES = "text-classifier", "vit"
AT = 10  # the step in which something goes wrong: checkpoints are written every 4
NAN = float("nan")


class Faults:
    """Folder of the runs, their expected results, and the faults found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_data(folder)
        self.expected = {name: undisturbed(name, folder, folder / "whole") for name in (NAME, IMAGES)}
        self.rows: list[dict[str, Any]] = []

    def run(self, out: Path, name: str = NAME, before: Callable[[], object] = lambda: None) -> list[str]:
        """Run to the end and return the error lines. The list is empty after a run without an error."""
        run = Watched(name, self.folder, out, before)
        run.process.join()
        assert run.process.exitcode in (0, 2), (run.process.exitcode, run.told()[-20:])
        errors = [line for line in run.told() if line.startswith("manyheads: ")]
        assert len(errors) == (run.process.exitcode == 2), run.told()
        return errors

    def found(self, kind: str, fault: str, out: Path, told: list[str], name: str = NAME) -> None:
        """Resume the run if it was stopped, and compare its result, unless its error says that it cannot be resumed."""
        lost = bool(told) and "start again in another directory" in told[0]
        if told and not lost:
            assert not self.run(out, name)
        weights = not lost and all(
            now["weights"] == then["weights"]
            for now, then in zip(outcome(out).values(), self.expected[name].values(), strict=True)
        )
        words = told[0].removeprefix("manyheads: ").replace(str(self.folder), "...") if told else ""
        self.rows.append({"kind": kind, "fault": fault, "told": words, "same_weights": weights})
        print(self.rows[-1], file=sys.stderr, flush=True)
        assert weights or lost

    def stopped(self, out: Path, name: str = NAME, step: int = AT) -> Watched:
        """Return a run that was killed after this step."""
        run = Watched(name, self.folder, out)
        while run.process.is_alive() and not any(
            int(path.stem[-8:]) >= step for path in out.rglob("checkpoint-*.json")
        ):
            time.sleep(0.001)
        run.process.kill()
        run.process.join()
        return run


def at_step(fault: Callable[[Any, Any], object]) -> Callable[[], None]:
    """Return a function that makes step `AT` call `fault(task, group)` before its computation."""

    def install() -> None:
        train_step = loop.train_step

        def faulty(session: Any, group: Any) -> Any:
            if session.counters.step == AT:
                fault(session.objective, group)
            return train_step(session, group)

        setattr(loop, "train_step", faulty)  # noqa: B010

    return install


def broken_fsync(number: int) -> Callable[[], None]:
    """Return a function that makes the disk fail with this error from some call on."""

    def install() -> None:
        sync, calls = os.fsync, [0]

        def fsync(descriptor: int) -> None:
            calls[0] += 1
            if calls[0] > 30:
                raise OSError(number, os.strerror(number))
            sync(descriptor)

        setattr(os, "fsync", fsync)  # noqa: B010

    return install


def harmed_files(faults: Faults) -> None:
    """Every file of an unfinished run, one at a time."""
    base = faults.folder / "base"
    faults.stopped(base)
    files = sorted(path.relative_to(base) for path in base.rglob("*") if path.is_file() and path.stat().st_size)
    chance = random.Random(1)
    for file in files:
        for fault in ("torn", "a flipped bit"):
            out = faults.folder / "harmed"
            shutil.copytree(base, out)
            content = bytearray((out / file).read_bytes())
            if fault == "torn":
                del content[chance.randrange(len(content)) :]
            else:
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            (out / file).write_bytes(content)
            what = "TensorBoard's events" if "events" in file.parts else str(file.relative_to(file.parts[0]))
            faults.found(fault, what, out, faults.run(out))
            shutil.rmtree(out)


def computing(faults: Faults) -> None:
    def nan_loss(task: Any, _: Any) -> None:
        loss = task.loss
        task.loss = lambda batch: loss(batch)._replace(total=loss(batch).total * NAN)

    def nan_gradient(task: Any, _: Any) -> None:
        [*task.model.parameters()][2].register_hook(lambda gradient: gradient * NAN)

    def nan_input(_: Any, group: Any) -> None:
        group.batches[0].images[0, 0, 0, 0] = NAN

    def memory(task: Any, _: Any) -> None:
        task.loss = lambda batch: torch.empty(1 << 50)

    for kind, name, fault in (
        ("NaN in the loss", NAME, nan_loss), ("NaN in a gradient", NAME, nan_gradient),
        ("NaN in the data", IMAGES, nan_input), ("out of memory", NAME, memory),
    ):  # fmt: skip
        out = faults.folder / kind.replace(" ", "-")
        told = faults.run(out, name, at_step(fault))
        assert told
        assert f"step {AT + 1}: " in told[0]
        faults.found(kind, f"in step {AT + 1} of {name}", out, told, name)


def clocks(faults: Faults) -> None:
    def jumping() -> None:
        chance = random.Random(1)
        setattr(time, "time", lambda: chance.uniform(0, 4e9))  # noqa: B010

    out = faults.folder / "clock"
    told = faults.run(out, before=jumping)
    assert not told
    faults.found("clock", "jumps by up to 100 years at every look", out, told)


def second_process(faults: Faults) -> None:
    out = faults.folder / "shared"
    first = Watched(NAME, faults.folder, out)
    while first.process.is_alive() and not [*out.rglob("checkpoint-*.json")]:
        time.sleep(0.001)
    assert first.process.pid is not None
    os.kill(first.process.pid, signal.SIGSTOP)
    told = faults.run(out)
    assert told
    assert f"is in use by the running process {first.process.pid}" in told[0]
    first.process.kill()
    first.process.join()
    faults.found("second process", "in the directory of a run, whose process then dies by SIGKILL", out, told)


@contextmanager
def disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a file system in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def disks(faults: Faults) -> None:
    whole = sum(path.stat().st_size for path in (faults.folder / "whole" / NAME).rglob("*") if path.is_file())
    for part in (0.2, 0.5, 0.8):
        with disk(faults.folder / f"full-{part}", int(whole * part)) as folder:
            told = faults.run(folder / "run")
            subprocess.run(["mount", "-o", "remount,size=1g", folder], check=True)
            faults.found("full disk", f"of {part:.0%} of what the run needs", folder / "run", told)
    with disk(faults.folder / "read-only", 1 << 30) as folder:
        faults.stopped(folder / "run")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        told = faults.run(folder / "run")
        subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
        faults.found("read-only directory", "when a run goes on", folder / "run", told)


def vanishing(faults: Faults) -> None:
    out, away = faults.folder / "vanishing", faults.folder / "away"

    def move(*_: Any) -> None:
        out.rename(away)

    told = faults.run(out, before=at_step(move))
    assert told
    if out.exists():
        shutil.rmtree(out)
    away.rename(out)
    faults.found("vanished directory", f"renamed in step {AT + 1}", out, told)
    for number in (errno.EIO, errno.ESTALE):
        out = faults.folder / errno.errorcode[number]
        told = faults.run(out, before=broken_fsync(number))
        assert told
        faults.found("vanished file system", os.strerror(number), out, told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        faults = Faults(Path(folder))
        for part in (computing, second_process, clocks, vanishing, disks, harmed_files):
            if part is not disks or os.geteuid() == 0:
                part(faults)
    record = {"survival": "faults", "faults": faults.rows, "hardware": hardware(), "commit": commit()}
    print(json.dumps(record, indent=1))
    if options.out:
        write_json(options.out, record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
